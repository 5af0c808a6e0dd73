"""Where the transaction coordinator meets the log, the clock and the other partitions.

Theory of operation ------------------- The node owns some partitions of `__transaction_state`;
which ones is told by `load` and `unload`, never assumed. A request finds the partition of its
transactional id (NOT_COORDINATOR when another node has it, COORDINATOR_LOAD_IN_PROGRESS while its
log is being read, COORDINATOR_NOT_AVAILABLE when that is damaged), and then always the same
happens: decide, append, apply at once, wait until it is durable, answer. While it waits the id is
pending. What is durable with its append (durability `os`) goes on in the same call: no callback is
made for `when_durable`, which would only be called at once.

- `partition.py`: one partition: state, append, and who waits for what.
- `ending.py`: from the Prepare record over the markers to the Complete record.
- `loading.py`: taking a partition over.          - `timeouts.py`: timeouts and expiry.
- `markers.py`: the ends of transactions, written to their partitions.

Whatever comes back later (durability, a producer id, a timer) may come back to another world: the
partition may have been given away or loaded anew meanwhile. So every continuation looks whether its
partition is closed; if it is, the client is sent on (NOT_COORDINATOR), and the new owner finishes
what the log says.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import TRANSACTION_STATE_TOPIC, coordinator_partition
from fencepost.base.limits import IMPLICIT_ADD_WAIT_MS
from fencepost.base.refusal import Refusal
from fencepost.broker.log_loader import LogLoader
from fencepost.broker.transactions.ending import Ending
from fencepost.broker.transactions.partition import CoordinatorPartition
from fencepost.broker.transactions.timeouts import TransactionClock
from fencepost.coordinator.txn.decide import (
    decide_add_partitions,
    decide_end_txn,
    decide_init_producer_id,
    refuse_init_producer_id,
    verify_partition,
)
from fencepost.coordinator.txn.events import (
    RESERVE_PRODUCER_ID,
    AddPartitions,
    EndTxn,
    InitProducerId,
    Reply,
    WriteMarkers,
)
from fencepost.coordinator.txn.prepare import PREPARED_STATES, markers_of
from fencepost.coordinator.txn.states import State
from fencepost.coordinator.txn.views import (
    Description,
    Filters,
    describe_transaction,
    list_transactions,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Sequence
    from typing import TypeVar

    from fencepost.base.ids import TopicPartition
    from fencepost.broker.controller.controller import Controller
    from fencepost.broker.runtime import Runtime
    from fencepost.broker.settings.config import BrokerConfig
    from fencepost.broker.transactions.markers import MarkerWriter
    from fencepost.coordinator.txn.apply import CoordinatorState
    from fencepost.coordinator.txn.events import Decision, LogRecord, TimedOut
    from fencepost.partition.partition import Partition
    from fencepost.records.transaction_log import Partitions, TransactionMetadata

    Done = Callable[[Reply], None]
    E = TypeVar("E", InitProducerId, AddPartitions, EndTxn, TimedOut)

log = logging.getLogger(__name__)

NONE: Final = ErrorCode.NONE
TRANSACTION_VERSION: Final = 2
"""Where the metadata log does not say: the level that ApiVersions advertises."""

_ALLOCATION_FAILED: Final = Reply(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
"""No producer id could be had; clients retry this code, and not a timeout (KAFKA-14417)."""


_REMEMBERED_IDS: Final = 8192
"""Java's hash takes microseconds in Python, and an id comes again with every request."""


