"""Periodic work: retention, compaction, expiry of producers, checkpoints.

The test advances the clock, and the timers of housekeeping fire as they do in the broker.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Any

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import TopicPartition
from fencepost.partition.partition import Partition
from fencepost.records.text_files import decode_offsets
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.delete_topics import DeleteTopicsRequest, DeleteTopicState
from tests.broker.node_stage import FOLDER, Stage
from tests.broker.requests import (
    NOW_MS,
    alter_topic,
    batch_of,
    create_topic,
    fetch,
    produce,
    read_topic,
)

A_MINUTE_MS = 60_000
AN_HOUR_MS = 60 * A_MINUTE_MS
A_DAY_MS = 24 * AN_HOUR_MS
SMALL_SEGMENTS = {"internal.segment.bytes": "200"}
TIMERS = (
    "log.retention.check.interval.ms",
    "log.cleaner.backoff.ms",
    "producer.id.expiration.check.interval.ms",
    "log.flush.offset.checkpoint.interval.ms",
)


def new_stage(interval_ms: int = 10_000, **settings: str) -> Stage:
    """A broker with the same interval for all periodic work."""
    given = {key.replace("_", "."): value for key, value in settings.items()}
    return Stage(durability="os", settings={**dict.fromkeys(TIMERS, str(interval_ms)), **given})


def made(stage: Stage, name: str, settings: Mapping[str, str]) -> Partition:
    create_topic(stage, name, settings={**SMALL_SEGMENTS, **settings})
    return stage.partition(name, 0)


def write(stage: Stage, topic: str, *values: bytes, key: bytes | None = None, **more: Any) -> None:
    """One batch for each value, stamped with the time on the stage's clock."""
    for value in values:
        batch = batch_of(value, key=key, timestamp_ms=stage.clock.now_ms(), **more)
        assert produce(stage, topic, batch).error_code == ErrorCode.NONE


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last + 1)]


# -- retention -------------------------------------------------------------------------------------


def test_segments_older_than_the_retention_of_their_topic_are_removed() -> None:
    with new_stage() as stage:
        made(stage, "t", {"retention.ms": str(AN_HOUR_MS)})
        write(stage, "t", *numbers(0, 9))
        stage.advance(AN_HOUR_MS / 2)
        write(stage, "t", *numbers(10, 19))
        stage.advance(AN_HOUR_MS / 2 + A_MINUTE_MS)
        kept = read_topic(stage, "t")
        assert kept[-10:] == numbers(10, 19)
        assert b"0" not in kept
        got = fetch(stage, "t", 0)
        assert got.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert got.log_start_offset == 20 - len(kept)


def test_a_retention_changed_while_the_broker_runs_takes_effect() -> None:
    with new_stage() as stage:
        made(stage, "t", {"retention.ms": "-1"})
        write(stage, "t", *numbers(0, 9))
        assert alter_topic(stage, "t", "retention.ms", "1000") == 0
        stage.advance(A_MINUTE_MS)
        assert read_topic(stage, "t") == []


@pytest.mark.parametrize("ending", ["stop", "kill"])
def test_records_removed_by_retention_do_not_come_back(ending: str) -> None:
    stage = new_stage().start()
    made(stage, "t", {"retention.ms": str(AN_HOUR_MS)})
    write(stage, "t", *numbers(0, 9))
    stage.advance(2 * AN_HOUR_MS)
    write(stage, "t", b"10")
    getattr(stage, ending)()
    again = stage.again()
    assert read_topic(again, "t") == [b"10"]
    assert produce(again, "t", batch_of(b"11")).base_offset == 11
    again.stop()


def test_a_failing_partition_does_not_prevent_the_retention_of_others() -> None:
    with new_stage() as stage:
        names = ["a", "b", "c"]
        for name in names:
            made(stage, name, {"retention.ms": str(AN_HOUR_MS)})
            write(stage, name, *numbers(0, 4))
        stage.advance(AN_HOUR_MS)
        broken = stage.partition("a", 0)

        broken.log.disk = FailingDisk(broken.log.disk)
        for segment in broken.log.segments:
            segment._disk = broken.log.disk
        stage.advance(A_MINUTE_MS)
        assert [len(read_topic(stage, name)) for name in names[1:]] == [0, 0]


