"""The blocking client, for Spark executors, tools and tests: plain sockets and plain calls.

    with connect("localhost:9092", {"client.id": "refunds"}) as cluster:
        identity = cluster.init_producer_id("refunds", timeout_ms=60_000)
        with cluster.writer(identity) as writer:
            writer.write_records(TopicPartition("out", 0), [Record(value=b"...")])
            writer.flush()
        cluster.txn_offset_commit(identity, "group", {TopicPartition("in", 0): CommittedOffset(42)})
        identity = cluster.end_txn(identity, commit=True)

This is a thin shell: every method runs one procedure on a `Network`, and `cluster.run` runs any
other one. A lock lets one thread in at a time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from fencepost.base.ids import TopicPartition
from fencepost.base.seams import Buffer
from fencepost.base.system import SystemRandomness
from fencepost.client import admin, configs, groups, moves, reaching, reading, transactions
from fencepost.client.calls import AnyBroker, BrokerById, Core, call_one
from fencepost.client.failures import RetriesExhausted
from fencepost.client.fetched import FetchedPartition
from fencepost.client.options import ClientOptions, read_options
from fencepost.client.pump import new_writer, pump
from fencepost.client.reading import EARLIEST, LATEST
from fencepost.client.sockets import MonotonicClock, Network
from fencepost.client.steps import Steps, run
from fencepost.client.transactions import ProducerIdentity
from fencepost.client.writer import ALL_REPLICAS, Writer, Written
from fencepost.records.builder import build_batch
from fencepost.records.compression import Codec
from fencepost.records.opened import Record
from fencepost.wire.apis import ApiKey

T = TypeVar("T")
P = ParamSpec("P")


def connect(bootstrap_servers: str, options: Mapping[str, Any] | None = None) -> Cluster:
    """Returns a client of the cluster behind these brokers.

    It sends nothing before the first call.
    """
    return Cluster(read_options(bootstrap_servers, options))


def _blocking(
    procedure: Callable[Concatenate[Core, P], Steps[T]],
) -> Callable[Concatenate[Cluster, P], T]:
    """Makes a procedure a method of `Cluster`, with the same arguments."""

    @wraps(procedure)
    def call(cluster: Cluster, /, *given: P.args, **named: P.kwargs) -> T:
        return cluster.run(procedure(cluster.core, *given, **named))

    return call


class Cluster:
    """A cluster as one client sees it. Most methods are the procedures of the same name."""

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

    reach = _blocking(reaching.reach)
    """Optional: every call looks for a broker by itself, until its deadline. This one fails at once
    if no server accepts a connection."""

    # Producers and transactions.

    transaction_version = _blocking(transactions.learn_transaction_version)
    init_producer_id = _blocking(transactions.init_producer_id)
    txn_offset_commit = _blocking(transactions.txn_offset_commit)
    end_txn = _blocking(transactions.end_txn)

    def writer(
        self, identity: ProducerIdentity, *, acks: int = ALL_REPLICAS
    ) -> TransactionalWriter:
        """Returns a writer with this identity. Its sequences start at 0 in every partition.

        So use an epoch for one writer only: after EndTxn continue with the identity that TV2
        returned, and in TV1 get a new one from `init_producer_id`.
        """
        return TransactionalWriter(self, self._core, self._network, identity, acks)

    # Reading.

    list_offsets = _blocking(reading.list_offsets)
    fetch = _blocking(reading.fetch)

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

    offset_fetch = _blocking(groups.offset_fetch)
    offset_commit = _blocking(groups.offset_commit)

    # Administration.

    metadata = _blocking(admin.metadata)
    find_topic = _blocking(admin.find_topic)
    describe_cluster = _blocking(admin.describe_cluster)
    create_topics = _blocking(admin.create_topics)
    delete_topics = _blocking(admin.delete_topics)
    describe_configs = _blocking(configs.describe_settings)
    describe_producers = _blocking(admin.describe_producers)
    list_transactions = _blocking(admin.list_transactions)
    describe_transactions = _blocking(admin.describe_transactions)
    log_dirs = _blocking(admin.log_dirs)

    # Leaders.

    find_coordinator = _blocking(moves.find_coordinator)
    move_leader = _blocking(moves.move_leader)
    move_coordinator = _blocking(moves.move_coordinator)


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
        self.put_records(partition, records, done)
        self._pump(self._core.options.buffer_bytes)

    def put_records(
        self,
        partition: TopicPartition,
        records: Sequence[Record],
        done: Callable[[], None] | None = None,
    ) -> None:
        """Seals these records into one batch, and queues it as `put` does."""
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
        self.put(partition, batch, done)

    def flush(self) -> dict[TopicPartition, Written]:
        """Waits until everything is acknowledged. Returns what was written to each partition."""
        self._pump(0)
        return self._writer.results()

    def withdraw(self) -> bool:
        """Forgets a batch that was refused, so that others may be written.

        False if an earlier attempt may have been written, or others were in flight: then only an
        abort helps.
        """
        return self._writer.withdraw()

    def close(self) -> None:
        """Drops what is not acknowledged.

        It may still arrive: abort the transaction or fence it.
        """
        self._network.forget(tuple(self._writer.shipments))
        self._writer.shipments.clear()

    def _pump(self, until_bytes: int) -> None:
        self._cluster.run(pump(self._core, self._writer, until_bytes))
