"""How long other clients wait during a large operation: a ping every 5 ms.

One loop serves all clients, so an operation that blocks it stops them all. Each operation has its
own topics, created before its pings begin. The load reports the last 1 % of the pings, the worst
one, and the most processor time that the loop used during one of them, which a busy machine does
not change. `nothing` measures the machine itself.
"""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from bench.load import Load, Measure, Round, Scale, Values
from bench.pinger import pinging
from bench.sides import Broker, Side
from fencepost.records.builder import build_batch
from fencepost.records.compression import Codec
from fencepost.records.opened import Record
from fencepost.wire.apis import ApiKey
from fencepost.wire.codec import decode_response, encode_request
from fencepost.wire.forms.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from fencepost.wire.forms.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from fencepost.wire.forms.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from fencepost.wire.forms.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from fencepost.wire.forms.delete_topics import DeleteTopicsRequest, DeleteTopicState
from fencepost.wire.forms.describe_transactions import DescribeTransactionsRequest
from fencepost.wire.forms.end_txn import EndTxnRequest
from fencepost.wire.forms.fetch import FetchPartition, FetchRequest, FetchTopic
from fencepost.wire.forms.find_coordinator import FindCoordinatorRequest
from fencepost.wire.forms.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from fencepost.wire.forms.init_producer_id import InitProducerIdRequest
from fencepost.wire.forms.list_transactions import ListTransactionsRequest
from fencepost.wire.forms.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from fencepost.wire.forms.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from fencepost.wire.forms.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

P99_MS: Final = 20.0
WORST_MS: Final = 50.0
PATIENCE_SECONDS: Final = 120.0
PRODUCE_VERSION: Final = 11
FETCH_VERSION: Final = 12
TIMEOUT_MS: Final = 60_000
NOW_MS: Final = 1_700_000_000_000
MEGABYTE: Final = 1_000_000
BROKER_RESOURCE: Final = 4
SET: Final = 0


class Talk:
    """One blocking connection."""

    def __init__(self, broker: Broker) -> None:
        host, _, port = broker.bootstrap_servers.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), PATIENCE_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, api: ApiKey, version: int, form: Any) -> None:
        for chunk in encode_request(api, version, 1, "stalls", form):
            self._socket.sendall(chunk)

    def reply(self, api: ApiKey, version: int) -> Any:
        size = int.from_bytes(self._read(4), "big")
        return decode_response(api, version, memoryview(self._read(size)))[1]

    def call(self, api: ApiKey, version: int, form: Any) -> Any:
        self.send(api, version, form)
        return self.reply(api, version)

    def _read(self, count: int) -> bytes:
        data = bytearray(count)
        view, filled = memoryview(data), 0
        while filled < count:
            got = self._socket.recv_into(view[filled:])
            assert got, "the broker has closed the connection"
            filled += got
        return bytes(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    # -- requests
    # ---------------------------------------------------------------------------------------------

    def create(self, *names: str, partitions: int = 1, **settings: str) -> None:
        configs = [
            CreatableTopicConfig(name=k.replace("_", "."), value=v) for k, v in settings.items()
        ]
        topics = [
            CreatableTopic(
                name=name, num_partitions=partitions, replication_factor=1, configs=configs
            )
            for name in names
        ]
        request = CreateTopicsRequest(topics=topics, timeout_ms=TIMEOUT_MS)
        reply = self.call(ApiKey.CREATE_TOPICS, 7, request)
        _check(topic.error_code for topic in reply.topics)

    def delete(self, name: str) -> None:
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=TIMEOUT_MS)
        _check(each.error_code for each in self.call(ApiKey.DELETE_TOPICS, 6, request).responses)

    def send_batch(self, topic: str, batch: bytes, partitions: int = 1) -> None:
        data = [PartitionProduceData(index=n, records=batch) for n in range(partitions)]
        request = ProduceRequest(
            acks=-1,
            timeout_ms=TIMEOUT_MS,
            topic_data=[TopicProduceData(name=topic, partition_data=data)],
        )
        self.send(ApiKey.PRODUCE, PRODUCE_VERSION, request)

    def await_batch(self) -> None:
        reply = self.reply(ApiKey.PRODUCE, PRODUCE_VERSION)
        _check(each.error_code for topic in reply.responses for each in topic.partition_responses)

    def produce(self, topic: str, batch: bytes, partitions: int = 1) -> None:
        self.send_batch(topic, batch, partitions)
        self.await_batch()

    def begin(self, transactional_id: str) -> tuple[int, int]:
        """A producer id and epoch, as soon as there is a coordinator."""
        find = FindCoordinatorRequest(key_type=1, coordinator_keys=[transactional_id])
        request = InitProducerIdRequest(
            transactional_id=transactional_id, transaction_timeout_ms=TIMEOUT_MS
        )
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            reply = self.call(ApiKey.INIT_PRODUCER_ID, 4, request)
            if reply.error_code == 0:
                return reply.producer_id, reply.producer_epoch
            assert time.monotonic() < deadline, f"no producer id: error {reply.error_code}"
            self.call(ApiKey.FIND_COORDINATOR, 4, find)
            time.sleep(0.02)

    def add_partitions(
        self, transactional_id: str, producer_id: int, epoch: int, topic: str, count: int
    ) -> None:
        topics = [AddPartitionsToTxnTopic(name=topic, partitions=list(range(count)))]
        transaction = AddPartitionsToTxnTransaction(
            transactional_id=transactional_id,
            producer_id=producer_id,
            producer_epoch=epoch,
            topics=topics,
        )
        request = AddPartitionsToTxnRequest(transactions=[transaction])
        (result,) = self.call(ApiKey.ADD_PARTITIONS_TO_TXN, 3, request).results_by_transaction
        _check(
            each.partition_error_code
            for topic in result.topic_results
            for each in topic.results_by_partition
        )

    def poll(self, topic: str, *, min_bytes: int, max_bytes: int, partitions: int = 1) -> None:
        """A fetch whose reply is not read for now."""
        asked = [
            FetchPartition(partition=n, fetch_offset=0, partition_max_bytes=max_bytes)
            for n in range(partitions)
        ]
        request = FetchRequest(
            max_wait_ms=TIMEOUT_MS,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            topics=[FetchTopic(topic=topic, partitions=asked)],
        )
        self.send(ApiKey.FETCH, FETCH_VERSION, request)


