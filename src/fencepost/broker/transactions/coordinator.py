"""The transaction coordinator of one node: requests, decisions, records and replies.

Theory of operation
-------------------
The node serves the partitions of `__transaction_state` that `load` and `unload` name. A request
finds the partition of its transactional id. It is answered NOT_COORDINATOR when another node has
that partition, COORDINATOR_LOAD_IN_PROGRESS while its log is being read, and
COORDINATOR_NOT_AVAILABLE when its log is damaged. Otherwise every request takes the same steps:
decide, append, apply at once, wait until the record is durable, answer. The id is pending while it
waits. In durability `os` a record is durable with its append, so these steps run in one call,
without a callback.

- `partition.py`: one partition: its state, its log, its pending ids.
- `ending.py`: from the Prepare record through the markers to the Complete record.
- `markers.py`: markers, appended to the partitions of a transaction, or sent to their leaders.
- `first_writes.py`: questions about first writes, if another node is the coordinator.
- `timeouts.py`: timeouts and expiration.

A callback (durability, a producer id, a timer) may come after its partition was given away or
loaded again. So every callback checks whether its partition is closed. If it is, the client is
answered NOT_COORDINATOR, and the next owner finishes what the log says.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, TypeVar

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import (
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
    coordinator_partition,
)
from fencepost.base.limits import IMPLICIT_ADD_WAIT_MS
from fencepost.base.refusal import Refusal
from fencepost.broker.coordinators.log_loader import LogLoader
from fencepost.broker.metrics.counters import Cause
from fencepost.broker.transactions.ending import Ending
from fencepost.broker.transactions.first_writes import FirstWrites
from fencepost.broker.transactions.journal import (
    BY_CLIENT,
    RECOVERED,
    Client,
    Journal,
    Origin,
    client_of,
)
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
    Decision,
    EndTxn,
    InitProducerId,
    LogRecord,
    Reply,
    TimedOut,
    WriteMarkers,
)
from fencepost.coordinator.txn.prepare import PREPARED_STATES, markers_of
from fencepost.coordinator.txn.states import State
from fencepost.coordinator.txn.views import (
    CONNECTED,
    GONE,
    Description,
    Filters,
    describe_transaction,
    list_transactions,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Sequence

    from fencepost.broker.context import Context
    from fencepost.broker.peers import Answer, FirstWrite, Peers
    from fencepost.broker.runtime import Runtime
    from fencepost.broker.settings.config import BrokerConfig
    from fencepost.broker.transactions.markers import MarkerWriter
    from fencepost.broker.transactions.producer_ids import ProducerIds
    from fencepost.coordinator.metadata.state import MetadataState
    from fencepost.coordinator.txn.apply import CoordinatorState
    from fencepost.partition.partition import Partition
    from fencepost.records.transaction_log import Partitions, TransactionMetadata

    Done = Callable[[Reply], None]
    E = TypeVar("E", InitProducerId, AddPartitions, EndTxn, TimedOut)

log = logging.getLogger(__name__)

NONE: Final = ErrorCode.NONE
TRANSACTION_VERSION: Final = 2
"""The level that ApiVersions advertises, unless the metadata log has another."""

_ALLOCATION_FAILED: Final = Reply(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
"""No producer id could be allocated. Clients retry this code, but not a timeout (KAFKA-14417)."""


_REMEMBERED_IDS: Final = 8192
"""Java's string hash takes microseconds in Python, and every request repeats its id."""