class TransactionCoordinator:
    """The transaction coordinator of one node."""

    def __init__(
        self,
        runtime: Runtime,
        config: BrokerConfig,
        controller: Controller,
        markers: MarkerWriter,
    ) -> None:
        self._runtime = runtime
        self._config = config
        self._controller = controller
        self._metadata = controller.state
        self._markers = markers
        self._served: dict[int, CoordinatorPartition] = {}
        self._loading: dict[int, LogLoader] = {}
        """Loads in progress, and those that were refused because the log is damaged."""
        self._indexes: dict[tuple[str, int], int] = {}
        """What `partition_for` has computed, by id and number of partitions."""
        self.clock = TransactionClock(runtime, config, self)

    @property
    def transaction_version(self) -> int:
        """Of the cluster: what the coordinator's own aborts use.

        A client's requests tell their own.
        """
        return self._metadata.features.get("transaction.version", TRANSACTION_VERSION)

    def close(self) -> None:
        """Serves nothing any more; what is unfinished is in the log, and finished at the next start."""
        self.clock.stop()
        for index in [*self._served, *self._loading]:
            self.unload(index)

    # -- which partitions are served
    # ------------------------------------------------------------------------

    def load(self, partition_index: int, partition: Partition, *, held: bool = False) -> None:
        """Serves a partition from now on, once its log has been read.

        With `held` that is when this returns, and `resume` finishes what was found; StorageError if
        it cannot be read.
        """
        self.unload(partition_index)
        coordinator = CoordinatorPartition(self._runtime, partition_index, partition)
        self._loading[partition_index] = loader = LogLoader(
            self._runtime,
            partition,
            self._config.data,
            begin=coordinator.begin_load,
            apply=coordinator.load_entry,
            loaded=partial(self._serve if held else self._loaded, coordinator),
        )
        loader.start(held=held)

    def unload(self, partition_index: int) -> None:
        """The partition goes to another node. To be called before it is closed."""
        loader = self._loading.pop(partition_index, None)
        if loader is not None:
            loader.cancel()
        coordinator = self._served.pop(partition_index, None)
        if coordinator is not None:
            coordinator.close()

    def _serve(self, coordinator: CoordinatorPartition) -> None:
        del self._loading[coordinator.index]
        self._served[coordinator.index] = coordinator
        coordinator.checkpoint.count(0)

    def _loaded(self, coordinator: CoordinatorPartition) -> None:
        self._serve(coordinator)
        self.resume(coordinator)

    def resume(self, coordinator: CoordinatorPartition) -> None:
        """Finishes what a load has found prepared or over."""
        self.clock.start()
        self._finish_prepared(coordinator)
        if self._config.transaction_recovery_ongoing == "abort":
            self.clock.abort_all(coordinator)
        self.clock.expire(coordinator)

    def _finish_prepared(self, coordinator: CoordinatorPartition) -> None:
        """Writes the markers of everything that a load has found prepared."""
        transactions = coordinator.state.transactions
        prepared = [
            markers_of(transactional_id, txn)
            for transactional_id, txn in (
                (id_, transactions[id_]) for id_ in coordinator.state.open
            )
            if txn.state in PREPARED_STATES
        ]
        for effect in prepared:
            coordinator.pending[effect.transactional_id] = coordinator.partition.log_end_offset
        for effect in prepared:
            ending = Ending(self._runtime, self._markers, coordinator, effect, Reply(NONE), None)
            ending.write_markers()

    def is_served(self, partition: Partition) -> bool:
        """Whether its log has been read to the end, and its records have become the state."""
        served = self._served.get(partition.name.partition)
        return served is not None and served.partition is partition

    def before_compaction(self, partition: Partition) -> None:
        """A served log is about to lose records and tombstones: no checkpoint may rest on them."""
        self._served[partition.name.partition].checkpoint.before_compaction()

    def on_damage(self, partition: Partition) -> None:
        """Records of a served log have rotted: the state in memory holds what they said, and the next start needs it."""
        if self.is_served(partition):
            self._served[partition.name.partition].checkpoint.save_durably()

    def coordinators(self) -> list[CoordinatorPartition]:
        """The partitions that are served now."""
        return list(self._served.values())

    # -- finding the coordinator of an id
    # -------------------------------------------------------------------

    def partition_for(self, transactional_id: str) -> int | None:
        """The partition of `__transaction_state` that an id belongs to; None while there is no such topic."""
        count = self._metadata.partition_count(TRANSACTION_STATE_TOPIC)
        if not count:
            return None
        index = self._indexes.get((transactional_id, count))
        if index is None:
            index = coordinator_partition(transactional_id, count)
            if len(self._indexes) >= _REMEMBERED_IDS:
                self._indexes.clear()
            self._indexes[transactional_id, count] = index
        return index

    def _find(self, transactional_id: str) -> CoordinatorPartition | ErrorCode:
        if not transactional_id:
            return ErrorCode.INVALID_REQUEST
        index = self.partition_for(transactional_id)
        if index is None:
            return ErrorCode.NOT_COORDINATOR
        coordinator = self._served.get(index)
        if coordinator is not None:
            return coordinator
        loader = self._loading.get(index)
        if loader is None:
            return ErrorCode.NOT_COORDINATOR
        if loader.is_refused:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    # -- requests
    # -------------------------------------------------------------------------------------------

    def init_producer_id(self, event: InitProducerId, done: Done) -> None:
        """A producer takes its transactional id over."""
        error = refuse_init_producer_id(
            event,
            max_timeout_ms=self._config.transaction_max_timeout_ms,
            two_phase_commit_enabled=False,
        )
        if error is not NONE:
            done(Reply(error))
            return
        event = replace(event, transaction_version=self.transaction_version)
        self.submit(decide_init_producer_id, event, done)

    def fresh_producer_id(self, done: Done) -> None:
        """A producer without a transactional id: an id that nobody had, epoch 0, nothing logged."""

        def allocated(producer_id: int | None) -> None:
            done(
                _ALLOCATION_FAILED
                if producer_id is None
                else Reply(NONE, producer_id, producer_epoch=0)
            )

        self._controller.allocate_producer_id(allocated)

    def add_partitions(self, event: AddPartitions, done: Done) -> None:
        """Partitions join a transaction on the word of a client, or (TV2) of a broker that was written to."""
        if event.transaction_version >= 2:
            self._add_implicitly(event, None, done)
        else:
            self.submit(decide_add_partitions, event, done)

    def end_txn(self, event: EndTxn, done: Done) -> None:
        """A producer commits or aborts."""
        self.submit(decide_end_txn, event, done)

    def submit(
        self,
        decide: Callable[[CoordinatorState, Container[str], E, int], Decision],
        event: E,
        done: Done,
    ) -> None:
        """Decide, append, apply; the answer comes when it is durable."""
        coordinator = self._find(event.transactional_id)
        if not isinstance(coordinator, CoordinatorPartition):
            done(Reply(coordinator))
            return
        now_ms = self._runtime.clock.now_ms()
        decision = decide(coordinator.state, coordinator.pending, event, now_ms)
        if decision is RESERVE_PRODUCER_ID:
            self._reserve_producer_id(decide, event, done)
        elif decision.records:
            self._write(coordinator, decision, now_ms, done)
        else:
            assert decision.reply is not None
            done(decision.reply)

    # Not typed with E: mypyc compiles a function once, and not once for every kind of event.
    def _reserve_producer_id(
        self,
        decide: Callable[[CoordinatorState, Container[str], Any, int], Decision],
        event: Any,
        done: Done,
    ) -> None:
        """Gets the id that the decision needs, and asks again: by then everything may be different."""
        assert event.new_producer_id < 0, "one fresh producer id is enough for any decision"

        def allocated(producer_id: int | None) -> None:
            if producer_id is None:
                done(_ALLOCATION_FAILED)
            else:
                self.submit(decide, replace(event, new_producer_id=producer_id), done)

        self._controller.allocate_producer_id(allocated)

    def _write(
        self, coordinator: CoordinatorPartition, decision: Decision, now_ms: int, done: Done
    ) -> None:
        """Appends and applies the one record of a decision, and goes on when it is durable."""
        (record,) = decision.records
        reply = decision.reply
        assert reply is not None
        if decision.effects:
            effect = decision.effects[0]
            assert isinstance(effect, WriteMarkers)
            ending = Ending(self._runtime, self._markers, coordinator, effect, reply, done)
            ending.begin(record, now_ms)
            return
        end_offset = coordinator.append(record, now_ms)
        if isinstance(end_offset, Refusal):
            done(Reply(end_offset.error))
        elif coordinator.partition.high_watermark >= end_offset:
            _written(coordinator, record, end_offset, reply, done)
        else:
            self._runtime.when_durable(
                coordinator.partition,
                end_offset,
                partial(_written, coordinator, record, end_offset, reply, done),
            )

    # -- first writes: Produce and TxnOffsetCommit
    # ----------------------------------------------------------

    def verify(
        self,
        name: TopicPartition,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        *,
        add: bool,
        done: Callable[[ErrorCode], None],
    ) -> None:
        """The coordinator's word about a first write to one partition; see `verify_all`."""
        self.verify_all(
            [name],
            transactional_id,
            producer_id,
            producer_epoch,
            add=add,
            done=lambda errors: done(errors[0]),
        )

    def verify_all(
        self,
        names: Sequence[TopicPartition],
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        *,
        add: bool,
        done: Callable[[list[ErrorCode]], None],
    ) -> None:
        """Whether a transaction is open and has these partitions: one error per partition.

        With `add` (TV2) they are added, all with one record. The errors are the coordinator's own;
        what a producer is told is the caller's choice. Nothing is answered before the record that
        it rests on is durable: else a crash could leave data of a transaction that no log knows.
        """
        if add:
            event = AddPartitions(
                transactional_id,
                producer_id,
                producer_epoch,
                partitions_of(names),
                transaction_version=2,
            )
            self.add_partitions(event, lambda reply: done([reply.error] * len(names)))
        else:
            self._check(names, transactional_id, producer_id, producer_epoch, done)

    def _check(
        self,
        names: Sequence[TopicPartition],
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        done: Callable[[list[ErrorCode]], None],
    ) -> None:
        coordinator = self._find(transactional_id)
        if not isinstance(coordinator, CoordinatorPartition):
            done([coordinator] * len(names))
            return
        state = coordinator.state
        if transactional_id in coordinator.pending and is_ongoing(state, transactional_id):
            again = partial(self._check, names, transactional_id, producer_id, producer_epoch, done)
            coordinator.when_settled(transactional_id, again)
            return
        done(
            [
                verify_partition(state, transactional_id, producer_id, producer_epoch, topic, index)
                for topic, index in names
            ]
        )

    def _add_implicitly(self, event: AddPartitions, deadline_ms: int | None, done: Done) -> None:
        coordinator = self._find(event.transactional_id)
        if not isinstance(coordinator, CoordinatorPartition):
            done(Reply(coordinator))
            return
        now_ms = self._runtime.clock.now_ms()
        decision = decide_add_partitions(coordinator.state, coordinator.pending, event, now_ms)
        if decision.records:
            self._write(coordinator, decision, now_ms, done)
            return
        assert decision.reply is not None
        if deadline_ms is None:
            deadline_ms = now_ms + IMPLICIT_ADD_WAIT_MS
        again = partial(self._add_implicitly, event, deadline_ms, done)
        error = decision.reply.error
        if event.transactional_id not in coordinator.pending:
            done(decision.reply)
        elif error is NONE:
            # Added already, by a record that is not durable yet.
            coordinator.when_settled(event.transactional_id, again)
        elif error is ErrorCode.CONCURRENT_TRANSACTIONS and now_ms < deadline_ms:
            left_ms = deadline_ms - now_ms
            coordinator.when_settled(event.transactional_id, again, timeout_ms=left_ms)
        else:
            done(decision.reply)

    # -- views
    # ----------------------------------------------------------------------------------------------

    def describe(self, transactional_id: str) -> Description:
        """Everything known of one id."""
        coordinator = self._find(transactional_id)
        if not isinstance(coordinator, CoordinatorPartition):
            return Description(coordinator, transactional_id)
        ending = coordinator.endings.get(transactional_id)
        unmarked = None if ending is None else partitions_of(list(ending.unmarked))
        return describe_transaction(coordinator.state, transactional_id, unmarked)

    @property
    def is_loading(self) -> bool:
        """Whether there are ids that nobody here can tell of yet."""
        return any(not loader.is_refused for loader in self._loading.values())

    def list(self, filters: Filters) -> Iterator[Iterator[tuple[str, TransactionMetadata]]]:
        """The ids that pass the filters, of one partition after the other: each wants to be read in one turn."""
        now_ms = self._runtime.clock.now_ms()
        for coordinator in self.coordinators():
            yield list_transactions(coordinator.state, filters, now_ms)


def _written(
    coordinator: CoordinatorPartition,
    record: LogRecord,
    end_offset: int,
    reply: Reply,
    done: Done,
) -> None:
    """The record of a decision is durable: the answer that rests on it may be given."""
    if coordinator.closed:
        done(Reply(ErrorCode.NOT_COORDINATOR))
    else:
        coordinator.settle(record.transactional_id, end_offset)
        done(reply)


def is_ongoing(state: CoordinatorState, transactional_id: str) -> bool:
    """Whether the id has an open transaction."""
    txn = state.transactions.get(transactional_id)
    return txn is not None and txn.state == State.ONGOING


def partitions_of(names: Sequence[TopicPartition]) -> Partitions:
    """Partitions by topic, as records have them."""
    if len(names) == 1:  # As nearly always: a write goes to one partition.
        return {names[0][0]: (names[0][1],)}
    indexes: dict[str, set[int]] = {}
    for topic, index in names:
        indexes.setdefault(topic, set()).add(index)
    return {topic: tuple(sorted(found)) for topic, found in indexes.items()}