def _check(codes: Iterator[int]) -> None:
    wrong = [code for code in codes if code]
    assert not wrong, f"the broker answered with the error {wrong[0]}"


@lru_cache
def batch_of(count: int, value_bytes: int, codec: int = Codec.NONE, keys: int = 1000) -> bytes:
    value = os.urandom(value_bytes)
    records = [Record(0, NOW_MS, b"%d" % (n % keys), value) for n in range(count)]
    return bytes(build_batch(records, timestamp_ms=NOW_MS, codec=codec))


# -- operations
# -------------------------------------------------------------------------------------------------

Act = Callable[[], None]


class Stage(NamedTuple):
    """The tools of an operation."""

    broker: Broker
    talk: Talk
    scale: Scale
    ends: ExitStack
    """For connections that must stay open until the pings are over."""


def _nothing(_: Stage) -> Act:
    return lambda: time.sleep(2)


def _first_writes(stage: Stage) -> Act:
    count = stage.scale.of(1000, 200)
    stage.talk.create("first", partitions=count)
    return lambda: stage.talk.produce("first", batch_of(1, 100), count)


def _create_topics(stage: Stage) -> Act:
    names = [f"made-{number}" for number in range(stage.scale.of(100, 20))]
    return lambda: stage.talk.create(*names, partitions=10)


def _delete_partitions(stage: Stage) -> Act:
    count = stage.scale.of(2000, 400)
    stage.talk.create("doomed", partitions=count)
    stage.talk.produce("doomed", batch_of(1, 100), count)
    return lambda: stage.talk.delete("doomed")


def _many_records(stage: Stage) -> Act:
    batch = batch_of(stage.scale.of(400_000, 100_000), 0, Codec.ZSTD, keys=1)
    stage.talk.create("keyed", cleanup_policy="compact")
    return lambda: stage.talk.produce("keyed", batch)


def _compact(stage: Stage) -> Act:
    """Compaction of 250 MB with a thousand keys, until a tenth is left."""
    megabytes = stage.scale.of(250, 50)
    backoff = AlterableConfig(name="log.cleaner.backoff.ms", config_operation=SET, value="200")
    resource = AlterConfigsResource(
        resource_type=BROKER_RESOURCE, resource_name="", configs=[backoff]
    )
    stage.talk.create("cleaned", cleanup_policy="compact", segment_bytes="52428800")

    def size() -> int:
        return sum(path.stat().st_size for path in stage.broker.data.glob("cleaned-0/*.log"))

    def act() -> None:
        for _ in range(megabytes):
            stage.talk.produce("cleaned", batch_of(1000, 950))
        request = IncrementalAlterConfigsRequest(resources=[resource])
        reply = stage.talk.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request)
        _check(each.error_code for each in reply.responses)
        deadline = time.monotonic() + PATIENCE_SECONDS
        # The active segment is never compacted.
        while size() > megabytes * MEGABYTE / 10 + 60 * MEGABYTE:
            assert time.monotonic() < deadline, f"{size():,} bytes were not compacted"
            time.sleep(0.05)

    return act


def _rolls(stage: Stage) -> Act:
    stage.talk.create("rolled", segment_bytes="1048576")

    def act() -> None:
        for _ in range(stage.scale.of(200, 50)):
            stage.talk.produce("rolled", batch_of(1000, 700))

    return act


