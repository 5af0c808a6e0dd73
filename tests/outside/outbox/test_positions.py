"""The record of the position, and its topic."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.base.ids import TopicPartition
from fencepost.client.admin import NewTopic
from fencepost.client.blocking import Cluster, connect
from fencepost.client.failures import RetriesExhausted
from fencepost.outside.outbox.positions import (
    PositionUnusable,
    decode_position,
    encode_position,
    ensure_topic,
    position_topic,
    read_position,
)
from fencepost.outside.outbox.rules import Cursor, Position
from fencepost.records.opened import Record
from tools.fencepost_process import FencepostProcess

LSNS = st.integers(0, 2**64 - 1)
POSITION = Position("r", Cursor(7, 9, 3), 5, "sys", 2, "table outbox")


@given(
    position=st.builds(
        Position,
        st.text(),
        st.builds(
            Cursor,
            LSNS,
            LSNS,
            st.integers(0, 2**63),
            st.lists(st.integers(0, 2**63)).map(tuple),
        ),
        st.integers(0, 2**63),
        st.text(),
        st.integers(1, 2**32),
        st.text(),
        st.text(),
    )
)
def test_a_position_survives_its_record(position: Position) -> None:
    assert decode_position(encode_position(position)) == position


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        encode_position(POSITION)[:-1],
        encode_position(POSITION).replace(b'"v":1', b'"v":2'),
        encode_position(POSITION).replace(b'"endLsn":"0/7"', b'"endLsn":"x"'),
        encode_position(POSITION).replace(b'"chunk":5', b'"chunk":null'),
    ],
)
def test_a_record_that_is_no_position_is_an_error(value: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        decode_position(value)


def test_a_position_of_an_older_fencepost_can_be_read() -> None:
    fields = json.loads(encode_position(POSITION))
    del fields["publication"]
    assert decode_position(json.dumps(fields).encode()) == POSITION


def test_a_later_field_is_ignored() -> None:
    fields = json.loads(encode_position(POSITION)) | {"later": 1}
    assert decode_position(json.dumps(fields).encode()) == POSITION


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    broker = FencepostProcess(tmp_path_factory.mktemp("broker"))
    return connect(broker.bootstrap_servers, {"default.api.timeout.ms": "1000"})


def write(
    cluster: Cluster, topic: str, name: str, value: bytes | None, *, commit: bool = True
) -> None:
    identity = cluster.init_producer_id(name)
    with cluster.writer(identity) as writer:
        writer.write_records(TopicPartition(topic, 0), [Record(key=name.encode(), value=value)])
        writer.flush()
    cluster.end_txn(identity, commit=commit)


def test_the_newest_committed_position_counts(cluster: Cluster) -> None:
    ensure_topic(cluster, "newest")
    ensure_topic(cluster, "newest")
    assert read_position(cluster, "newest", "a", fenced=True) is None
    for chunk in (1, 2):
        value = encode_position(POSITION._replace(chunk=chunk))
        write(cluster, "newest", "a", value)
        write(cluster, "newest", "b", b"of another relay")
    write(cluster, "newest", "a", encode_position(POSITION._replace(chunk=3)), commit=False)
    found = read_position(cluster, "newest", "a", fenced=True)
    assert found is not None
    assert found.chunk == 2


def test_a_deleted_position_is_not_the_one_before(cluster: Cluster) -> None:
    ensure_topic(cluster, "tombstone")
    write(cluster, "tombstone", "a4", encode_position(POSITION))
    write(cluster, "tombstone", "a4", None)
    assert read_position(cluster, "tombstone", "a4", fenced=True) is None


def test_behind_an_open_transaction_of_another_relay_a_position_is_refused_and_then_read(
    cluster: Cluster,
) -> None:
    """An older position is never returned: rows after it would be sent again."""
    ensure_topic(cluster, "shared")
    write(cluster, "shared", "a2", encode_position(POSITION._replace(chunk=1)))
    other = cluster.init_producer_id("other")
    with cluster.writer(other) as writer:
        writer.write_records(TopicPartition("shared", 0), [Record(key=b"other", value=b"")])
        writer.flush()
    write(cluster, "shared", "a2", encode_position(POSITION._replace(chunk=2)))
    with pytest.raises(RetriesExhausted, match="open transaction"):
        read_position(cluster, "shared", "a2", fenced=True)
    cluster.end_txn(other, commit=True)
    found = read_position(cluster, "shared", "a2", fenced=True)
    assert found is not None
    assert found.chunk == 2


@pytest.mark.parametrize(
    ("topic", "partitions", "policy", "words"),
    [
        ("deleting", 1, "delete", "cleanup.policy=delete"),
        ("both", 1, "compact,delete", "cleanup.policy=compact,delete"),
        ("two", 2, "compact", "2 partitions"),
    ],
)
def test_a_topic_that_would_lose_the_position_is_refused(
    cluster: Cluster, topic: str, partitions: int, policy: str, words: str
) -> None:
    cluster.create_topics([NewTopic(topic, partitions, configs={"cleanup.policy": policy})])
    with pytest.raises(PositionUnusable, match=words):
        ensure_topic(cluster, topic)


@pytest.mark.parametrize("name", ["a/b", "my id", "é", "x" * 240])
def test_an_id_that_is_in_no_topics_name_needs_another_topic(name: str) -> None:
    with pytest.raises(PositionUnusable, match="--position-topic"):
        position_topic(name, None)
    assert position_topic(name, "positions") == "positions"


def test_a_position_that_cannot_be_read_is_named(cluster: Cluster) -> None:
    ensure_topic(cluster, "damaged")
    write(cluster, "damaged", "a3", b"no JSON")
    with pytest.raises(PositionUnusable, match="offset 0 of damaged-0"):
        read_position(cluster, "damaged", "a3", fenced=True)
