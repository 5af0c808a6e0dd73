"""The shared sync of fsync mode: which requests share it, and what may happen while it runs."""

from __future__ import annotations

import errno
import io
from typing import Any

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.base.failures import StorageError
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.delete_topics import DeleteTopicsRequest, DeleteTopicState
from tests.broker.node_stage import DiedError, Line, Stage
from tests.broker.requests import (
    PRODUCE_VERSION,
    batch_of,
    create_topic,
    delete_topic,
    fetch,
    produce,
    produce_request,
    read_topic,
)


def send_batch(line: Line, topic: str, value: bytes, index: int = 0) -> int:
    request = produce_request(topic, batch_of(value), index=index)
    return line.send(ApiKey.PRODUCE, PRODUCE_VERSION, request)


def test_a_batch_is_neither_acknowledged_nor_visible_before_it_is_synced() -> None:
    with Stage() as stage:
        create_topic(stage, "t")
        line = stage.connect()
        written = send_batch(line, "t", b"value")
        assert written not in line.replies
        # The reader gets its reply in the same turn, before any sync can run.
        reader = stage.connect()
        assert fetch(reader, "t").high_watermark == 0
        assert line.reply(ApiKey.PRODUCE, PRODUCE_VERSION, written).responses
        assert fetch(reader, "t").high_watermark == 1


@pytest.mark.interpreted
def test_producers_of_many_partitions_share_a_sync() -> None:
    with Stage() as stage:
        create_topic(stage, "t", 8)
        produce(stage, "t", batch_of(b"warm"), index=0)
        runs = 0
        start_sync = stage.node.partitions._start_sync

        def counted() -> None:
            nonlocal runs
            runs += 1
            start_sync()

        stage.node.partitions._start_sync = counted  # type: ignore[method-assign]
        lines = [stage.connect() for _ in range(8)]
        asked = [send_batch(line, "t", b"v", index) for index, line in enumerate(lines)]
        for line, written in zip(lines, asked, strict=True):
            assert line.reply(ApiKey.PRODUCE, PRODUCE_VERSION, written).responses
        assert runs == 1


def test_a_topic_may_be_deleted_while_its_first_batch_is_being_synced() -> None:
    """The folder is deleted while its names are being synced, which is not a disk failure."""
    with Stage() as stage:
        create_topic(stage, "kept")
        for number in range(30):
            create_topic(stage, "doomed")
            line, admin = stage.connect(), stage.connect()
            written = send_batch(line, "doomed", b"value")
            deletion = DeleteTopicsRequest(topics=[DeleteTopicState(name="doomed")])
            kept = send_batch(line, "kept", b"%d" % number)
            for _ in range(number % 6):
                stage.loop.turn()
            assert not admin.call(ApiKey.DELETE_TOPICS, 6, deletion).responses[0].error_code
            line.reply(ApiKey.PRODUCE, PRODUCE_VERSION, written)
            line.reply(ApiKey.PRODUCE, PRODUCE_VERSION, kept)
        assert read_topic(stage, "kept") == [b"%d" % number for number in range(30)]


def test_a_failed_sync_stops_the_broker_and_acknowledges_nothing() -> None:
    stage = Stage().start()
    create_topic(stage, "t")
    produce(stage, "t", batch_of(b"safe"))
    line = stage.connect()
    written = send_batch(line, "t", b"unsure")
    stage.disk.fail_call(2, errno.EIO)  # The file is opened, then the sync fails.
    with pytest.raises(DiedError, match="disk"):
        line.reply(ApiKey.PRODUCE, PRODUCE_VERSION, written)
    again = stage.lose_power().again()
    assert read_topic(again, "t") == [b"safe"]
    again.stop()


def test_a_stop_with_pending_requests_is_clean() -> None:
    traced = io.StringIO()
    stage = Stage(trace=traced).start()
    create_topic(stage, "t")
    line = stage.connect()
    send_batch(line, "t", b"value")
    stage.loop.turn()
    stage.stop()
    assert (stage.fatal, stage.problems) == ([], [])
    again = stage.again()
    assert again.node.layout.clean
    assert read_topic(again, "t") == [b"value"]
    again.stop()


def test_a_batch_with_acks_0_becomes_visible() -> None:
    with Stage() as stage:
        create_topic(stage, "t")
        line = stage.connect()
        line.send(ApiKey.PRODUCE, PRODUCE_VERSION, produce_request("t", batch_of(b"value"), acks=0))
        stage.settle()
        assert read_topic(stage, "t") == [b"value"]