class FailingDisk:
    """A disk that can be read but not written."""

    def __init__(self, disk: Any) -> None:
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        if name in ("remove", "rename", "write_file", "remove_tree"):
            return self._refuse
        return getattr(self._disk, name)

    def _refuse(self, *_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error")


# -- compaction ------------------------------------------------------------------------------------

COMPACTED = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": str(AN_HOUR_MS),
}


def write_keys(stage: Stage, topic: str, rounds: int, keys: int = 3) -> None:
    for number in range(rounds):
        for key in range(keys):
            write(stage, topic, b"%d-%d" % (key, number), key=b"k%d" % key)


def test_compaction_keeps_the_newest_value_of_every_key() -> None:
    with new_stage() as stage:
        partition = made(stage, "t", COMPACTED)
        write_keys(stage, "t", 10)
        before = partition.log.size_bytes
        stage.advance(A_MINUTE_MS)
        assert partition.log.size_bytes < before
        values = read_topic(stage, "t")
        assert [b"%d-9" % key for key in range(3)] == values[-3:]
        assert b"0-0" not in values
        assert produce(stage, "t", batch_of(b"next", key=b"k0")).base_offset == 30


def test_with_the_cleaner_disabled_every_value_is_kept() -> None:
    with new_stage(log_cleaner_enable="false") as stage:
        made(stage, "t", COMPACTED)
        write_keys(stage, "t", 10)
        stage.advance(A_MINUTE_MS)
        assert len(read_topic(stage, "t")) == 30


def test_a_topic_may_be_deleted_in_the_middle_of_its_compaction() -> None:
    with new_stage() as stage:
        for count in range(20):
            made(stage, "doomed", COMPACTED)
            write_keys(stage, "doomed", 6)
            steps = stage.node.housekeeping._compact()
            for _ in range(count):
                next(steps, None)
            deletion = DeleteTopicsRequest(topics=[DeleteTopicState(name="doomed")])
            assert not stage.call(ApiKey.DELETE_TOPICS, 6, deletion).responses[0].error_code
            for _ in steps:
                assert stage.node.partitions.get("doomed", 0) is None
            stage.settle()
            assert not [name for name in stage.disk.list_dir(FOLDER) if "doomed" in name]
        made(stage, "after", COMPACTED)
        write_keys(stage, "after", 6)
        stage.advance(A_MINUTE_MS)
        assert b"0-0" not in read_topic(stage, "after")


# -- producers and checkpoints ---------------------------------------------------------------------


def test_a_producer_expires_after_a_day_without_writes() -> None:
    with new_stage(A_MINUTE_MS) as stage:
        partition = made(stage, "t", {"retention.ms": "-1"})
        write(stage, "t", b"0", producer_id=9, epoch=0, sequence=0)
        stage.advance(A_DAY_MS - A_MINUTE_MS)
        assert partition.producers.get(9) is not None
        stage.advance(2 * A_MINUTE_MS)
        assert partition.producers.get(9) is None
        # Its state is gone, so any sequence is accepted.
        outcome = produce(stage, "t", batch_of(b"7", producer_id=9, epoch=0, sequence=7))
        assert (outcome.error_code, outcome.base_offset) == (ErrorCode.NONE, 1)


def test_recovery_points_are_saved_while_the_broker_runs() -> None:
    settings = dict.fromkeys(TIMERS, "1000")
    with Stage(durability="fsync", settings=settings) as stage:
        create_topic(stage, "t")
        for _ in range(5):
            produce(stage, "t", batch_of(b"value", timestamp_ms=NOW_MS))
        stage.advance(10_000)
        points = decode_offsets(stage.disk.read_file(f"{FOLDER}/recovery-point-offset-checkpoint"))
        # One below the end, because the indexes of the active segment are not on the disk yet.
        assert points[TopicPartition("t", 0)] == 4


def test_an_idle_day_causes_almost_no_disk_calls() -> None:
    with new_stage(A_MINUTE_MS) as stage:
        made(stage, "t", {"retention.ms": "-1"})
        write(stage, "t", *numbers(0, 9))
        stage.advance(A_MINUTE_MS)  # The scrub after the start reads all of it once.
        before = stage.disk.calls
        stage.advance(A_DAY_MS)
        # The sealed segments are flushed once and read once; 1,440 rounds find nothing to do.
        assert stage.disk.calls - before < 100
        assert read_topic(stage, "t") == numbers(0, 9)
