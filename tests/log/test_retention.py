"""Retention and DeleteRecords: what is removed, and what must stay."""

from __future__ import annotations

import pytest

from fencepost.log import Log, LogConfig
from fencepost.log.config import COMPACT, DELETE
from fencepost.simulation.disk import UnsyncedDisk
from tests.log.audit import audit
from tests.log.batches import FOLDER, all_batches, append, open_log, retain

ONE_PER_SEGMENT = 100  # bytes: every batch of these tests fills a segment
NOW = 1_000_000


@pytest.fixture
def disk() -> UnsyncedDisk:
    return UnsyncedDisk()


def a_log(disk: UnsyncedDisk, *ages_ms: int, **settings: object) -> Log:
    """One segment of one record per age, the last one active."""
    config = LogConfig(segment_bytes=ONE_PER_SEGMENT, **settings)  # type: ignore[arg-type]
    log = open_log(disk, config)
    for age_ms in ages_ms:
        append(log, timestamp_ms=NOW - age_ms)
    return log


def bases(log: Log) -> list[int]:
    return [segment.base_offset for segment in log.segments]


def test_segments_older_than_the_retention_time_are_removed(disk: UnsyncedDisk) -> None:
    log = a_log(disk, 500, 400, 300, 200, 100, retention_ms=300)
    assert len(retain(log, NOW, upper_offset=5)) == 2
    assert bases(log) == [2, 3, 4]
    assert log.log_start_offset == 2
    assert not disk.exists(f"{FOLDER}/{0:020d}.log")
    log.close(clean=True)
    assert len(audit(disk, FOLDER)) == 3


def test_a_segment_is_as_old_as_its_newest_record_and_keeps_all_later_ones(
    disk: UnsyncedDisk,
) -> None:
    log = a_log(disk, 100, 500, 400, retention_ms=300)
    assert retain(log, NOW, upper_offset=3) == []
    assert bases(log) == [0, 1, 2]


def test_records_that_are_not_durable_are_kept(disk: UnsyncedDisk) -> None:
    log = a_log(disk, 500, 500, 500, 500, retention_ms=300)
    assert len(retain(log, NOW, upper_offset=2)) == 2
    assert bases(log) == [2, 3]


def test_when_all_segments_have_expired_a_new_one_keeps_the_end_offset(disk: UnsyncedDisk) -> None:
    log = a_log(disk, 500, 500, 500, retention_ms=300)
    assert len(retain(log, NOW, upper_offset=3)) == 3
    assert (bases(log), log.log_start_offset, log.log_end_offset) == ([3], 3, 3)
    assert retain(log, NOW, upper_offset=3) == []
    append(log)
    log.close(clean=True)
    assert open_log(disk, clean=True, log_start_offset=3).log_end_offset == 4


def test_a_retention_of_minus_one_keeps_records_forever(disk: UnsyncedDisk) -> None:
    log = a_log(disk, 500_000, 100, retention_ms=-1)
    assert retain(log, NOW, upper_offset=2) == []


def test_the_oldest_segments_beyond_the_retention_size_are_removed(disk: UnsyncedDisk) -> None:
    log = a_log(disk, 0, 0, 0, 0, 0, retention_bytes=200)
    size = log.segments[0].size_bytes
    assert 2 * size <= 200 < 3 * size
    retain(log, NOW, upper_offset=5)
    # Kafka removes a segment only if the rest is still as large as the limit.
    assert bases(log) == [2, 3, 4]


def test_a_log_below_the_retention_size_keeps_everything(disk: UnsyncedDisk) -> None:
    log = a_log(disk, 0, 0, retention_bytes=10_000)
    assert retain(log, NOW, upper_offset=2) == []


def test_a_segment_without_timestamps_is_removed_only_with_a_later_one(disk: UnsyncedDisk) -> None:
    log = a_log(disk, NOW + 1, 500, NOW + 1, 100, retention_ms=300)
    assert log.segments[0].max_timestamp == -1
    retain(log, NOW, upper_offset=4)
    assert bases(log) == [2, 3]


def test_a_compacted_log_is_not_deleted_by_age(disk: UnsyncedDisk) -> None:
    log = a_log(disk, 500, 400, 100, retention_ms=300, cleanup_policy=frozenset({COMPACT}))
    assert retain(log, NOW, upper_offset=3) == []
    both = frozenset({COMPACT, DELETE})
    log.config = LogConfig(segment_bytes=ONE_PER_SEGMENT, retention_ms=300, cleanup_policy=both)
    assert len(retain(log, NOW, upper_offset=3)) == 2


def test_the_age_of_sealed_segments_is_known_after_a_restart(disk: UnsyncedDisk) -> None:
    log = a_log(disk, 500, 400, 100, retention_ms=300)
    config = log.config
    log.close(clean=True)
    log = open_log(disk, config, clean=True)
    assert len(retain(log, NOW, upper_offset=3)) == 2


def test_deleted_records_are_not_served_and_their_segments_are_removed(disk: UnsyncedDisk) -> None:
    log = open_log(disk, LogConfig(segment_bytes=200))
    for _ in range(9):
        append(log, 2, size=30)
    log.delete_before(7)
    assert log.log_start_offset == 7
    assert log.segments[0].base_offset <= 7
    assert log.segments[0].next_offset > 7
    assert all_batches(log)[0].base_offset == 6
    log.delete_before(3)
    assert log.log_start_offset == 7


def test_deleting_up_to_the_end_keeps_the_active_segment(disk: UnsyncedDisk) -> None:
    log = a_log(disk, 0, 0, 0)
    log.delete_before(3)
    assert (log.log_start_offset, log.log_end_offset, bases(log)) == (3, 3, [2])
    append(log)
    assert log.log_end_offset == 4


def test_retention_removes_segments_below_the_start_even_without_a_delete_policy(
    disk: UnsyncedDisk,
) -> None:
    log = a_log(disk, 0, 0, 0, cleanup_policy=frozenset({COMPACT}))
    log.log_start_offset = 2
    assert len(retain(log, NOW, upper_offset=3)) == 2


def test_old_snapshots_are_removed_with_their_segments(disk: UnsyncedDisk) -> None:
    log = a_log(disk, 0, 0, 0, 0)
    for offset in range(5):
        log.snapshots.write(offset, b"x")
    log.delete_before(3)
    assert log.snapshots.offsets() == [3, 4]
    log.snapshots.delete(4)
    assert log.snapshots.offsets() == [3]
    log.snapshots.delete(3)
    assert log.snapshots.latest(9) is None
