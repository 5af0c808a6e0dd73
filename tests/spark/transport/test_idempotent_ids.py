"""Producer ids without a transaction: which writer gets which identity."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import pytest

from fencepost.base.ids import MAX_PRODUCER_EPOCH, TopicPartition
from fencepost.client.admin import NewTopic
from fencepost.client.blocking import Cluster, connect
from fencepost.client.failures import ProducerFenced
from fencepost.client.transactions import ProducerIdentity
from fencepost.records.opened import Record
from fencepost.spark.connection import cluster_of
from fencepost.spark.transport import idempotent_ids
from fencepost.spark.transport.idempotent_ids import lend_identity
from fencepost.testing.embedded import Broker

PLACE = TopicPartition("t", 0)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Broker() as broker, connect(broker.bootstrap_servers) as found:
        found.create_topics([NewTopic("t", 1, 1)])
        yield found
        cluster_of(found.options).close()


def write(cluster: Cluster, identity: ProducerIdentity, value: bytes) -> None:
    with cluster.writer(identity) as writer:
        writer.write_records(PLACE, [Record(value=value)])
        writer.flush()


def test_a_process_keeps_its_producer_id_and_raises_the_epoch(cluster: Cluster) -> None:
    with lend_identity(cluster.options) as first:
        write(cluster, first, b"1")
    with lend_identity(cluster.options) as second:
        write(cluster, second, b"2")
    assert second.producer_id == first.producer_id
    assert second.producer_epoch == first.producer_epoch + 1
    with pytest.raises(ProducerFenced):
        write(cluster, first, b"late")
    assert [record.value for record in cluster.records(PLACE)] == [b"1", b"2"]


def test_two_writers_at_once_have_two_producer_ids(cluster: Cluster) -> None:
    with lend_identity(cluster.options) as one, lend_identity(cluster.options) as other:
        assert one.producer_id != other.producer_id


def test_a_failed_writer_takes_its_producer_id_with_it(cluster: Cluster) -> None:
    with pytest.raises(RuntimeError), lend_identity(cluster.options) as failed:
        raise RuntimeError
    with lend_identity(cluster.options) as following:
        assert following.producer_id != failed.producer_id


def test_another_process_starts_with_an_id_of_its_own(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with lend_identity(cluster.options) as ours:
        pass
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with lend_identity(cluster.options) as theirs:
        assert theirs.producer_id != ours.producer_id
    cluster_of(cluster.options).close()


def test_after_the_last_epoch_comes_a_new_producer_id(cluster: Cluster) -> None:
    with lend_identity(cluster.options) as used:
        pass
    kept = idempotent_ids._idle[os.getpid(), cluster.options]
    kept.append(replace(kept.pop(), producer_epoch=MAX_PRODUCER_EPOCH - 1))
    with lend_identity(cluster.options) as at_the_end:
        assert at_the_end.producer_epoch == MAX_PRODUCER_EPOCH - 1
    with lend_identity(cluster.options) as following:
        assert following.producer_id != used.producer_id
        assert following.producer_epoch == 0
