"""Makes the logs agree after an unclean stop or a repair, before the node serves anything.

Theory of operation
-------------------
At the end of a start two things are settled:

- Producer ids. An id that a partition or a coordinator has seen was handed out, whether or not the
  metadata log still says so. A second producer with the same id would have its batches treated as
  duplicates: acknowledged and dropped. So the next id is above all of them. If power may have been
  lost, a producer may also hold an id that is no longer in any log: `SKIPPED_IDS` more are skipped.
- Transactions, if power may have been lost (`Layout.lost_power`) and the data was written in `os`
  mode (not `Layout.is_synced`). Then each log may have lost a different tail;
  `coordinator/txn/reconcile.py` says what follows from that. After the death of the process alone,
  and for data of `fsync` mode, each log holds what the others depend on, and the usual load
  finishes what is prepared. The mode of this start does not matter.

For this the coordinators are read to their end in one turn, because only all of them together show
that a transaction has no owner; nothing that they found is finished before that. If one of them is
damaged or cannot be opened, the broker does not start. Other partitions that cannot be opened are
not compared, so they stay offline until the next start. A start that fails or dies in the middle is
repeated as a whole: until `Layout.trust_session` the directory still says that power was lost, and
no stop is marked as clean.

The same happens, in both modes and also after a clean stop, for a coordinator's log from which
`fencepost repair` has removed records (`repair.LOSS`). The rest of it may be older than its
producers by any number of epochs. So each of its ids also gets a new producer id, which no producer
holds. In a repaired log of offsets, transactions that have ended but whose markers are lost are
aborted.

Only partitions that have seen producers are checked. If the disk refuses a marker or a record, the
broker does not start.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Final

from fencepost.base.failures import StorageError, SyncError
from fencepost.base.ids import CONSUMER_OFFSETS_TOPIC
from fencepost.base.refusal import Refusal
from fencepost.broker.controller.controller import Controller
from fencepost.broker.coordinators.by_topic import Coordinators
from fencepost.broker.partitions.local_partitions import LocalPartitions
from fencepost.broker.runtime import Runtime
from fencepost.broker.storage.layout import Layout
from fencepost.broker.storage.repair import LOSS
from fencepost.broker.transactions.markers import EndMarker, MarkerWriter
from fencepost.broker.transactions.partition import CoordinatorPartition
from fencepost.coordinator.metadata.state import MetadataState
from fencepost.coordinator.txn.events import LogRecord
from fencepost.coordinator.txn.reconcile import (
    MissingMarker,
    ProducerSeen,
    before_loss,
    reconcile,
    renewed,
)
from fencepost.log.durability import sync_names
from fencepost.partition.partition import Partition
from fencepost.records.batch import BatchError

log = logging.getLogger(__name__)

SKIPPED_IDS: Final = 1_000_000
"""More ids than are handed out while an operating system holds back writes."""

LAST_COUNTED_ID: Final = 2**62
"""No id this high is ever handed out. A client that uses one has invented it, and it must not use
up all others."""


class Reconciliation:
    """The end of a start: loads the coordinators, and settles what the last stop has left."""

    def __init__(
        self,
        runtime: Runtime,
        layout: Layout,
        partitions: LocalPartitions,
        metadata: MetadataState,
        controller: Controller,
        coordinators: Coordinators,
        markers: MarkerWriter,
    ) -> None:
        self._runtime = runtime
        self._layout = layout
        self._partitions = partitions
        self._metadata = metadata
        self._controller = controller
        self._coordinators = coordinators
        self._groups = coordinators.groups
        self._transactions = coordinators.transactions
        self._markers = markers

    def load_coordinators(self) -> None:
        """Loads the coordinators, and settles what the last stop or a repair has left."""
        repaired = self._repaired()
        if repaired or self._layout.may_disagree:
            self._load_all()
            self._reconcile(repaired)
            first_id = self._reserve_ids(skipped=SKIPPED_IDS)
            self._renew(repaired, first_id)
            self._end_dangling(repaired)
            self._forget_repairs(repaired)
            for coordinator in self._transactions.coordinators():
                self._transactions.resume(coordinator)
        else:
            self._coordinators.load_all()
            if not self._layout.clean:
                self._reserve_ids(skipped=0)

    def _repaired(self) -> set[Partition]:
        """The coordinators' logs from which an operator's repair has removed records."""
        return {
            partition
            for partition in self._coordinators.logs()
            if self._runtime.disk.exists(f"{partition.log.folder}/{LOSS}")
        }

    def _renew(self, repaired: set[Partition], first_id: int) -> None:
        """Gives every id of a repaired partition an unused producer id."""
        now_ms = self._runtime.clock.now_ms()
        producer_id = first_id  # Of those that `_reserve_ids` has skipped.
        for coordinator in self._transactions.coordinators():
            if coordinator.partition not in repaired:
                continue
            known = list(coordinator.state.transactions.items())
            for transactional_id, txn in known:
                record = LogRecord(transactional_id, renewed(txn, producer_id, now_ms))
                _write_record(coordinator, record, now_ms)
                producer_id += 1
            log.warning(
                "%s has lost records and was repaired: its %d transactional ids have new producer "
                "ids; their producers are fenced and must be initialised again",
                coordinator.partition.name,
                len(known),
            )

    def _end_dangling(self, repaired: set[Partition]) -> None:
        """Aborts pending offsets of transactions whose marker is lost, as nothing else would."""
        for partition in repaired:
            if partition.name.topic != CONSUMER_OFFSETS_TOPIC:
                continue
            dangling = self._groups.dangling(partition.name.partition)
            for producer_id in dangling:
                known = partition.producers.get(producer_id)
                epoch, coordinator_epoch = (0, 0) if known is None else (known.epoch, 0)
                if known is not None:
                    coordinator_epoch = max(known.coordinator_epoch, 0)
                marker = MissingMarker(
                    partition.name,
                    producer_id,
                    epoch,
                    commit=False,
                    coordinator_epoch=coordinator_epoch,
                )
                self._write_marker(marker, transaction_version=1)
            log.warning(
                "%s has lost records and was repaired: its groups continue from the newest offsets "
                "that could be read; the offsets of %d transactions whose end is lost are dropped",
                partition.name,
                len(dangling),
            )

    def _forget_repairs(self, repaired: set[Partition]) -> None:
        """Removes the marks of repairs, once everything that they require is on the disk."""
        try:
            for partition in repaired:
                partition.advance_high_watermark(partition.log.sync())
                self._runtime.disk.remove(f"{partition.log.folder}/{LOSS}")
                sync_names(self._runtime.disk, partition.log.folder)
        except OSError as problem:
            raise StorageError(
                f"A repair could not be finished: {problem}. Start again when the disk can be "
                "written."
            ) from problem

    def _load_all(self) -> None:
        """Loads all coordinators or none: transactions in an unreadable log would have no owner."""
        try:
            if missing := self._coordinators.unopened():
                raise StorageError(f"{missing[0]} could not be opened")
            self._coordinators.load_all(held=True)
        except SyncError:
            raise
        except (StorageError, BatchError) as problem:
            raise StorageError(
                "A coordinator's log cannot be read, and without it open transactions cannot be "
                f"settled after a power loss: {problem}. Nothing was settled. Put the file back "
                f"from a copy, or accept the loss with `fencepost repair {self._layout.folder} "
                f"PARTITION`; `fencepost check {self._layout.folder}` tells more."
            ) from problem

    def _reserve_ids(self, *, skipped: int) -> int:
        """Reserves every id that a producer may hold, and `skipped` more; the first of those."""
        used = (each for each in self._used_ids() if each < LAST_COUNTED_ID)
        first = max(max(used, default=-1) + 1, self._metadata.next_producer_id)
        self._controller.reserve_ids_below(first + skipped)
        return first

    def _used_ids(self) -> Iterator[int]:
        for partition in self._partitions.by_name.values():
            for producer in partition.producers:
                yield producer.producer_id
        for coordinator in self._transactions.coordinators():
            for txn in coordinator.state.transactions.values():
                yield txn.producer_id
                yield txn.next_producer_id

    def _seen(self) -> Iterator[ProducerSeen]:
        for name, partition in self._partitions.by_name.items():
            for each in partition.producers:
                yield ProducerSeen(
                    name, each.producer_id, each.epoch, each.in_txn, each.coordinator_epoch
                )

    def _reconcile(self, repaired: set[Partition]) -> None:
        owners = {
            transactional_id: coordinator
            for coordinator in self._transactions.coordinators()
            for transactional_id in coordinator.state.transactions
        }
        known = [
            (each, before_loss(txn) if owner.partition in repaired else txn)
            for each, owner in owners.items()
            for txn in (owner.state.transactions[each],)
        ]
        now_ms = self._runtime.clock.now_ms()
        markers, records = reconcile(self._seen(), known, now_ms)
        self._sync([self._write_marker(marker) for marker in markers])
        self._sync(
            [_write_record(owners[record.transactional_id], record, now_ms) for record in records]
        )
        if markers or records:
            log.warning(
                "the logs did not agree after a power loss or a repair: %d open transactions "
                "were committed, %d aborted; %d transactional ids have a new epoch",
                sum(marker.commit for marker in markers),
                sum(not marker.commit for marker in markers),
                len(records),
            )

    def _sync(self, partitions: Iterable[Partition]) -> None:
        """Syncs in fsync mode, as these writes must be durable before the session is trusted."""
        if self._partitions.fsync:
            for partition in dict.fromkeys(partitions):
                partition.advance_high_watermark(partition.log.sync())

    def _write_marker(self, marker: MissingMarker, *, transaction_version: int = 2) -> Partition:
        name = marker.name
        end = EndMarker(
            marker.producer_id,
            marker.epoch,
            marker.commit,
            marker.coordinator_epoch,
            transaction_version=transaction_version,
        )
        written = self._markers.append(name.topic, name.partition, end)
        if isinstance(written, Refusal):
            raise StorageError(
                f"An open transaction on {name} could not be ended after a power loss "
                f"({written.error.name}). Nothing was lost by this attempt; start again when the "
                "disk can be written."
            )
        return written[0]


def _write_record(coordinator: CoordinatorPartition, record: LogRecord, now_ms: int) -> Partition:
    end_offset = coordinator.append(record, now_ms)
    if isinstance(end_offset, Refusal):
        raise StorageError(
            f"{coordinator.partition.name} could not be written after a power loss. Nothing "
            "was lost by this attempt; start again when the disk can be written."
        )
    coordinator.settle(record.transactional_id, end_offset)
    return coordinator.partition
