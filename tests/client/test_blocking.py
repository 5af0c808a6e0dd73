"""The client and the broker of this repository, joined by real sockets and a process boundary.

tests/compat/test_client_transactions.py tests the same in more detail against Apache Kafka. Here
are the tests that every change should pass at once, and those that kill the broker.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from fencepost.base.ids import TopicPartition
from fencepost.client.admin import NewTopic
from fencepost.client.blocking import Cluster, connect
from fencepost.client.failures import ProducerFenced
from fencepost.client.groups import CommittedOffset
from fencepost.client.reading import LATEST
from fencepost.records.builder import build_batch
from fencepost.records.opened import Record
from tools.fencepost_process import FencepostProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fencepost.client.transactions import ProducerIdentity


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FencepostProcess]:
    with FencepostProcess(tmp_path_factory.mktemp("fencepost") / "data") as process:
        yield process


@pytest.fixture
def cluster(broker: FencepostProcess) -> Iterator[Cluster]:
    with connect(broker.bootstrap_servers) as client:
        yield client


@pytest.fixture
def partition(cluster: Cluster, request: pytest.FixtureRequest) -> TopicPartition:
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)
    cluster.create_topics([NewTopic(name, 1)])
    return TopicPartition(name, 0)


def write(
    cluster: Cluster, identity: ProducerIdentity, where: TopicPartition, *values: bytes
) -> None:
    with cluster.writer(identity) as writer:
        for value in values:
            writer.write_records(where, [Record(value=value)])
        writer.flush()


@pytest.mark.parametrize("protocol", [1, 2])
def test_committed_records_are_read_and_aborted_ones_are_not(
    cluster: Cluster, partition: TopicPartition, protocol: int
) -> None:
    for commit in (True, False, True):
        identity = cluster.init_producer_id(f"tx-{partition}")
        identity = replace(identity, transaction_version=protocol)
        write(cluster, identity, partition, b"%d" % commit, b"again")
        cluster.end_txn(identity, commit=commit)
    values = [record.value for record in cluster.records(partition, 0, 8)]
    assert values == [b"1", b"again", b"1", b"again"]


def test_batches_passed_to_put_are_sent_by_flush(
    cluster: Cluster, partition: TopicPartition
) -> None:
    identity = cluster.init_producer_id(f"tx-{partition}")

    def end() -> int:
        return cluster.list_offsets({partition: LATEST}, isolation="read_uncommitted")[
            partition
        ].offset

    with cluster.writer(identity) as writer:
        for sequence in range(2):
            batch = build_batch(
                [Record(value=b"put")],
                timestamp_ms=0,
                producer_id=identity.producer_id,
                producer_epoch=identity.producer_epoch,
                base_sequence=sequence,
                transactional=True,
            )
            writer.put(partition, batch)
        assert end() == 0
        assert writer.flush()[partition].records == 2
    assert end() == 2
    cluster.end_txn(identity, commit=False)


@pytest.mark.parametrize("protocol", [1, 2])
def test_offsets_are_committed_with_the_transaction(
    cluster: Cluster, partition: TopicPartition, protocol: int
) -> None:
    group = f"group-{partition}"
    for offset, commit in [(5, True), (6, False)]:
        identity = cluster.init_producer_id(f"tx-{partition}")
        identity = replace(identity, transaction_version=protocol)
        cluster.txn_offset_commit(identity, group, {partition: CommittedOffset(offset, "words")})
        cluster.end_txn(identity, commit=commit)
    assert cluster.offset_fetch(group, [partition]) == {partition: CommittedOffset(5, "words")}


def test_a_fenced_producer_can_neither_write_nor_commit(
    cluster: Cluster, partition: TopicPartition
) -> None:
    older = cluster.init_producer_id(f"tx-{partition}")
    write(cluster, older, partition, b"old")
    cluster.init_producer_id(f"tx-{partition}")
    with pytest.raises(ProducerFenced):
        write(cluster, older, partition, b"zombie")
    with pytest.raises(ProducerFenced):
        cluster.end_txn(older, commit=True)


def test_a_client_survives_a_broker_crash(tmp_path: Path) -> None:
    """The broker is killed before EndTxn: the same client commits on the restarted one."""
    data, where = tmp_path / "data", TopicPartition("t", 0)
    first = FencepostProcess(data)
    with connect(first.bootstrap_servers) as client:
        client.create_topics([NewTopic("t", 1)])
        identity = client.init_producer_id("tx")
        write(client, identity, where, b"a", b"b")
        client.txn_offset_commit(identity, "g", {where: CommittedOffset(2)})
        first.kill()
        with FencepostProcess(data, listen=first.bootstrap_servers):
            following = client.end_txn(identity, commit=True)
            assert following.producer_epoch == identity.producer_epoch + 1
            assert [record.value for record in client.records(where, 0, 2)] == [b"a", b"b"]
            assert client.offset_fetch("g", [where]) == {where: CommittedOffset(2)}
            assert client.list_offsets({where: LATEST})[where].offset == 3


def test_a_blocked_reader_names_the_transaction_that_blocks_it(
    broker: FencepostProcess, cluster: Cluster, partition: TopicPartition
) -> None:
    identity = cluster.init_producer_id(f"tx-{partition}")
    write(cluster, identity, partition, b"undecided")
    options = {"default.api.timeout.ms": 50, "fetch.max.wait.ms": 10}
    with (
        connect(broker.bootstrap_servers, options) as impatient,
        pytest.raises(TimeoutError, match="holds the last stable offset at 0"),
    ):
        list(impatient.records(partition, 0, 1))
    cluster.end_txn(identity, commit=False)


def test_a_writer_survives_a_broker_crash(tmp_path: Path) -> None:
    """The broker is killed with batches in flight: each is in the log once, in order."""
    data, where = tmp_path / "data", TopicPartition("t", 0)
    expected = [b"%d" % n for n in range(200)]
    first = FencepostProcess(data)
    with connect(first.bootstrap_servers) as client:
        client.create_topics([NewTopic("t", 1)])
        identity = client.init_producer_id("tx")
        with client.writer(identity) as writer:
            for value in expected[:100]:
                writer.write_records(where, [Record(value=value)])
            first.kill()
            with FencepostProcess(data, listen=first.bootstrap_servers):
                for value in expected[100:]:
                    writer.write_records(where, [Record(value=value)])
                assert writer.flush()[where].records == 200
                client.end_txn(identity, commit=True)
                assert [record.value for record in client.records(where, 0, 200)] == expected