def _large_requests(stage: Stage) -> Act:
    """Eight requests of 16 MB in flight, on one connection."""
    stage.talk.create("large", partitions=16)

    def act() -> None:
        count = stage.scale.of(60, 15)
        for number in range(count):
            stage.talk.send_batch("large", batch_of(1000, 950), 16)
            if number >= 8:
                stage.talk.await_batch()
        for _ in range(min(8, count)):
            stage.talk.await_batch()

    return act


def _wake_polls(stage: Stage) -> Act:
    """500 long polls that one append answers."""
    stage.talk.create("polled")
    for _ in range(stage.scale.of(500, 100)):
        stage.ends.enter_context(Talk(stage.broker)).poll("polled", min_bytes=1, max_bytes=MEGABYTE)
    return lambda: stage.talk.produce("polled", batch_of(100, 1000))


def _deaf_readers(stage: Stage) -> Act:
    """100 clients that fetch 50 MB each and read none of it."""
    partitions = 50
    stage.talk.create("unread", partitions=partitions)
    stage.talk.produce("unread", batch_of(1000, 950), partitions)
    deaf = [stage.ends.enter_context(Talk(stage.broker)) for _ in range(stage.scale.of(100, 30))]

    def act() -> None:
        for each in deaf:
            each.poll("unread", min_bytes=1, max_bytes=50 * MEGABYTE, partitions=partitions)
        time.sleep(1)

    return act


def _delete_records(stage: Stage) -> Act:
    count = stage.scale.of(5000, 1000)
    stage.talk.create("cut", partitions=count)
    stage.talk.produce("cut", batch_of(1, 100), count)
    partitions = [DeleteRecordsPartition(partition_index=n, offset=-1) for n in range(count)]
    topics = [DeleteRecordsTopic(name="cut", partitions=partitions)]
    request = DeleteRecordsRequest(topics=topics, timeout_ms=TIMEOUT_MS)

    def act() -> None:
        (topic,) = stage.talk.call(ApiKey.DELETE_RECORDS, 2, request).topics
        _check(each.error_code for each in topic.partitions)

    return act


def _wide_commit(stage: Stage) -> Act:
    """The markers of one transaction, each the first write to its partition."""
    name, count = "wide-commit", stage.scale.of(5000, 1000)
    stage.talk.create(name, partitions=count)
    producer_id, epoch = stage.talk.begin(name)
    stage.talk.add_partitions(name, producer_id, epoch, name, count)
    end = EndTxnRequest(
        transactional_id=name, producer_id=producer_id, producer_epoch=epoch, committed=True
    )
    return lambda: _check(iter([stage.talk.call(ApiKey.END_TXN, 3, end).error_code]))


def _create_wide(stage: Stage) -> Act:
    """The largest topic that one request may create; it also triggers a metadata checkpoint."""
    return lambda: stage.talk.create("widest", partitions=stage.scale.of(10_000, 2_000))


def _widen(stage: Stage) -> Act:
    count = stage.scale.of(10_000, 2_000)
    stage.talk.create("widened")
    topic = CreatePartitionsTopic(name="widened", count=count, assignments=None)
    request = CreatePartitionsRequest(topics=[topic], timeout_ms=TIMEOUT_MS)

    def act() -> None:
        reply = stage.talk.call(ApiKey.CREATE_PARTITIONS, 3, request)
        _check(each.error_code for each in reply.results)

    return act


def _prepare_group(stage: Stage, group: str, count: int) -> None:
    """Creates a topic of the group's name; returns when the group has a coordinator."""
    stage.talk.create(group, partitions=count)
    find = FindCoordinatorRequest(key_type=0, coordinator_keys=[group])
    request = OffsetCommitRequest(
        group_id=group,
        topics=[
            OffsetCommitRequestTopic(
                name=group,
                partitions=[OffsetCommitRequestPartition(partition_index=0, committed_offset=0)],
            )
        ],
    )
    deadline = time.monotonic() + PATIENCE_SECONDS
    while stage.talk.call(ApiKey.OFFSET_COMMIT, 8, request).topics[0].partitions[0].error_code:
        assert time.monotonic() < deadline, f"{group} has no coordinator"
        stage.talk.call(ApiKey.FIND_COORDINATOR, 4, find)
        time.sleep(0.02)


def _commit_offsets(stage: Stage) -> Act:
    count = stage.scale.of(10_000, 2_000)
    _prepare_group(stage, "offsets", count)
    partitions = [
        OffsetCommitRequestPartition(partition_index=n, committed_offset=n) for n in range(count)
    ]
    topic = OffsetCommitRequestTopic(name="offsets", partitions=partitions)
    request = OffsetCommitRequest(group_id="offsets", topics=[topic])

    def act() -> None:
        (topic,) = stage.talk.call(ApiKey.OFFSET_COMMIT, 8, request).topics
        _check(each.error_code for each in topic.partitions)

    return act