def test_a_duplicate_waits_until_the_first_batch_is_durable() -> None:
    with Stage() as stage:
        create_topic(stage, "t")
        first, second = stage.connect(), stage.connect()
        batch: dict[str, Any] = {"producer_id": 7, "epoch": 0, "sequence": 0}
        request = produce_request("t", batch_of(b"once", **batch))
        written = first.send(ApiKey.PRODUCE, PRODUCE_VERSION, request)
        repeated = second.send(ApiKey.PRODUCE, PRODUCE_VERSION, request)
        assert (written in first.replies, repeated in second.replies) == (False, False)
        replies = [
            line.reply(ApiKey.PRODUCE, PRODUCE_VERSION, number).responses[0].partition_responses[0]
            for line, number in ((first, written), (second, repeated))
        ]
        assert [(reply.error_code, reply.base_offset) for reply in replies] == [
            (ErrorCode.NONE, 0)
        ] * 2
        assert read_topic(stage, "t") == [b"once"]


@pytest.mark.parametrize("turns_before", range(6))
@pytest.mark.parametrize("turns_after", range(5))
def test_a_batch_that_arrives_during_a_sync_waits_for_the_next_one(
    turns_before: int, turns_after: int
) -> None:
    """The power is cut in every turn: acknowledged or visible records are kept."""
    stage = Stage().start()
    create_topic(stage, "t")
    produce(stage, "t", batch_of(b"0"))
    line, other = stage.connect(), stage.connect()
    first = send_batch(line, "t", b"1")
    for _ in range(turns_before):
        stage.loop.turn()
    second = send_batch(other, "t", b"2")
    for _ in range(turns_after):
        stage.loop.turn()
    acknowledged = 1 + (first in line.replies) + (second in other.replies)
    partition = stage.partition("t", 0)
    shown = partition.high_watermark
    stage.disk.lose_power_at(1)  # Now, not after the pending sync.
    again = stage.lose_power().again()
    kept = len(read_topic(again, "t"))
    assert kept >= acknowledged
    assert kept >= shown
    again.stop()


# -- bugs between two syncs ------------------------------------------------------------------------


def broken_stage() -> tuple[Stage, Line]:
    stage = Stage().start()
    create_topic(stage, "t")
    create_topic(stage, "broken")
    produce(stage, "t", batch_of(b"safe"))
    return stage, stage.connect()


def assert_ended(stage: Stage, line: Line, reason: str) -> None:
    """The broker logged why it stops, and lost no acknowledged record."""
    assert len(stage.fatal) == 1
    assert reason in stage.fatal[0]
    again = stage.lose_power().again()
    assert read_topic(again, "t")[:1] == [b"safe"]
    again.stop()


def test_a_failing_continuation_stops_the_broker_before_anything_else_is_acknowledged() -> None:
    stage, line = broken_stage()
    partition = stage.partition("broken", 0)
    produced = partition.append_records([(b"key", b"value")], 0)

    def fail() -> None:
        raise FileNotFoundError("planted")

    called: list[str] = []
    stage.node.runtime.when_durable(partition, produced, fail)
    stage.node.runtime.when_durable(partition, produced, lambda: called.append("too late"))
    written = send_batch(line, "t", b"unsure")
    stage.settle()
    assert written not in line.replies
    assert called == []
    assert_ended(stage, line, "FileNotFoundError: planted")


def test_a_continuation_that_fails_when_its_topic_is_deleted_stops_the_broker() -> None:
    stage, line = broken_stage()
    partition = stage.partition("broken", 0)

    def fail() -> None:
        raise KeyError("planted")

    stage.node.runtime.when_durable(partition, partition.log_end_offset + 1, fail)
    deletion = DeleteTopicsRequest(topics=[DeleteTopicState(name="broken")])
    line.send(ApiKey.DELETE_TOPICS, 6, deletion)
    stage.settle()
    assert_ended(stage, line, "KeyError: 'planted'")


def test_a_sync_that_cannot_be_started_stops_the_broker() -> None:
    stage, line = broken_stage()

    def refuse(*_: Any) -> Any:
        raise RuntimeError("can't start new thread")

    stage.loop.run_in_executor = refuse  # type: ignore[method-assign, assignment]
    written = send_batch(line, "t", b"unsure")
    stage.settle()
    assert written not in line.replies
    assert_ended(stage, line, "can't start new thread")


def test_a_cancelled_sync_stops_the_broker() -> None:
    stage, line = broken_stage()
    written = send_batch(line, "t", b"unsure")
    stage.loop.turn()
    sync = stage.node.partitions._last_sync
    assert sync is not None
    assert sync.cancel()
    stage.settle()
    assert written not in line.replies
    assert_ended(stage, line, "stopping")


def test_a_callback_for_a_deleted_partition_is_called_immediately() -> None:
    with Stage() as stage:
        create_topic(stage, "t")
        partition = stage.partition("t", 0)
        delete_topic(stage, "t")
        called: list[bool] = []
        stage.node.runtime.when_durable(partition, 10, lambda: called.append(partition.closed))
        assert called == [True]
        with pytest.raises(StorageError, match="closed"):
            partition.append_records([(b"key", b"value")], 0)
