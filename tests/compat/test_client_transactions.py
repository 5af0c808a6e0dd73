"""Goal: the client's transactions work on Apache Kafka and on fencepost, in both protocols.

Method: the same test on both brokers (`side`). For TV1 on a TV2 cluster the identity is given the
older protocol: a broker tells it by the versions of the requests.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from fencepost.base.failures import FencepostError
from fencepost.base.ids import TopicPartition
from fencepost.client.admin import NewTopic, ResourceType
from fencepost.client.blocking import Cluster, connect
from fencepost.client.failures import (
    OffsetOutOfRange,
    OutOfOrderSequence,
    ProducerFenced,
    Refused,
    UnknownTopicOrPartition,
)
from fencepost.client.groups import CommittedOffset
from fencepost.client.reading import EARLIEST, LATEST
from fencepost.records.opened import Record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fencepost.client.transactions import ProducerIdentity
    from tests.compat.conftest import Side

WRITERS = 8
PARTITIONS_PER_WRITER = 3


@pytest.fixture
def cluster(side: Side) -> Iterator[Cluster]:
    with connect(side.bootstrap_servers) as client:
        yield client


@pytest.fixture(params=[1, 2], ids=["tv1", "tv2"])
def protocol(request: pytest.FixtureRequest) -> int:
    """Both transaction protocols in turn."""
    version: int = request.param
    return version


def _begin(cluster: Cluster, transactional_id: str, protocol: int) -> ProducerIdentity:
    return replace(cluster.init_producer_id(transactional_id), transaction_version=protocol)


def _write(
    cluster: Cluster, identity: ProducerIdentity, partition: TopicPartition, *values: bytes
) -> None:
    with cluster.writer(identity) as writer:
        writer.write_records(partition, [Record(value=value) for value in values])
        writer.flush()


def test_committed_records_are_visible_and_aborted_ones_are_not(
    cluster: Cluster, topic: str, protocol: int
) -> None:
    partition = TopicPartition(topic, 0)
    cluster.create_topics([NewTopic(topic, 1)])
    for round_number, commit in enumerate([True, False, True]):
        identity = _begin(cluster, f"tx-{topic}", protocol)
        _write(cluster, identity, partition, b"%d" % round_number, b"again")
        cluster.end_txn(identity, commit=commit)
    # Three transactions of two records, each with its marker; the last visible record is at 7.
    assert [r.value for r in cluster.records(partition, 0, 8)] == [b"0", b"again", b"2", b"again"]
    everything = [r.value for r in cluster.records(partition, 0, 8, isolation="read_uncommitted")]
    assert everything == [b"0", b"again", b"1", b"again", b"2", b"again"]


def test_an_open_transaction_is_described_and_listed(
    cluster: Cluster, topic: str, protocol: int
) -> None:
    partition = TopicPartition(topic, 0)
    cluster.create_topics([NewTopic(topic, 1)])
    identity = _begin(cluster, f"tx-{topic}", protocol)
    _write(cluster, identity, partition, b"a", b"b")

    (producer,) = cluster.describe_producers([partition])[partition]
    assert (producer.producer_id, producer.current_txn_start_offset) == (identity.producer_id, 0)
    assert producer.last_sequence == 1
    view = cluster.describe_transactions([f"tx-{topic}"])[f"tx-{topic}"]
    assert view is not None
    assert (view.state, view.partitions) == ("Ongoing", (partition,))
    ongoing = cluster.list_transactions(states=["Ongoing"])
    assert f"tx-{topic}" in {listed.transactional_id for listed in ongoing}
    committed = cluster.list_offsets({partition: LATEST})[partition]
    written = cluster.list_offsets({partition: LATEST}, isolation="read_uncommitted")[partition]
    assert (committed.offset, written.offset) == (0, 2)
    cluster.end_txn(identity, commit=False)


def test_offsets_are_committed_or_dropped_with_their_transaction(
    cluster: Cluster, topic: str, protocol: int
) -> None:
    partition, group = TopicPartition(topic, 0), f"group-{topic}"
    cluster.create_topics([NewTopic(topic, 1)])
    first = _begin(cluster, f"tx-{topic}", protocol)
    cluster.txn_offset_commit(first, group, {partition: CommittedOffset(7, "ledger")})
    assert cluster.offset_fetch(group, [partition], require_stable=False) == {}
    cluster.end_txn(first, commit=True)
    committed = cluster.offset_fetch(group, [partition])
    assert committed == {partition: CommittedOffset(7, "ledger")}

    second = _begin(cluster, f"tx-{topic}", protocol)
    cluster.txn_offset_commit(second, group, {partition: CommittedOffset(8, "dropped")})
    cluster.end_txn(second, commit=False)
    assert cluster.offset_fetch(group, [partition]) == committed


def test_tv2_raises_the_epoch_with_every_transaction(cluster: Cluster, topic: str) -> None:
    partition = TopicPartition(topic, 0)
    cluster.create_topics([NewTopic(topic, 1)])
    identity = cluster.init_producer_id(f"tx-{topic}")
    assert identity.is_tv2
    for _ in range(3):
        _write(cluster, identity, partition, b"x")
        following = cluster.end_txn(identity, commit=True)
        assert following.producer_epoch == identity.producer_epoch + 1
        # A retry of the same EndTxn, as after a lost answer, returns the same.
        assert cluster.end_txn(identity, commit=True) == following
        identity = following


def test_a_newer_producer_fences_the_older_one(cluster: Cluster, topic: str, protocol: int) -> None:
    partition = TopicPartition(topic, 0)
    cluster.create_topics([NewTopic(topic, 1)])
    older = _begin(cluster, f"tx-{topic}", protocol)
    _write(cluster, older, partition, b"old")
    newer = _begin(cluster, f"tx-{topic}", protocol)
    assert newer.producer_epoch > older.producer_epoch
    with pytest.raises(ProducerFenced):
        cluster.end_txn(older, commit=True)
    with pytest.raises(ProducerFenced):
        cluster.txn_offset_commit(older, "g", {partition: CommittedOffset(1)})
    with pytest.raises(ProducerFenced):
        _write(cluster, older, partition, b"zombie")
    _write(cluster, newer, partition, b"new")
    cluster.end_txn(newer, commit=True)
    assert [record.value for record in cluster.records(partition, 0, 3)] == [b"new"]


def test_many_writers_of_one_transaction_write_everything_once(
    side: Side, cluster: Cluster, topic: str, protocol: int
) -> None:
    """First writes of one producer id may collide in the broker (error 19 etc.), without effect."""
    cluster.create_topics([NewTopic(topic, WRITERS * PARTITIONS_PER_WRITER)])
    identity = _begin(cluster, f"tx-{topic}", protocol)
    failures: list[FencepostError] = []

    def work(number: int) -> None:
        first = number * PARTITIONS_PER_WRITER
        try:
            with connect(side.bootstrap_servers) as mine, mine.writer(identity) as writer:
                for batch in range(6):
                    for index in range(first, first + PARTITIONS_PER_WRITER):
                        records = [Record(value=b"%d.%d" % (batch, n)) for n in range(50 + number)]
                        writer.write_records(TopicPartition(topic, index), records)
                writer.flush()
        except FencepostError as problem:
            failures.append(problem)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    cluster.end_txn(identity, commit=True)
    for index in range(WRITERS * PARTITIONS_PER_WRITER):
        count = 50 + index // PARTITIONS_PER_WRITER
        expected = [b"%d.%d" % (batch, n) for batch in range(6) for n in range(count)]
        values = [r.value for r in cluster.records(TopicPartition(topic, index), 0, len(expected))]
        assert values == expected


def test_a_second_writer_of_a_partition_is_refused(cluster: Cluster, topic: str) -> None:
    partition = TopicPartition(topic, 0)
    cluster.create_topics([NewTopic(topic, 1)])
    identity = cluster.init_producer_id(f"tx-{topic}")
    _write(cluster, identity, partition, b"1", b"2", b"3")
    with pytest.raises(OutOfOrderSequence) as caught:
        _write(cluster, identity, partition, b"1", b"2")
    assert caught.value.partition == partition
    cluster.end_txn(identity, commit=False)


def test_records_of_every_codec_are_read_back(side: Side, cluster: Cluster, topic: str) -> None:
    codecs = ["none", "gzip", "snappy", "lz4", "zstd"]
    cluster.create_topics([NewTopic(topic, len(codecs))])
    for index, codec in enumerate(codecs):
        partition = TopicPartition(topic, index)
        with connect(side.bootstrap_servers, {"compression.type": codec}) as client:
            identity = client.init_producer_id(f"tx-{topic}")
            headers = (("name", b"value"), ("empty", None))
            record = Record(key=b"k", value=b"v" * 10_000, headers=headers)
            with client.writer(identity) as writer:
                writer.write_records(partition, [record, Record(value=None)])
                writer.flush()
            client.end_txn(identity, commit=True)
        first, second = cluster.records(partition, 0, 2)
        assert (first.key, first.value, first.headers) == (b"k", b"v" * 10_000, headers)
        assert (second.key, second.value) == (None, None)


def test_offsets_are_found_by_time(cluster: Cluster, topic: str) -> None:
    partition = TopicPartition(topic, 0)
    cluster.create_topics([NewTopic(topic, 1)])
    now = cluster.init_producer_id(None)
    with cluster.writer(now) as writer:
        start = 1_700_000_000_000
        for n in range(5):
            writer.write_records(partition, [Record(timestamp_ms=start + n * 1000, value=b"x")])
        writer.flush()

    def at(time_ms: int) -> int:
        return cluster.list_offsets({partition: time_ms})[partition].offset

    assert [at(EARLIEST), at(LATEST), at(start + 1), at(start + 4000), at(start + 4001)] == [
        0,
        5,
        1,
        4,
        -1,
    ]


def test_missing_topics_partitions_and_offsets_are_named(cluster: Cluster, topic: str) -> None:
    partition = TopicPartition(topic, 0)
    with pytest.raises(UnknownTopicOrPartition, match=topic):
        cluster.list_offsets({partition: LATEST})
    cluster.create_topics([NewTopic(topic, 1)])
    with pytest.raises(UnknownTopicOrPartition, match=f"{topic}-1"):
        cluster.fetch({TopicPartition(topic, 1): 0})
    with pytest.raises(OffsetOutOfRange, match="requested offset is 5"):
        cluster.fetch({partition: 5})
    with pytest.raises(Refused, match="TOPIC_ALREADY_EXISTS"):
        cluster.create_topics([NewTopic(topic, 1)])
    cluster.create_topics([NewTopic(topic, 1)], exist_ok=True)
    identity = cluster.init_producer_id(f"tx-{topic}")
    with pytest.raises(UnknownTopicOrPartition):
        cluster.txn_offset_commit(
            identity, "g", {TopicPartition(f"no-{topic}", 0): CommittedOffset(1)}
        )
    with pytest.raises(Refused, match=r"transaction\.max\.timeout\.ms"):
        cluster.init_producer_id(f"tx-{topic}", timeout_ms=2**31 - 1)


def test_topics_and_settings_are_described(cluster: Cluster, topic: str) -> None:
    cluster.create_topics([NewTopic(topic, 2, configs={"cleanup.policy": "compact"})])
    view = cluster.metadata([topic])
    assert [p.index for p in view.topics[topic].partitions] == [0, 1]
    configs = cluster.describe_configs(ResourceType.TOPIC, topic)
    assert (configs["cleanup.policy"].value, configs["cleanup.policy"].is_own) == ("compact", True)
    broker = str(min(view.brokers))
    key = "transaction.max.timeout.ms"
    assert cluster.describe_configs(ResourceType.BROKER, broker, [key])[key].value == "900000"
    assert cluster.describe_cluster().brokers.keys() == view.brokers.keys()
    cluster.delete_topics([topic])
    with pytest.raises(Refused, match="UNKNOWN_TOPIC_OR_PARTITION"):
        cluster.delete_topics([topic])


def test_a_group_commits_outside_a_transaction(cluster: Cluster, topic: str) -> None:
    cluster.create_topics([NewTopic(topic, 2)])
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    cluster.offset_commit(f"g-{topic}", {first: CommittedOffset(3, "three")})
    assert cluster.offset_fetch(f"g-{topic}", [first, second]) == {
        first: CommittedOffset(3, "three")
    }
    assert cluster.offset_fetch(f"g-{topic}") == {first: CommittedOffset(3, "three")}
