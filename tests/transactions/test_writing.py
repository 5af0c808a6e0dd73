"""Produce in a transaction, over the wire: first writes, fences, expiry (cases 37-39 and 60-63)."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.wire.apis import ApiKey
from tests.broker.node_stage import Stage
from tests.broker.requests import create_topic
from tests.transactions.protocol import TV1, TV2, Protocol
from tests.transactions.requests import produce_request
from tests.transactions.wire import (
    NONE,
    WireProducer,
    consume,
    describe,
    end_offset,
    state_of,
    values,
)

HOUR_MS = 3_600_000
OLD_PRODUCE_VERSIONS = range(3, 12)
NEW_PRODUCE_VERSIONS = (12, 13)


@pytest.fixture(autouse=True)
def _topic(stage: Stage) -> None:
    create_topic(stage, "t", 2)


def producer(stage: Stage, protocol: Protocol, name: str = "a", **given: Any) -> WireProducer:
    return WireProducer(stage, name, protocol).initialise(**given)


def write_versions(stage: Stage, one: WireProducer, version: int) -> Any:
    """Produce of one batch in any version, by name or by id."""
    request = one.produce_request("t", b"v")
    if version >= 13:
        request.topic_data[0].name = ""
        request.topic_data[0].topic_id = stage.node.metadata.topic_id("t")
    return stage.call(ApiKey.PRODUCE, version, request).responses[0].partition_responses[0]


# -- case 60: first writes -------------------------------------------------------------------------


@pytest.mark.parametrize("version", NEW_PRODUCE_VERSIONS)
def test_case_60_a_tv2_first_write_adds_its_partition(stage: Stage, version: int) -> None:
    one = producer(stage, TV2)
    assert write_versions(stage, one, version).error_code == NONE
    told = describe(stage, "a")
    assert told.transaction_state == "Ongoing"
    assert [(topic.topic, topic.partitions) for topic in told.topics] == [("t", [0])]


@pytest.mark.parametrize("version", OLD_PRODUCE_VERSIONS)
def test_case_60_a_tv1_first_write_to_a_partition_that_was_not_added_is_refused(
    stage: Stage, version: int
) -> None:
    one = producer(stage, TV1)
    assert one.add_one("t", 1) == NONE
    refused = write_versions(stage, one, version)
    assert refused.error_code == (
        ErrorCode.TRANSACTION_ABORTABLE if version >= 11 else ErrorCode.INVALID_TXN_STATE
    )
    assert end_offset(stage, "t", committed=False) == 0
    assert one.add_one("t", 0) == NONE
    assert write_versions(stage, one, version).error_code == NONE


@pytest.mark.parametrize("version", [10, 11, 12])
@pytest.mark.parametrize("state", ["Empty", "CompleteCommit", "CompleteAbort"])
def test_case_60_only_a_tv2_write_can_begin_a_transaction(
    stage: Stage, version: int, state: str
) -> None:
    one = producer(stage, TV2)
    if state != "Empty":
        one.send("t", b"before", index=1)
        assert one.end(commit=state == "CompleteCommit") == NONE
    assert state_of(stage, "a") == state
    expected = {10: ErrorCode.INVALID_TXN_STATE, 11: ErrorCode.TRANSACTION_ABORTABLE, 12: NONE}
    assert one.produce("t", b"v", version=version).error_code == expected[version]
    assert state_of(stage, "a") == ("Ongoing" if version == 12 else state)


@pytest.mark.parametrize("version", [3, 8, 11, 12])
@pytest.mark.parametrize("trouble", ["not owner", "loading"])
def test_case_60_an_unavailable_coordinator_is_reported_as_not_enough_replicas(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, version: int, trouble: str
) -> None:
    """This is the only code that old clients retry with the same batch (KAFKA-15459)."""
    one = producer(stage, TV1)
    assert one.add_one("t") == NONE
    transactions = stage.node.transactions
    index = transactions.partition_for("a")
    assert index is not None
    monkeypatch.setattr("fencepost.broker.coordinators.log_loader.ENTRIES_PER_TURN", 1)
    transactions.unload(index)
    if trouble == "loading":
        partition = stage.partition("__transaction_state", index)
        transactions.load(index, partition)
    assert one.produce("t", b"v", version=version).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert end_offset(stage, "t", committed=False) == 0


@pytest.mark.interpreted
@pytest.mark.parametrize("version", [11, 12])
def test_case_60_a_write_during_the_end_of_the_last_transaction_gets_a_retriable_error(
    version: int,
) -> None:
    """With fsync each marker takes a turn of the loop, so the next write may arrive before it."""
    with Stage(durability="fsync") as stage:
        create_topic(stage, "t", 2)
        one = producer(stage, TV1)
        one.send("t", b"first")
        hold_syncs(stage)
        ending, writing = stage.connect(), stage.connect()
        ended = ending.send(ApiKey.END_TXN, 4, one.end_request(commit=True))
        stage.settle()
        assert state_of(stage, "a") == "PrepareCommit"
        request = one.produce_request("t", b"next", index=1)
        started_ms = stage.clock.now_ms()
        reply = writing.call(ApiKey.PRODUCE, version, request)
        refused = reply.responses[0].partition_responses[0].error_code
        waited_ms = stage.clock.now_ms() - started_ms
        if version == 11:
            assert refused == ErrorCode.NOT_ENOUGH_REPLICAS
            assert waited_ms == 0
        else:
            assert refused == ErrorCode.CONCURRENT_TRANSACTIONS
            assert 100 <= waited_ms <= 110
        assert ended not in ending.replies


def hold_syncs(stage: Stage) -> None:
    """Stops all syncs: nothing becomes durable."""
    stage.node.partitions.when_durable = lambda *_: None  # type: ignore[method-assign]


# -- case 25: two concurrent first writes of one id ------------------------------------------------


def test_case_25_two_concurrent_first_writes_of_one_producer_are_both_accepted() -> None:
    """Kafka keeps one verification per id and refuses the older one; here both succeed."""
    with Stage(durability="fsync") as stage:
        create_topic(stage, "t", 2)
        one = producer(stage, TV2)
        lines = stage.connect(), stage.connect()
        sent = [
            line.send(ApiKey.PRODUCE, 12, one.produce_request("t", b"v", index=index))
            for index, line in enumerate(lines)
        ]
        for line, number in zip(lines, sent, strict=True):
            reply = line.reply(ApiKey.PRODUCE, 12, number)
            assert reply.responses[0].partition_responses[0].error_code == NONE
        one.commit()
        assert [values(stage, "t", index=index) for index in (0, 1)] == [[b"v"], [b"v"]]


def test_case_25_of_two_concurrent_first_writes_the_one_at_the_older_epoch_is_fenced(
    protocol: Protocol,
) -> None:
    with Stage(durability="fsync") as stage:
        create_topic(stage, "t", 2)
        old = producer(stage, protocol)
        new = producer(stage, protocol)
        if protocol is TV1:
            assert new.add_one("t") == NONE
        lines = stage.connect(), stage.connect()
        version = protocol.produce
        for first, second in ((old, new), (new, old)):
            sent = [
                line.send(ApiKey.PRODUCE, version, each.produce_request("t", b"v"))
                for line, each in zip(lines, (first, second), strict=True)
            ]
            told = {
                each.epoch: line.reply(ApiKey.PRODUCE, version, number)
                .responses[0]
                .partition_responses[0]
                .error_code
                for line, each, number in zip(lines, (first, second), sent, strict=True)
            }
            assert told == {new.epoch: NONE, old.epoch: ErrorCode.INVALID_PRODUCER_EPOCH}


# -- cases 61 to 63: writes that are always refused ------------------------------------------------


@pytest.mark.parametrize("version", [3, 7, 8, 10, 11, 12])
def test_case_61_a_stale_epoch_after_a_timeout_gets_the_right_error(
    stage: Stage, protocol: Protocol, version: int
) -> None:
    """47, not 48: the client must learn that it is fenced (KAFKA-19690); not 90 (KAFKA-10687)."""
    one = producer(stage, protocol, timeout_ms=1_000)
    one.send("t", b"late")
    stage.advance(12_000)
    assert state_of(stage, "a") == "CompleteAbort"
    refused = one.produce("t", b"later", version=version)
    assert refused.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    other_partition = one.produce("t", b"later", index=1, version=version)
    assert other_partition.error_code == ErrorCode.INVALID_PRODUCER_EPOCH


@pytest.mark.parametrize("knows", ["the partition", "only the coordinator"])
def test_the_error_of_a_fenced_write_has_both_epochs_and_is_logged_once(
    stage: Stage, protocol: Protocol, knows: str, caplog: pytest.LogCaptureFixture
) -> None:
    old = producer(stage, protocol)
    if knows == "the partition":
        old.send("t", b"v")
    new = producer(stage, protocol)
    with caplog.at_level(logging.WARNING, logger="fencepost"):
        refused = old.produce("t", b"zombie", version=12 if protocol is TV2 else 11)
    assert refused.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    aborted_at = old.epoch + 1 if knows == "the partition" else new.epoch
    assert f"is {old.epoch}, " in refused.error_message
    assert f"epoch {aborted_at}" in refused.error_message
    (line,) = [record.getMessage() for record in caplog.records]
    assert refused.error_message in line
    assert old.produce("t", b"zombie", version=7).error_message is None


def test_case_62_two_producers_in_one_transactional_request_are_refused(
    stage: Stage, protocol: Protocol
) -> None:
    one, two = producer(stage, protocol), producer(stage, protocol, "b")
    for each in (one, two):
        each.join(("t", 0), ("t", 1))
    request = produce_request(
        {("t", 0): one.batch(b"x"), ("t", 1): two.batch(b"y"), ("nowhere", 0): one.batch(b"z")},
        transactional_id="a",
    )
    reply = stage.call(ApiKey.PRODUCE, protocol.produce, request)
    errors = [p.error_code for topic in reply.responses for p in topic.partition_responses]
    assert errors == [ErrorCode.INVALID_PRODUCER_ID_MAPPING] * 3
    assert [end_offset(stage, "t", index=n, committed=False) for n in (0, 1)] == [0, 0]


def test_case_62_two_epochs_of_one_producer_in_one_request_are_refused(
    stage: Stage, protocol: Protocol
) -> None:
    one = producer(stage, protocol)
    one.join(("t", 0), ("t", 1))
    request = produce_request(
        {("t", 0): one.batch(b"x"), ("t", 1): one.batch(b"y", epoch=one.epoch + 1)},
        transactional_id="a",
    )
    reply = stage.call(ApiKey.PRODUCE, protocol.produce, request)
    errors = {p.error_code for topic in reply.responses for p in topic.partition_responses}
    assert errors == {ErrorCode.INVALID_PRODUCER_ID_MAPPING}


def test_case_63_a_control_batch_from_a_client_is_refused(stage: Stage, protocol: Protocol) -> None:
    one = producer(stage, protocol)
    one.send("t", b"v")
    refused = one.produce("t", b"\x00\x00\x00\x01", control=True)
    assert refused.error_code == ErrorCode.INVALID_RECORD
    assert consume(stage, "t", committed=False).markers == []
    one.commit()
    assert values(stage, "t") == [b"v"]


@pytest.mark.parametrize("version", [10, 11, 12])
def test_a_retried_batch_of_a_producer_fenced_meanwhile_is_refused(
    stage: Stage, version: int
) -> None:
    """The partition has the batch but not the fence, so the coordinator is asked."""
    old = producer(stage, TV1)
    again = old.twin()
    old.send("t", b"v")
    old.commit()
    producer(stage, TV1)
    refused = again.produce("t", b"v", version=version)
    assert refused.error_code == ErrorCode.INVALID_PRODUCER_EPOCH


# -- cases 37 to 39: time --------------------------------------------------------------------------


def test_case_37_a_producer_recovers_from_a_timeout_as_its_protocol_defines(
    stage: Stage, protocol: Protocol
) -> None:
    one = producer(stage, protocol, timeout_ms=5_000)
    one.send("t", b"late")
    stage.advance(20_000)
    assert one.end(commit=True) == (
        ErrorCode.PRODUCER_FENCED if protocol is TV1 else ErrorCode.INVALID_TXN_STATE
    )
    if protocol is TV1:
        assert one.end(commit=False) == ErrorCode.PRODUCER_FENCED
        one.initialise()
    else:
        one.abort()
    one.send("t", b"again")
    one.commit()
    assert values(stage, "t") == [b"again"]


def test_case_39_a_producer_expired_only_by_its_partition_keeps_its_producer_id(
    protocol: Protocol,
) -> None:
    with Stage(durability="os", settings={"producer.id.expiration.ms": "60000"}) as stage:
        create_topic(stage, "t")
        one = producer(stage, protocol)
        first_epoch = one.epoch
        one.send("t", b"1")
        one.commit()
        stage.advance(HOUR_MS)
        partition = stage.partition("t", 0)
        assert len(partition.producers) == 0, "expired"
        two = producer(stage, protocol)
        assert two.producer_id == one.producer_id
        assert two.epoch == first_epoch + (1 if protocol is TV1 else 2)
        two.send("t", b"2")
        two.commit()
        assert values(stage, "t") == [b"1", b"2"]
