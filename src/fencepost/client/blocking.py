"""The blocking client, for Spark executors, tools and tests: plain sockets and plain calls.

    with connect("localhost:9092", {"client.id": "refunds"}) as cluster:
        identity = cluster.init_producer_id("refunds", timeout_ms=60_000)
        with cluster.writer(identity) as writer:
            writer.write_records(TopicPartition("out", 0), [Record(value=b"...")])
            writer.flush()
        cluster.txn_offset_commit(identity, "group", {TopicPartition("in", 0): CommittedOffset(42)})
        identity = cluster.end_txn(identity, commit=True)

This is a thin shell: every method runs one procedure on a `Network`. A lock lets one thread in at a
time.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Self, TypeVar

from fencepost.base.ids import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TopicPartition
from fencepost.base.system import SystemRandomness
from fencepost.client import admin, configs, groups, moves, reading, transactions
from fencepost.client.calls import AnyBroker, BrokerById, Core, call_one
from fencepost.client.failures import RetriesExhausted
from fencepost.client.options import ClientOptions, Endpoint, read_options
from fencepost.client.pump import new_writer, pump
from fencepost.client.reaching import reach
from fencepost.client.reading import EARLIEST, LATEST, ListedOffset
from fencepost.client.sockets import MonotonicClock, Network
from fencepost.client.steps import Steps, run
from fencepost.client.writer import ALL_REPLICAS
from fencepost.records.builder import build_batch
from fencepost.records.compression import Codec

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from fencepost.base.seams import Buffer
    from fencepost.client.admin import (
        ActiveProducer,
        ClusterView,
        ListedTransaction,
        NewTopic,
        ResourceType,
        TopicView,
        TransactionView,
    )
    from fencepost.client.configs import Setting
    from fencepost.client.fetched import FetchedPartition
    from fencepost.client.groups import CommittedOffset
    from fencepost.client.routes import CoordinatorKey
    from fencepost.client.transactions import ProducerIdentity
    from fencepost.client.writer import Writer, Written
    from fencepost.records.opened import Record
    from fencepost.wire.apis import ApiKey

T = TypeVar("T")


def connect(bootstrap_servers: str, options: Mapping[str, Any] | None = None) -> Cluster:
    """Returns a client of the cluster behind these brokers.

    It sends nothing before the first call.
    """
    return Cluster(read_options(bootstrap_servers, options))


class Cluster:
    """A cluster as one client sees it."""

    def __init__(self, options: ClientOptions) -> None:
        clock = MonotonicClock()
        randomness = SystemRandomness()
        self.options = options
        self._core = Core(options, clock, randomness)
        self._network = Network(options, clock, randomness)
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        servers = ",".join(map(str, self.options.bootstrap))
        return f"<cluster {servers}, {self.options.security_protocol}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes all connections."""
        with self._lock:
            self._network.close()

    @property
    def core(self) -> Core:
        """The first argument of every procedure."""
        return self._core

    def run(self, procedure: Steps[T]) -> T:
        """Runs a procedure to its end."""
        with self._lock:
            return run(procedure, self._network)

    def send_request(self, api: ApiKey, request: Any, node_id: int | None = None) -> Any:
        """Returns the reply to one request, whatever its error code. Retries lost requests only."""
        place = AnyBroker() if node_id is None else BrokerById(node_id)
        return self.run(call_one(self._core, place, api, request, lambda _: (0, None))).form

    def reach(self) -> Endpoint:
        """Returns a bootstrap server that has answered; NoBrokerAnswers says why none did.

        Optional: every call looks for a broker by itself, until its deadline. This one fails at
        once if no server accepts a connection.
        """
        return self.run(reach(self._core))

    # Producers and transactions.

    def transaction_version(self) -> int:
        """Returns the cluster's finalised level of transaction.version."""
        return self.run(transactions.learn_transaction_version(self._core))

    def init_producer_id(
        self,
        transactional_id: str | None,
        timeout_ms: int = 60_000,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
    ) -> ProducerIdentity:
        """Gets a new epoch for this id.

        This ends its open transaction and fences earlier producers.
        """
        return self.run(
            transactions.init_producer_id(
                self._core,
                transactional_id,
                timeout_ms,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
            )
        )

    def writer(
        self, identity: ProducerIdentity, *, acks: int = ALL_REPLICAS
    ) -> TransactionalWriter:
        """Returns a writer with this identity. Its sequences start at 0 in every partition.

        So use an epoch for one writer only: after EndTxn continue with the identity that TV2
        returned, and in TV1 get a new one from `init_producer_id`.
        """
        return TransactionalWriter(self, self._core, self._network, identity, acks)

    def txn_offset_commit(
        self,
        identity: ProducerIdentity,
        group: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
    ) -> None:
        """Commits offsets of a group as part of the transaction."""
        self.run(transactions.txn_offset_commit(self._core, identity, group, offsets))

    def end_txn(self, identity: ProducerIdentity, *, commit: bool) -> ProducerIdentity:
        """Commits or aborts, and returns the identity for the next transaction.

        Raises UnknownOutcome if it may have taken effect or not.
        """
        return self.run(transactions.end_txn(self._core, identity, commit=commit))

    # Reading.

    def list_offsets(
        self, times: Mapping[TopicPartition, int], *, isolation: str | None = None
    ) -> dict[TopicPartition, ListedOffset]:
        """Looks up offsets by timestamp, or by EARLIEST and LATEST."""
        return self.run(reading.list_offsets(self._core, times, isolation=isolation))

    def fetch(
        self,
        offsets: Mapping[TopicPartition, int],
        *,
        isolation: str | None = None,
        max_wait_ms: int | None = None,
        min_bytes: int | None = None,
        max_bytes: int | None = None,
        partition_max_bytes: int | None = None,
        topic_ids: Mapping[str, bytes] | None = None,
    ) -> dict[TopicPartition, FetchedPartition]:
        """Fetches once: sealed batches, and the aborted transactions that hide some of them."""
        return self.run(
            reading.fetch(
                self._core,
                offsets,
                isolation=isolation,
                max_wait_ms=max_wait_ms,
                min_bytes=min_bytes,
                max_bytes=max_bytes,
                partition_max_bytes=partition_max_bytes,
                topic_ids=topic_ids,
            )
        )

    def records(
        self,
        partition: TopicPartition,
        start: int | None = None,
        end: int | None = None,
        *,
        isolation: str | None = None,
    ) -> Iterator[Record]:
        """Yields the visible records of [start, end). Default: from the first to the current last.

        Raises RetriesExhausted if no progress is made for default.api.timeout.ms: the records are
        not written yet, or an open transaction holds back the last stable offset.
        """
        position = self._offset(partition, EARLIEST, isolation) if start is None else start
        stop = self._offset(partition, LATEST, isolation) if end is None else end
        while position < stop:
            fetched = self._fetch_on(partition, position, isolation)
            for record in fetched.records():
                if record.offset >= stop:
                    return
                yield record
            position = fetched.next_offset

    def _fetch_on(
        self, partition: TopicPartition, position: int, isolation: str | None
    ) -> FetchedPartition:
        """Fetches until a fetch makes progress."""
        timeout_ms = self.options.default_api_timeout_ms
        end_ms = self._core.clock.now_ms() + timeout_ms
        while True:
            fetched = self.fetch({partition: position}, isolation=isolation)[partition]
            if fetched.next_offset > position:
                return fetched
            if self._core.clock.now_ms() >= end_ms:
                what = f"reading on from offset {position} of {partition}"
                raise RetriesExhausted(what, timeout_ms, _standstill(fetched))

    def _offset(self, partition: TopicPartition, time_ms: int, isolation: str | None) -> int:
        return self.list_offsets({partition: time_ms}, isolation=isolation)[partition].offset

    # Groups.

    def offset_fetch(
        self,
        group: str,
        partitions: Collection[TopicPartition] | None = None,
        *,
        require_stable: bool = True,
    ) -> dict[TopicPartition, CommittedOffset]:
        """Returns a group's committed offsets.

        With `require_stable`, waits for open transactions.
        """
        return self.run(
            groups.offset_fetch(self._core, group, partitions, require_stable=require_stable)
        )

    def offset_commit(self, group: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Commits offsets for a group without members, outside any transaction."""
        self.run(groups.offset_commit(self._core, group, offsets))

    # Administration.

    def metadata(
        self,
        topics: Collection[str] | None = None,
        *,
        missing_ok: bool = False,
        known_missing: Collection[str] = (),
    ) -> ClusterView:
        """Returns the brokers and these topics, or all. `missing_ok` leaves out missing topics."""
        return self.run(
            admin.metadata(self._core, topics, missing_ok=missing_ok, known_missing=known_missing)
        )

    def find_topic(self, name: str) -> TopicView | None:
        """Returns a topic, or None at once if the answering broker does not know it (yet)."""
        return self.run(admin.find_topic(self._core, name))

    def describe_cluster(self) -> ClusterView:
        """Returns the brokers of the cluster."""
        return self.run(admin.describe_cluster(self._core))

    def create_topics(self, topics: Collection[NewTopic], *, exist_ok: bool = False) -> None:
        """Creates topics and waits for their leaders."""
        self.run(admin.create_topics(self._core, topics, exist_ok=exist_ok))

    def delete_topics(self, names: Collection[str]) -> None:
        """Deletes topics."""
        self.run(admin.delete_topics(self._core, names))

    def describe_configs(
        self, resource: ResourceType, name: str, keys: Collection[str] | None = None
    ) -> dict[str, Setting]:
        """Returns the settings of a topic or broker."""
        return self.run(configs.describe_settings(self._core, resource, name, keys))

    def describe_producers(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, list[ActiveProducer]]:
        """Returns the active producers of these partitions, with their open transactions."""
        return self.run(admin.describe_producers(self._core, partitions))

    def list_transactions(
        self,
        *,
        states: Collection[str] = (),
        producer_ids: Collection[int] = (),
        longer_than_ms: int = -1,
        pattern: str | None = None,
    ) -> list[ListedTransaction]:
        """Lists the transactional ids of all coordinators."""
        return self.run(
            admin.list_transactions(
                self._core,
                states=states,
                producer_ids=producer_ids,
                longer_than_ms=longer_than_ms,
                pattern=pattern,
            )
        )

    def describe_transactions(
        self, transactional_ids: Collection[str]
    ) -> dict[str, TransactionView | None]:
        """Describes these transactional ids; None for an id that is unknown."""
        return self.run(admin.describe_transactions(self._core, transactional_ids))

    def log_dirs(self, node_id: int | None = None) -> list[str]:
        """Returns the data directories of a broker, by default of any that answers."""
        return self.run(admin.log_dirs(self._core, node_id))

    # Leaders.

    def find_coordinator(self, key: CoordinatorKey) -> int:
        """Returns the id of the broker that coordinates a transactional id or a group."""
        return self.run(moves.find_coordinator(self._core, key))

    def move_leader(
        self, partition: TopicPartition, to: int, *, timeout_ms: int | None = None
    ) -> None:
        """Makes a broker the leader of a partition; returns when it answers."""
        self.run(moves.move_leader(self._core, partition, to, timeout_ms=timeout_ms))

    def move_coordinator(
        self, key: CoordinatorKey, to: int, *, timeout_ms: int | None = None
    ) -> None:
        """Makes a broker the coordinator of an id; returns when it answers."""
        self.run(moves.move_coordinator(self._core, key, to, timeout_ms=timeout_ms))


def _standstill(fetched: FetchedPartition) -> str:
    words = f"nothing new; the high watermark is {fetched.high_watermark}"
    if 0 <= fetched.last_stable_offset < fetched.high_watermark:
        words += (
            ", and an open transaction holds the last stable offset at "
            f"{fetched.last_stable_offset}"
        )
    return words


class TransactionalWriter:
    """Writes sealed batches of one producer id and epoch.

    Leaving the `with` block does not flush.
    """

    def __init__(
        self,
        cluster: Cluster,
        core: Core,
        network: Network,
        identity: ProducerIdentity,
        acks: int = ALL_REPLICAS,
    ) -> None:
        self._cluster = cluster
        self._core = core
        self._network = network
        self._writer: Writer = new_writer(core, identity, acks)
        self._codec = Codec[core.options.compression_type.upper()]

    def __repr__(self) -> str:
        return repr(self._writer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def identity(self) -> ProducerIdentity:
        """The producer id and epoch of every batch."""
        return self._writer.identity

    def next_sequence(self, partition: TopicPartition) -> int:
        """Returns the base sequence that the partition's next batch must have."""
        return self._writer.queue_of(partition).next_sequence

    @property
    def unacknowledged_bytes(self) -> int:
        """How many bytes are not acknowledged yet."""
        return self._writer.unacknowledged_bytes

    def write(
        self, partition: TopicPartition, batch: Buffer, done: Callable[[], None] | None = None
    ) -> None:
        """Writes a sealed batch; waits for buffer space. Its bytes must not change until `done`."""
        self.put(partition, batch, done)
        self._pump(self._core.options.buffer_bytes)

    def put(
        self, partition: TopicPartition, batch: Buffer, done: Callable[[], None] | None = None
    ) -> None:
        """Queues a sealed batch. The next `write` or `flush` sends all queued batches together."""
        self._writer.accept(partition, batch, self._core.clock.now_ms(), done)

    def travels_with_others(self, partition: TopicPartition) -> bool:
        """Whether a batch for this partition would share its request with a queued one."""
        leader = self._core.routes.leader
        mine = leader(partition)
        return mine is not None and any(
            leader(queue.partition) == mine for queue in self._writer.busy_queues()
        )

    def poll(self) -> None:
        """Handles the answers that have arrived and sends what they allow, without waiting."""
        self._pump(self._core.options.buffer_bytes)

    def write_records(
        self,
        partition: TopicPartition,
        records: Sequence[Record],
        done: Callable[[], None] | None = None,
    ) -> None:
        """Seals these records into one batch with compression.type, and writes it."""
        identity = self.identity
        batch = build_batch(
            records,
            timestamp_ms=time.time_ns() // 1_000_000,
            codec=self._codec,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            base_sequence=self.next_sequence(partition),
            transactional=identity.transactional_id is not None,
        )
        self.write(partition, batch, done)

    def flush(self) -> dict[TopicPartition, Written]:
        """Waits until everything is acknowledged. Returns what was written to each partition."""
        self._pump(0)
        return self._writer.results()

    def close(self) -> None:
        """Drops what is not acknowledged.

        It may still arrive: abort the transaction or fence it.
        """
        self._network.forget(tuple(self._writer.shipments))
        self._writer.shipments.clear()

    def _pump(self, until_bytes: int) -> None:
        self._cluster.run(pump(self._core, self._writer, until_bytes))
