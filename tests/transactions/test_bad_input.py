"""Requests that no correct client sends: Kafka's code, nothing changed, nothing lost."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import coordinator_partition
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.init_producer_id import InitProducerIdRequest
from tests.broker.node_stage import Stage
from tests.broker.raw import ClosedError
from tests.broker.requests import batch_of, create_topic
from tests.transactions.protocol import TV1, Protocol
from tests.transactions.requests import produce_request
from tests.transactions.wire import (
    GROUP,
    NONE,
    WireProducer,
    await_coordinator,
    committed_offset,
    describe,
    end_offset,
    find_coordinator,
    state_of,
    transaction_log,
    values,
)

INVALID = ErrorCode.INVALID_REQUEST
UNKNOWN_PRODUCER = ErrorCode.INVALID_PRODUCER_ID_MAPPING
FENCED = ErrorCode.PRODUCER_FENCED
STALE = ErrorCode.INVALID_PRODUCER_EPOCH
NO_PARTITION = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.fixture(autouse=True)
def _topics(stage: Stage) -> None:
    create_topic(stage, "t", 2)
    await_coordinator(stage, "a")
    await_coordinator(stage, "g", GROUP)


def producer(stage: Stage, protocol: Protocol, name: str = "a") -> WireProducer:
    return WireProducer(stage, name, protocol).initialise()


@contextmanager
def untouched(stage: Stage, protocol: Protocol) -> Iterator[WireProducer]:
    """An open transaction that requests inside must not change; it commits as a whole."""
    one = producer(stage, protocol)
    one.send("t", b"mine")
    one.send_offsets("g", {("t", 0): 1})
    log, ends = transaction_log(stage, "a"), log_ends(stage)
    yield one.twin()
    assert transaction_log(stage, "a") == log
    assert log_ends(stage) == ends
    assert describe(stage, "a").transaction_state == "Ongoing"
    one.send("t", b"mine too")
    one.commit()
    assert values(stage, "t") == [b"mine", b"mine too"]
    assert committed_offset(stage, "g", "t") == 1


def log_ends(stage: Stage) -> list[int]:
    return [end_offset(stage, "t", index=index, committed=False) for index in (0, 1)]


def everything(one: WireProducer) -> dict[str, int]:
    """The error of each kind of request that names a transaction."""
    return {
        "add": one.add_one("t", 1),
        "group": one.add_offsets("other"),
        "offsets": one.commit_offsets("other", {("t", 0): 5}, version=5)["t", 0],
        "write": one.produce("t", b"foreign", index=1, version=12).error_code,
        "commit": one.end(commit=True),
        "abort": one.end(commit=False),
    }


# -- ids -------------------------------------------------------------------------------------------


def test_an_empty_id_is_an_invalid_request(stage: Stage, protocol: Protocol) -> None:
    nobody = WireProducer(stage, "", protocol)
    # It has a coordinator like any other id, as in Kafka, but every request is refused.
    assert find_coordinator(stage, "").error_code == ErrorCode.NONE
    assert nobody.init() == INVALID
    nobody.producer_id, nobody.epoch = 0, 0
    assert set(everything(nobody).values()) == {INVALID}
    assert describe(stage, "").error_code == INVALID


def test_an_id_may_have_ten_thousand_characters(stage: Stage, protocol: Protocol) -> None:
    name = "x" * 10_000
    one = producer(stage, protocol, name)
    one.send("t", b"v")
    one.send_offsets("g", {("t", 0): 1})
    one.commit()
    assert state_of(stage, name) == "CompleteCommit"
    assert values(stage, "t") == [b"v"]
    again = stage.kill().again()
    assert state_of(again, name) == "CompleteCommit"
    again.abandon()


@pytest.mark.parametrize("name", ["\u00e9t\u00e9", "\U0001f600", " ", "a\nb", "a/b..c", "\u0000"])
def test_an_id_may_have_any_characters(stage: Stage, protocol: Protocol, name: str) -> None:
    one = producer(stage, protocol, name)
    one.send("t", b"v")
    one.commit()
    again = stage.kill().again()
    assert state_of(again, name) == "CompleteCommit"
    again.abandon()


def test_an_init_without_an_id_is_for_an_idempotent_producer(stage: Stage) -> None:
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
    replies = [stage.call(ApiKey.INIT_PRODUCER_ID, 5, request) for _ in range(2)]
    assert [reply.error_code for reply in replies] == [NONE, NONE]
    assert replies[0].producer_id != replies[1].producer_id
    assert [reply.producer_epoch for reply in replies] == [0, 0]


def test_a_transactional_batch_without_an_id_is_refused(stage: Stage, protocol: Protocol) -> None:
    with untouched(stage, protocol) as one:
        batches = {("t", 1): one.batch(b"v"), ("nowhere", 0): one.batch(b"v")}
        request = produce_request(batches, transactional_id=None)
        reply = stage.call(ApiKey.PRODUCE, protocol.produce, request)
        errors = [p.error_code for topic in reply.responses for p in topic.partition_responses]
        assert errors == [ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED] * 2


NULL_IDS = {
    "AddPartitionsToTxn v0": (ApiKey.ADD_PARTITIONS_TO_TXN, 0, struct.pack(">hqhi", -1, 0, 0, 0)),
    "AddOffsetsToTxn v0": (ApiKey.ADD_OFFSETS_TO_TXN, 0, struct.pack(">hqhh1s", -1, 0, 0, 1, b"g")),
    "EndTxn v1": (ApiKey.END_TXN, 1, struct.pack(">hqh?", -1, 0, 0, True)),
    "EndTxn v5": (ApiKey.END_TXN, 5, b"\x00" + struct.pack(">qh?", 0, 0, True) + b"\x00"),
    "TxnOffsetCommit v0": (
        ApiKey.TXN_OFFSET_COMMIT,
        0,
        struct.pack(">hh1sqhi", -1, 1, b"g", 0, 0, 0),
    ),
}


@pytest.mark.parametrize("name", NULL_IDS)
def test_a_null_id_closes_the_connection(stage: Stage, name: str) -> None:
    """As in Kafka: the request cannot be decoded, so there can be no reply."""
    api, version, body = NULL_IDS[name]
    with untouched(stage, TV1):
        line = stage.connect()
        tags = b"\x00" if version == 5 else b""
        header = struct.pack(">hhih3s", api, version, 1, 3, b"raw") + tags
        line.send_bytes(struct.pack(">i", len(header + body)) + header + body)
        with pytest.raises(ClosedError):
            line.reply(api, version, 1)


# -- identities ------------------------------------------------------------------------------------


@pytest.mark.parametrize("difference", [1, 1_000_000, -1_000], ids=["next", "far", "negative"])
def test_another_producer_id_is_refused(stage: Stage, protocol: Protocol, difference: int) -> None:
    with untouched(stage, protocol) as one:
        one.producer_id = max(-1, one.producer_id + difference)
        if one.producer_id < 0:
            told = everything_but_writing(one)
            assert set(told.values()) == {UNKNOWN_PRODUCER}
        else:
            assert set(everything(one).values()) == {UNKNOWN_PRODUCER}


def everything_but_writing(one: WireProducer) -> dict[str, int]:
    return {
        "add": one.add_one("t", 1),
        "group": one.add_offsets("other"),
        "commit": one.end(commit=True),
        "abort": one.end(commit=False),
    }


@pytest.mark.parametrize("epoch", [-1, 1, 7, 32_766, 32_767, -32_768])
def test_another_epoch_is_refused(stage: Stage, protocol: Protocol, epoch: int) -> None:
    """The coordinator returns 90; replies to Produce and TxnOffsetCommit have 47."""
    with untouched(stage, protocol) as one:
        one.epoch = epoch
        told = everything(one)
        assert {told.pop("offsets"), told.pop("write")} == {STALE}
        assert set(told.values()) == {FENCED}


def test_the_producer_id_and_epoch_of_another_transactional_id_are_refused(
    stage: Stage, protocol: Protocol
) -> None:
    other = producer(stage, protocol, "b")
    with untouched(stage, protocol) as one:
        thief = other.twin()
        thief.transactional_id = "a"
        assert set(everything(thief).values()) == {UNKNOWN_PRODUCER}
        thief = one.twin()
        thief.transactional_id = "b"
        assert set(everything(thief).values()) == {UNKNOWN_PRODUCER}
        thief.transactional_id = "nobody"
        assert set(everything(thief).values()) == {UNKNOWN_PRODUCER}
    assert state_of(stage, "b") == "Empty"


def test_a_write_of_another_producer_to_an_open_transaction_is_refused(
    stage: Stage, protocol: Protocol
) -> None:
    """Only first writes are verified; then producer id and epoch are checked, as in Kafka."""
    with untouched(stage, protocol) as one:
        stranger = one.twin()
        stranger.epoch += 1
        refused = stranger.produce("t", b"foreign", sequence=0).error_code
        assert refused == STALE
        stranger = one.twin()
        stranger.producer_id += 1_000
        assert stranger.produce("t", b"foreign", sequence=0).error_code == UNKNOWN_PRODUCER


@pytest.mark.parametrize(
    ("producer_id", "epoch"), [(-1, 0), (5, -1), (-1, 32_767)], ids=["no id", "no epoch", "last"]
)
def test_case_6_init_with_only_a_producer_id_or_only_an_epoch_is_refused(
    stage: Stage, protocol: Protocol, producer_id: int, epoch: int
) -> None:
    with untouched(stage, protocol) as one:
        assert one.init(producer_id=producer_id, epoch=epoch) == INVALID


# -- partitions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [("nowhere", 0), ("t", 2), ("t", -1), ("", 0), ("t", 2**31 - 1)])
def test_case_23_a_missing_partition_prevents_the_others_from_being_added(
    stage: Stage, protocol: Protocol, name: tuple[str, int]
) -> None:
    topic, index = name
    with untouched(stage, protocol) as one:
        added = one.add(name, ("t", 1))
        assert added == {name: NO_PARTITION, ("t", 1): ErrorCode.OPERATION_NOT_ATTEMPTED}
        assert one.produce(topic, b"v", index=index).error_code == NO_PARTITION
        assert one.commit_offsets("g", {name: 1}) == {name: NO_PARTITION}


@pytest.mark.parametrize("topic", ["__transaction_state", "__consumer_offsets"])
def test_clients_cannot_add_or_write_internal_topics(
    stage: Stage, protocol: Protocol, topic: str
) -> None:
    with untouched(stage, protocol) as one:
        assert one.add_one(topic) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        refused = one.produce(topic, b"v", sequence=0).error_code
        assert refused == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_an_empty_group_id_is_refused(stage: Stage, protocol: Protocol) -> None:
    one = producer(stage, protocol)
    one.send("t", b"v")
    if protocol is TV1:
        assert one.add_offsets("") == NONE, "Kafka hashes it like any other name"
    (error,) = one.commit_offsets("", {("t", 0): 1}).values()
    assert error == ErrorCode.INVALID_GROUP_ID
    one.commit()
    assert values(stage, "t") == [b"v"]


def test_an_add_without_partitions_begins_an_empty_transaction(stage: Stage) -> None:
    """As in Kafka, which only requires that all partitions exist."""
    one = producer(stage, TV1)
    assert one.add() == {}
    assert state_of(stage, "a") == "Ongoing"
    assert one.end(commit=True) == NONE
    one.send("t", b"v")
    one.commit()
    assert values(stage, "t") == [b"v"]


# -- the wrong order -------------------------------------------------------------------------------


def test_every_request_before_init_is_refused(stage: Stage, protocol: Protocol) -> None:
    early = WireProducer(stage, "early", protocol)
    early.producer_id, early.epoch = 0, 0
    assert set(everything(early).values()) == {UNKNOWN_PRODUCER}
    assert describe(stage, "early").error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert log_ends(stage) == [0, 0]


def test_offsets_of_a_group_that_was_not_added_are_refused(stage: Stage) -> None:
    with untouched(stage, TV1) as one:
        other = next(name for name in map(str, range(100)) if lives_apart(stage, name))
        told = one.commit_offsets(other, {("t", 0): 9})
        assert set(told.values()) == {ErrorCode.TRANSACTION_ABORTABLE}


def lives_apart(stage: Stage, group: str) -> bool:
    """Whether a group belongs to another partition than `g`."""
    return coordinator_partition(group, 2) != coordinator_partition("g", 2)


def test_plain_records_can_be_written_between_the_batches_of_a_transaction(
    stage: Stage, protocol: Protocol
) -> None:
    one = producer(stage, protocol)
    one.send("t", b"1")
    request = produce_request({("t", 0): batch_of(b"plain")}, transactional_id="a")
    reply = stage.call(ApiKey.PRODUCE, protocol.produce, request)
    assert reply.responses[0].partition_responses[0].error_code == NONE
    one.send("t", b"2")
    one.abort()
    assert values(stage, "t") == [b"plain"]
