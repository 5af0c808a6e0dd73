"""A full disk: requests get KAFKA_STORAGE_ERROR; with free space everything continues.

Method: the disk in memory is left with a number of free bytes, for many numbers, so that a write
fails at its beginning, in its middle and at its end.
"""

from __future__ import annotations

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.base.failures import StorageError
from tests.broker.node_stage import Stage
from tests.broker.requests import (
    alter_topic,
    batch_of,
    create_topic,
    delete_topic,
    fetch,
    produce,
    read_topic,
)
from tests.transactions.wire import GROUP, await_coordinator, find_coordinator


def test_other_partitions_and_readers_are_served_while_one_batch_does_not_fit() -> None:
    with Stage(durability="os") as stage:
        create_topic(stage, "full", 2)
        produce(stage, "full", batch_of(b"small"), index=1)
        stage.disk.fill(500)
        large = produce(stage, "full", batch_of(b"x" * 1_000), index=0)
        assert large.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert produce(stage, "full", batch_of(b"small"), index=1).base_offset == 1
        assert read_topic(stage, "full", 1) == [b"small", b"small"]
        assert fetch(stage, "full", index=0).high_watermark == 0


def test_a_segment_that_cannot_be_sealed_is_continued_when_there_is_space() -> None:
    settings = {"internal.segment.bytes": "300"}
    for free_bytes in (0, 5, 20, 80, 150):
        with Stage(durability="os") as stage:
            create_topic(stage, "rolling", settings=settings)
            expected: list[bytes] = []
            for number in range(12):
                if number == 4:
                    stage.disk.fill(free_bytes)
                if number == 8:
                    stage.disk.empty()
                outcome = produce(stage, "rolling", batch_of(b"%d" % number))
                if outcome.error_code == ErrorCode.NONE:
                    assert outcome.base_offset == len(expected)
                    expected.append(b"%d" % number)
                else:
                    assert outcome.error_code == ErrorCode.KAFKA_STORAGE_ERROR
                    assert 4 <= number < 8
            assert len(expected) >= 8
            assert read_topic(stage, "rolling") == expected
            again = stage.kill().again()
            assert read_topic(again, "rolling") == expected
            again.stop()


# -- metadata --------------------------------------------------------------------------------------


def test_deletions_and_changes_that_cannot_be_written_have_no_effect() -> None:
    with Stage(durability="os") as stage:
        create_topic(stage, "kept")
        produce(stage, "kept", batch_of(b"value"))
        stage.disk.fill()
        assert delete_topic(stage, "kept") == ErrorCode.KAFKA_STORAGE_ERROR
        refused = alter_topic(stage, "kept", "retention.ms", "1000")
        assert refused == ErrorCode.KAFKA_STORAGE_ERROR
        partition = stage.partition("kept", 0)
        assert partition.log.config.retention_ms != 1_000
        assert read_topic(stage, "kept") == [b"value"]
        stage.disk.empty()
        again = stage.kill().again()
        assert read_topic(again, "kept") == [b"value"]
        again.stop()


def test_a_broker_does_not_start_on_a_full_disk() -> None:
    stage = Stage(durability="os").start()
    create_topic(stage, "kept")
    produce(stage, "kept", batch_of(b"value"))
    stage.stop()
    stage.disk.fill()
    with pytest.raises(StorageError):
        stage.again()
    stage.disk.empty()
    again = stage.again()
    assert read_topic(again, "kept") == [b"value"]
    again.stop()


# -- coordinators ----------------------------------------------------------------------------------


def test_an_internal_topic_that_cannot_be_created_is_created_later() -> None:
    with Stage(durability="os") as stage:
        stage.disk.fill()
        refused = find_coordinator(stage, "g", GROUP)
        assert refused.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        stage.disk.empty()
        await_coordinator(stage, "g", GROUP)


def test_housekeeping_on_a_full_disk_harms_nothing() -> None:
    settings = {
        "log.retention.check.interval.ms": "1000",
        "log.cleaner.backoff.ms": "1000",
        "log.flush.offset.checkpoint.interval.ms": "1000",
    }
    with Stage(durability="os", settings=settings) as stage:
        compacted = {"cleanup.policy": "compact", "internal.segment.bytes": "200"}
        create_topic(stage, "compacted", settings=compacted)
        for number in range(10):
            produce(stage, "compacted", batch_of(b"%d" % number, key=b"same"))
        stage.disk.fill(50)
        stage.advance(60_000)
        stage.disk.empty()
        stage.advance(60_000)
        assert read_topic(stage, "compacted")[-1] == b"9"
        assert produce(stage, "compacted", batch_of(b"10", key=b"same")).base_offset == 10
