"""Makes the logs agree after an unclean stop or a repair, before the node serves anything.

Theory of operation
-------------------
At the end of a start two things are settled:

- Producer ids. An id that a partition or a coordinator has seen was handed out, whether or not the
  metadata log still says so. A second producer with the same id would have its batches treated as
  duplicates: acknowledged and dropped. So the next id is above all of them. If power may have been
  lost, a producer may also hold an id that is in no log any more: `SKIPPED_IDS` more are skipped.
- Transactions, if power may have been lost (`Layout.lost_power`) and the data was written in `os`
  mode (not `Layout.is_synced`). Then each log may have lost a different tail;
  `coordinator/txn/reconcile.py` says what follows from that. After the death of the process alone,
  and for data of `fsync` mode, each log holds what the others depend on, and the usual load
  finishes what is prepared. The mode of this start does not matter.

For this the coordinators are read to their end in one turn, because only all of them together show
that a transaction has no owner; nothing that they found is finished before that. If one of them is
damaged, the broker does not start. A start that dies in the middle is repeated as a whole: until
`Layout.trust_session` the directory still says that power was lost.

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
from typing import TYPE_CHECKING, Final

from fencepost.base.failures import StorageError
from fencepost.base.ids import CONSUMER_OFFSETS_TOPIC, INTERNAL_TOPICS
from fencepost.base.refusal import Refusal
from fencepost.broker.storage.repair import LOSS
from fencepost.broker.transactions.markers import EndMarker
from fencepost.coordinator.txn.events import LogRecord
from fencepost.coordinator.txn.reconcile import (
    MissingMarker,
    ProducerSeen,
    before_loss,
    reconcile,
    renewed,
)
from fencepost.records.batch import BatchError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fencepost.broker.node import Node
    from fencepost.broker.transactions.partition import CoordinatorPartition
    from fencepost.partition.partition import Partition

log = logging.getLogger(__name__)

SKIPPED_IDS: Final = 1_000_000
"""More ids than are handed out while an operating system holds back writes."""

LAST_COUNTED_ID: Final = 2**62
"""No id this high is ever handed out. A client that uses one has invented it, and it must not use
up all others."""


def load_coordinators(node: Node) -> None:
    """Loads the coordinators, and settles what the last stop or a repair has left."""
    repaired = _repaired(node)
    layout = node.layout
    if repaired or (layout.lost_power and not layout.is_synced and not layout.clean):
        _load_all(node)
        _reconcile(node, repaired)
        first_id = _reserve_ids(node, skipped=SKIPPED_IDS)
        _renew(node, repaired, first_id)
        _end_dangling(node, repaired)
        _forget_repairs(node, repaired)
        for coordinator in node.transactions.coordinators():
            node.transactions.resume(coordinator)
    else:
        node.load_coordinators()
        if not layout.clean:
            _reserve_ids(node, skipped=0)


def _repaired(node: Node) -> set[Partition]:
    """The coordinators' logs from which an operator's repair has removed records."""
    found = set()
    for topic in INTERNAL_TOPICS:
        for index in range(node.metadata.partition_count(topic)):
            partition = node.partition(topic, index)
            if partition is not None and node.disk.exists(f"{partition.log.folder}/{LOSS}"):
                found.add(partition)
    return found


def _renew(node: Node, repaired: set[Partition], first_id: int) -> None:
    """Gives every id of a repaired partition an unused producer id."""
    now_ms = node.clock.now_ms()
    producer_id = first_id  # Of those that `_reserve_ids` has skipped.
    for coordinator in node.transactions.coordinators():
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


def _end_dangling(node: Node, repaired: set[Partition]) -> None:
    """Aborts pending offsets of transactions whose marker is lost: nothing else would end them."""
    for partition in repaired:
        if partition.name.topic != CONSUMER_OFFSETS_TOPIC:
            continue
        dangling = node.groups.dangling(partition.name.partition)
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
            _write_marker(node, marker, transaction_version=1)
        log.warning(
            "%s has lost records and was repaired: its groups continue from the newest offsets "
            "that could be read; the offsets of %d transactions whose end is lost are dropped",
            partition.name,
            len(dangling),
        )


def _forget_repairs(node: Node, repaired: set[Partition]) -> None:
    """Removes the marks of repairs, once everything that they require is on the disk."""
    try:
        for partition in repaired:
            partition.advance_high_watermark(partition.log.sync())
            node.disk.remove(f"{partition.log.folder}/{LOSS}")
            node.disk.sync_dir(partition.log.folder)
    except OSError as problem:
        raise StorageError(
            f"A repair could not be finished: {problem}. Start again when the disk can be written."
        ) from problem


def _load_all(node: Node) -> None:
    """Loads all coordinators or none: transactions in an unreadable log would have no owner."""
    try:
        node.load_coordinators(held=True)
    except (StorageError, BatchError) as problem:
        raise StorageError(
            "A coordinator's log cannot be read, and without it open transactions cannot be "
            f"settled after a loss of power: {problem}. Nothing was settled. Put the file back "
            f"from a copy, or accept the loss with `fencepost repair {node.config.data} "
            f"PARTITION`; `fencepost check {node.config.data}` tells more."
        ) from problem


def _reserve_ids(node: Node, *, skipped: int) -> int:
    """Reserves every id that a producer may hold, and `skipped` more; the first of those."""
    state = node.metadata
    used = (each for each in _used_ids(node) if each < LAST_COUNTED_ID)
    first = max(max(used, default=-1) + 1, state.next_producer_id)
    node.controller.reserve_ids_below(first + skipped)
    return first


def _used_ids(node: Node) -> Iterator[int]:
    for partition in node.partitions.by_name.values():
        for producer in partition.producers:
            yield producer.producer_id
    for coordinator in node.transactions.coordinators():
        for txn in coordinator.state.transactions.values():
            yield txn.producer_id
            yield txn.next_producer_id


def _seen(node: Node) -> Iterator[ProducerSeen]:
    for name, partition in node.partitions.by_name.items():
        for each in partition.producers:
            yield ProducerSeen(
                name, each.producer_id, each.epoch, each.in_txn, each.coordinator_epoch
            )


def _reconcile(node: Node, repaired: set[Partition]) -> None:
    owners = {
        transactional_id: coordinator
        for coordinator in node.transactions.coordinators()
        for transactional_id in coordinator.state.transactions
    }
    known = [
        (each, before_loss(txn) if owner.partition in repaired else txn)
        for each, owner in owners.items()
        for txn in (owner.state.transactions[each],)
    ]
    now_ms = node.clock.now_ms()
    markers, records = reconcile(_seen(node), known, now_ms)
    _sync(node, [_write_marker(node, marker) for marker in markers])
    _sync(
        node,
        [_write_record(owners[record.transactional_id], record, now_ms) for record in records],
    )
    if markers or records:
        log.warning(
            "the logs did not agree after a loss of power or a repair: %d open transactions "
            "were committed, %d aborted; %d transactional ids have a new epoch",
            sum(marker.commit for marker in markers),
            sum(not marker.commit for marker in markers),
            len(records),
        )


def _sync(node: Node, partitions: Iterable[Partition]) -> None:
    """Syncs in fsync mode: what is written here must be durable before the session is trusted."""
    if node.partitions.fsync:
        for partition in dict.fromkeys(partitions):
            partition.advance_high_watermark(partition.log.sync())


def _write_marker(node: Node, marker: MissingMarker, *, transaction_version: int = 2) -> Partition:
    name = marker.name
    end = EndMarker(
        marker.producer_id,
        marker.epoch,
        marker.commit,
        marker.coordinator_epoch,
        transaction_version=transaction_version,
    )
    written = node.markers.append(name.topic, name.partition, end)
    if isinstance(written, Refusal):
        raise StorageError(
            f"An open transaction on {name} could not be ended after a loss of power "
            f"({written.error.name}). Nothing was lost by this attempt; start again when the disk "
            "can be written."
        )
    return written[0]


def _write_record(coordinator: CoordinatorPartition, record: LogRecord, now_ms: int) -> Partition:
    end_offset = coordinator.append(record, now_ms)
    if isinstance(end_offset, Refusal):
        raise StorageError(
            f"{coordinator.partition.name} could not be written after a loss of power. Nothing "
            "was lost by this attempt; start again when the disk can be written."
        )
    coordinator.settle(record.transactional_id, end_offset)
    return coordinator.partition