class TransactionCoordinator:
    """The transaction coordinator of one node."""

    def __init__(
        self,
        runtime: Runtime,
        config: BrokerConfig,
        metadata: MetadataState,
        producer_ids: ProducerIds,
        markers: MarkerWriter,
        peers: Peers,
    ) -> None:
        self._runtime = runtime
        self._config = config
        self._metadata = metadata
        self._producer_ids = producer_ids
        self._markers = markers
        self.journal = Journal(runtime)
        self._served: dict[int, CoordinatorPartition] = {}
        self._loading: dict[int, LogLoader] = {}
        """Loads in progress, and those that were refused because the log is damaged."""
        self._indexes: dict[tuple[str, int], int] = {}
        """What `partition_for` has computed, by id and number of partitions."""
        self.clock = TransactionClock(runtime, config, self)
        self._first_writes = (
            FirstWrites(runtime, metadata, config.node_id, peers, self)
            if peers.is_cluster
            else None
        )

    @property
    def transaction_version(self) -> int:
        """The level of the cluster, for aborts by the coordinator itself.

        Requests of clients carry their own.
        """
        return self._metadata.features.get("transaction.version", TRANSACTION_VERSION)

    def close(self) -> None:
        """Stops serving; the next start finishes from the log what is unfinished."""
        self.clock.stop()
        for index in [*self._served, *self._loading]:
            self.unload(index)

    # -- which partitions are served --------------------------------------------------------------

    def load(self, partition_index: int, partition: Partition, *, held: bool = False) -> None:
        """Reads the log of a partition, and serves it from then on.

        With `held` the log is read when this returns, and `resume` finishes what was found;
        StorageError if it cannot be read.
        """
        self.unload(partition_index)
        coordinator = CoordinatorPartition(self._runtime, partition_index, partition, self.journal)
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
        """Stops serving a partition; to be called before the partition is closed."""
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
        """Finishes what a load found: prepared transactions are completed, expired ids removed.

        Open transactions continue until their timeout, so that a producer does not notice that its
        coordinator has moved. With `transaction.recovery.ongoing=abort` they are aborted.
        """
        self.clock.start()
        self._finish_prepared(coordinator)
        if self._config.transaction_recovery_ongoing == "abort":
            self.clock.abort_all(coordinator)
        self.clock.expire(coordinator)

    def _finish_prepared(self, coordinator: CoordinatorPartition) -> None:
        """Writes the markers, perhaps again, of every prepared transaction."""
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
            ending = Ending(
                self._runtime, self._markers, coordinator, effect, Reply(NONE), None, RECOVERED
            )
            ending.write_markers()

    def is_served(self, partition: Partition) -> bool:
        """Whether its log has been read to the end."""
        served = self._served.get(partition.name.partition)
        return served is not None and served.partition is partition

    def before_compaction(self, partition: Partition) -> None:
        """Prepares a served log for compaction: no checkpoint may need the removed tombstones."""
        self._served[partition.name.partition].checkpoint.before_compaction()

    def on_damage(self, partition: Partition) -> None:
        """Saves the state of a served log that was found damaged: the next start needs it."""
        if self.is_served(partition):
            self._served[partition.name.partition].checkpoint.save_durably()

    def coordinators(self) -> list[CoordinatorPartition]:
        """The partitions that are served now."""
        return list(self._served.values())

    # -- finding the coordinator of an id ---------------------------------------------------------

    def partition_for(self, transactional_id: str) -> int | None:
        """The partition of `__transaction_state` of an id; None while the topic does not exist."""
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

    # -- requests ---------------------------------------------------------------------------------

    def init_producer_id(
        self, event: InitProducerId, done: Done, client: Client | None = None
    ) -> None:
        """InitProducerId with a transactional id: fences the producer that had it before."""
        error = refuse_init_producer_id(
            event,
            max_timeout_ms=self._config.transaction_max_timeout_ms,
            two_phase_commit_enabled=False,
        )
        if error is not NONE:
            done(Reply(error))
            return
        event = replace(event, transaction_version=self.transaction_version)
        # A producer that sends its identity recovers from an error: the abort is its own.
        is_new = event.producer_id == NO_PRODUCER_ID
        origin = Origin(Cause.NEWER_INSTANCE, client) if is_new else BY_CLIENT
        if event.administrator:
            origin = Origin(Cause.ADMINISTRATOR, client)
        answered = self._noting_owner(event, client, origin, done)
        self.submit(decide_init_producer_id, event, answered, origin)

    def _noting_owner(
        self, event: InitProducerId, client: Client | None, origin: Origin, done: Done
    ) -> Done:
        """Notes who has the id from now on, and logs that the client before it is fenced."""
        transactional_id = event.transactional_id
        coordinator = self._find(transactional_id)
        if not isinstance(coordinator, CoordinatorPartition):
            return done
        before = coordinator.state.transactions.get(transactional_id)
        # Not a nested function: compiled ones refer to themselves, and only the collector frees
        # such cycles.
        return partial(self._initialised, coordinator, event, before, client, origin, done)

    def _initialised(
        self,
        coordinator: CoordinatorPartition,
        event: InitProducerId,
        before: TransactionMetadata | None,
        client: Client | None,
        origin: Origin,
        done: Done,
        reply: Reply,
    ) -> None:
        if reply.error is NONE:
            transactional_id = event.transactional_id
            owner = None if event.administrator else client
            is_fence, last = coordinator.take_over(transactional_id, owner)
            if event.administrator:
                coordinator.fenced.add(transactional_id)  # Nobody has the new epoch.
            if is_fence and before is not None and event.producer_id == NO_PRODUCER_ID:
                self.journal.taken_over(transactional_id, before, last, origin)
        done(reply)

    def fresh_producer_id(self, done: Done) -> None:
        """InitProducerId without a transactional id: an unused producer id, epoch 0, no record."""

        def allocated(producer_id: int | None) -> None:
            done(
                _ALLOCATION_FAILED
                if producer_id is None
                else Reply(NONE, producer_id, producer_epoch=0)
            )

        self._producer_ids.allocate(allocated)

    def add_partitions(
        self, event: AddPartitions, done: Done, context: Context | None = None
    ) -> None:
        """AddPartitionsToTxn of a client, or (TV2) of the broker that received a first write."""
        if event.transaction_version >= 2:
            self._add_implicitly(event, None, done)
        else:
            self.submit(decide_add_partitions, event, done, BY_CLIENT, context)

    def end_txn(self, event: EndTxn, done: Done, context: Context | None = None) -> None:
        """EndTxn: a producer commits or aborts, or an administrator in its name."""
        if event.administrator:
            assert context is not None
            origin = Origin(Cause.ADMINISTRATOR, client_of(context))
            self.submit(decide_end_txn, event, done, origin)
        else:
            self.submit(decide_end_txn, event, done, BY_CLIENT, context)

    def submit(
        self,
        decide: Callable[[CoordinatorState, Container[str], E, int], Decision],
        event: E,
        done: Done,
        origin: Origin = BY_CLIENT,
        context: Context | None = None,
    ) -> None:
        """Decides, appends and applies; answers when the record is durable.

        `origin` is why a transaction ends, if this ends one; `context` is the producer's request,
        which tells where the producer is connected.
        """
        coordinator = self._find(event.transactional_id)
        if not isinstance(coordinator, CoordinatorPartition):
            done(Reply(coordinator))
            return
        now_ms = self._runtime.clock.now_ms()
        decision = decide(coordinator.state, coordinator.pending, event, now_ms)
        if decision is RESERVE_PRODUCER_ID:
            self._reserve_producer_id(decide, event, done, origin)
        elif decision.records:
            if context is not None:
                _note_client(coordinator, event.transactional_id, context)
            self._write(coordinator, decision, now_ms, done, origin)
        else:
            assert decision.reply is not None
            done(decision.reply)

    # Not typed with E: mypyc compiles a function once, and not once for every kind of event.
    def _reserve_producer_id(
        self,
        decide: Callable[[CoordinatorState, Container[str], Any, int], Decision],
        event: Any,
        done: Done,
        origin: Origin,
    ) -> None:
        """Allocates a producer id, and decides again: the state may have changed since."""
        assert event.new_producer_id < 0, "one fresh producer id is enough for any decision"

        def allocated(producer_id: int | None) -> None:
            if producer_id is None:
                done(_ALLOCATION_FAILED)
            else:
                again = replace(event, new_producer_id=producer_id)
                self.submit(decide, again, done, origin)

        self._producer_ids.allocate(allocated)

    def _write(
        self,
        coordinator: CoordinatorPartition,
        decision: Decision,
        now_ms: int,
        done: Done,
        origin: Origin = BY_CLIENT,
    ) -> None:
        """Appends and applies the record of a decision; continues when it is durable."""
        (record,) = decision.records
        reply = decision.reply
        assert reply is not None
        if decision.effects:
            effect = decision.effects[0]
            assert isinstance(effect, WriteMarkers)
            ending = Ending(self._runtime, self._markers, coordinator, effect, reply, done, origin)
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

    # -- first writes: Produce and TxnOffsetCommit ------------------------------------------------

    def verify(self, write: FirstWrite, done: Answer) -> None:
        """Checks that a transaction is open and has these partitions: one error per partition.

        With `add` (TV2) it adds them, all with one record. The errors are the coordinator's; the
        caller translates them for the producer. The answer waits until the record with the
        partitions is durable: otherwise a crash could leave data of a transaction that is in no
        log. In a cluster another node may be the coordinator; then it is asked.
        """
        answered = partial(self._verified, perf_counter(), done)
        if self._first_writes is None or self._is_here(write.transactional_id):
            self.verify_here(write, answered)
        else:
            self._first_writes.ask(write, answered)

    def _verified(self, asked_at: float, done: Answer, errors: list[ErrorCode]) -> None:
        self.journal.verified(errors, perf_counter() - asked_at)
        done(errors)

    def _is_here(self, transactional_id: str) -> bool:
        """Whether this node serves an id; an empty one is refused anywhere."""
        return not transactional_id or self.partition_for(transactional_id) in self._served

    def verify_here(self, write: FirstWrite, done: Answer) -> None:
        """The same, if this node is the coordinator; otherwise NOT_COORDINATOR."""
        names, transactional_id = write.names, write.transactional_id
        producer_id, producer_epoch = write.producer_id, write.producer_epoch
        if write.add:
            event = AddPartitions(
                transactional_id, producer_id, producer_epoch, partitions_of(names), 2
            )
            self._add_implicitly(event, None, lambda reply: done([reply.error] * len(names)))
            return
        coordinator = self._find(transactional_id)
        if not isinstance(coordinator, CoordinatorPartition):
            done([coordinator] * len(names))
            return
        state = coordinator.state
        if transactional_id in coordinator.pending and is_ongoing(state, transactional_id):
            again = partial(self.verify_here, write, done)
            coordinator.when_settled(transactional_id, again)
            return
        errors = []
        for name in names:
            topic, index = name
            errors.append(
                verify_partition(state, transactional_id, producer_id, producer_epoch, topic, index)
            )
        done(errors)

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
        steady_ms = self._runtime.steady_ms()
        if deadline_ms is None:
            deadline_ms = steady_ms + IMPLICIT_ADD_WAIT_MS
        again = partial(self._add_implicitly, event, deadline_ms, done)
        error = decision.reply.error
        if event.transactional_id not in coordinator.pending:
            done(decision.reply)
        elif error is NONE:
            # Already added, by a record that is not durable yet.
            coordinator.when_settled(event.transactional_id, again)
        elif error is ErrorCode.CONCURRENT_TRANSACTIONS and steady_ms < deadline_ms:
            left_ms = deadline_ms - steady_ms
            coordinator.when_settled(event.transactional_id, again, timeout_ms=left_ms)
        else:
            done(decision.reply)

    # -- views ------------------------------------------------------------------------------------

    def describe(self, transactional_id: str) -> Description:
        """DescribeTransactions: the transaction of one id."""
        coordinator = self._find(transactional_id)
        if not isinstance(coordinator, CoordinatorPartition):
            return Description(coordinator, transactional_id)
        ending = coordinator.endings.get(transactional_id)
        unmarked = None if ending is None else partitions_of(list(ending.unmarked))
        found = describe_transaction(coordinator.state, transactional_id, unmarked)
        client = coordinator.clients.get(transactional_id)
        if client is None:
            return found
        gone_at_ms = 0 if client.presence is None else client.presence.gone_at_ms
        return found._replace(
            client_id=client.client_id,
            client_host=client.host,
            client_connection=GONE if gone_at_ms else CONNECTED,
            client_gone_at_ms=gone_at_ms or NO_TIMESTAMP,
        )

    @property
    def open_count(self) -> int:
        """The number of transactions that are not complete."""
        return sum(len(coordinator.state.open) for coordinator in self._served.values())

    @property
    def is_loading(self) -> bool:
        """Whether a partition is still being loaded."""
        return any(not loader.is_refused for loader in self._loading.values())

    def list(self, filters: Filters) -> Iterator[Iterator[tuple[str, TransactionMetadata]]]:
        """The ids that pass the filters, one iterator per partition; read each in one turn."""
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
    """The record of a decision is durable: answers."""
    if coordinator.closed:
        done(Reply(ErrorCode.NOT_COORDINATOR))
    else:
        coordinator.settle(record.transactional_id, end_offset)
        done(reply)


def _note_client(
    coordinator: CoordinatorPartition, transactional_id: str, context: Context
) -> None:
    """Notes over which connection the producer of an id speaks: clients open new ones."""
    known = coordinator.clients.get(transactional_id)
    if known is None or known.presence is not context.presence:
        coordinator.remember(transactional_id, client_of(context))


def is_ongoing(state: CoordinatorState, transactional_id: str) -> bool:
    """Whether the id has an open transaction."""
    txn = state.transactions.get(transactional_id)
    return txn is not None and txn.state == State.ONGOING


def partitions_of(names: Sequence[TopicPartition]) -> Partitions:
    """Partitions by topic, as in records."""
    if len(names) == 1:  # Nearly always: a write goes to one partition.
        return {names[0][0]: (names[0][1],)}
    indexes: dict[str, set[int]] = {}
    for topic, index in names:
        indexes.setdefault(topic, set()).add(index)
    return {topic: tuple(sorted(found)) for topic, found in indexes.items()}