def _commit_offsets_in_transaction(stage: Stage) -> Act:
    name, count = "offsets-in-transaction", stage.scale.of(10_000, 2_000)
    producer_id, epoch = stage.talk.begin(name)
    _prepare_group(stage, name, count)
    partitions = [
        TxnOffsetCommitRequestPartition(partition_index=n, committed_offset=n) for n in range(count)
    ]
    request = TxnOffsetCommitRequest(
        transactional_id=name,
        group_id=name,
        producer_id=producer_id,
        producer_epoch=epoch,
        topics=[TxnOffsetCommitRequestTopic(name=name, partitions=partitions)],
    )
    end = EndTxnRequest(
        transactional_id=name, producer_id=producer_id, producer_epoch=epoch, committed=True
    )

    def act() -> None:
        (topic,) = stage.talk.call(ApiKey.TXN_OFFSET_COMMIT, 5, request).topics
        _check(each.error_code for each in topic.partitions)
        _check(iter([stage.talk.call(ApiKey.END_TXN, 5, end).error_code]))

    return act


def _list_transactions(stage: Stage) -> Act:
    count = stage.scale.of(10_000, 2_000)
    for number in range(count):
        stage.talk.begin(f"listed-{number}")
    names = [f"listed-{number}" for number in range(count)]

    def act() -> None:
        stage.talk.call(ApiKey.LIST_TRANSACTIONS, 1, ListTransactionsRequest())
        request = DescribeTransactionsRequest(transactional_ids=names)
        stage.talk.call(ApiKey.DESCRIBE_TRANSACTIONS, 0, request)

    return act


OPERATIONS: Final[dict[str, tuple[str, Callable[[Stage], Act]]]] = {
    "nothing": ("nothing", _nothing),
    "first writes": ("first write to 1,000 partitions in one request", _first_writes),
    "create": ("CreateTopics of 100 topics with 10 partitions each", _create_topics),
    "delete": ("deletion of 2,000 partitions", _delete_partitions),
    "many records": ("400,000 records in one zstd batch to a compacted topic", _many_records),
    "compact": ("writing and compacting 250 MB", _compact),
    "rolls": ("200 segments rolled", _rolls),
    "large requests": ("60 requests of 16 MB on one connection", _large_requests),
    "polls": ("one append answers 500 long polls", _wake_polls),
    "deaf readers": ("100 clients ask for 50 MB each and read nothing", _deaf_readers),
    "delete records": ("DeleteRecords of 5,000 partitions", _delete_records),
    "wide commit": ("commit of a transaction over 5,000 partitions", _wide_commit),
    "wide topic": ("one topic of 10,000 partitions", _create_wide),
    "wider topic": ("CreatePartitions from 1 to 10,000", _widen),
    "offsets": ("OffsetCommit of 10,000 partitions", _commit_offsets),
    "transactional offsets": (
        "TxnOffsetCommit of 10,000 partitions, and its commit",
        _commit_offsets_in_transaction,
    ),
    "list": ("10,000 transactional ids listed and described", _list_transactions),
}


@contextmanager
def _session(side: Side, scale: Scale, folder: Path) -> Iterator[Round]:
    def run(number: int) -> Values:
        data = folder / str(number)
        values: dict[str, float] = {}
        with side.start(data) as broker, Talk(broker) as talk:
            for name, (_, prepare) in OPERATIONS.items():
                with ExitStack() as ends:
                    act = prepare(Stage(broker, talk, scale, ends))
                    with pinging(broker.bootstrap_servers, broker.process.pid) as pings:
                        act()
                values[f"p99 {name}"] = pings.p99
                values[f"worst {name}"] = pings.worst
                values[f"busy {name}"] = pings.busiest
            broker.kill()
        shutil.rmtree(data)
        return values

    yield run


def _measures() -> Iterator[Measure]:
    for name, (title, _) in OPERATIONS.items():
        is_idle = name == "nothing"
        yield Measure(f"p99 {name}", f"ms, p99: {title}", "less", limit=None if is_idle else P99_MS)
        yield Measure(
            f"worst {name}", f"ms, worst: {title}", "less", limit=None if is_idle else WORST_MS
        )
        yield Measure(f"busy {name}", f"ms of processor time in one ping: {title}", "less")


LOAD: Final = Load(
    "stalls",
    "a ping every 5 ms while the broker does something large",
    tuple(_measures()),
    _session,
    rounds=3,
    quick_rounds=1,
    warmup_seconds=0,
    quick_warmup_seconds=0,
    only_ours=True,
    quick_note="a fifth of everything",
)
