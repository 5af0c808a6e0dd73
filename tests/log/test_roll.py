"""When a log rolls, and the files of the old segment."""

from __future__ import annotations

import pytest

from fencepost.base.failures import StorageError
from fencepost.base.seams import Disk
from fencepost.log import Log, LogConfig
from fencepost.log.roll import should_roll
from fencepost.records.batch import SealedBatch
from fencepost.simulation.disk import UnsyncedDisk
from tests.log.audit import audit
from tests.log.batches import FOLDER, all_batches, append, open_log, sealed

PAIR = (b"key", b"value")


def rolls(log: Log, batch: SealedBatch, now_ms: int) -> bool:
    return should_roll(log.active, log.config, batch, now_ms)


@pytest.fixture
def disk() -> UnsyncedDisk:
    return UnsyncedDisk()


def test_an_empty_segment_is_never_rolled(disk: Disk) -> None:
    log = open_log(disk, LogConfig(segment_bytes=10))
    assert not rolls(log, sealed(log, [PAIR]), 10**15)
    log.roll(0)
    assert len(log.segments) == 1


def test_a_segment_is_rolled_before_a_batch_that_would_exceed_its_size(disk: Disk) -> None:
    size = sealed(open_log(disk), [PAIR]).size_bytes
    log = open_log(disk, LogConfig(segment_bytes=2 * size))
    log.append(sealed(log, [PAIR]))
    assert not rolls(log, sealed(log, [PAIR]), 0)
    log.append(sealed(log, [PAIR]))
    assert rolls(log, sealed(log, [PAIR]), 0)


def test_a_segment_is_rolled_when_a_record_is_too_much_newer_than_its_first(disk: Disk) -> None:
    log = open_log(disk, LogConfig(segment_ms=100))
    log.append(sealed(log, [PAIR], timestamp_ms=1000))
    log.append(sealed(log, [PAIR], timestamp_ms=1090))
    assert not rolls(log, sealed(log, [PAIR], timestamp_ms=1100), 10**15)
    assert rolls(log, sealed(log, [PAIR], timestamp_ms=1101), 0)


def test_without_timestamps_the_clock_decides(disk: Disk) -> None:
    log = open_log(disk, LogConfig(segment_ms=100))
    log.append(sealed(log, [PAIR], timestamp_ms=-1))
    assert not rolls(log, sealed(log, [PAIR], timestamp_ms=-1), 100)
    assert rolls(log, sealed(log, [PAIR], timestamp_ms=-1), 101)


def test_jitter_rolls_a_segment_earlier(disk: Disk) -> None:
    log = open_log(disk, LogConfig(segment_ms=100, segment_jitter_ms=30))
    log.append(sealed(log, [PAIR], timestamp_ms=1000))
    assert rolls(log, sealed(log, [PAIR], timestamp_ms=1071), 0)


def test_a_segment_is_rolled_when_its_index_is_full(disk: Disk) -> None:
    log = open_log(disk, LogConfig(index_interval_bytes=1, segment_index_bytes=8 * 6))
    for _ in range(6):
        log.append(sealed(log, [PAIR], timestamp_ms=5))
    assert not rolls(log, sealed(log, [PAIR]), 0)
    log.append(sealed(log, [PAIR], timestamp_ms=5))
    assert rolls(log, sealed(log, [PAIR]), 0)


def test_a_segment_is_rolled_when_an_offset_is_too_far_from_its_base(disk: Disk) -> None:
    log = open_log(disk)
    batch = sealed(log, [PAIR])
    batch.last_offset_delta = 2**31 - 2
    log.append(batch)
    assert log.log_end_offset == 2**31 - 1
    assert not rolls(log, sealed(log, [PAIR]), 0)
    assert rolls(log, sealed(log, [PAIR, PAIR]), 0)


def test_the_name_of_a_segment_is_its_first_offset(disk: Disk) -> None:
    log = open_log(disk)
    append(log, 7)
    log.roll(0)
    append(log)
    assert disk.exists(f"{FOLDER}/00000000000000000007.log")
    assert [segment.base_offset for segment in log.segments] == [0, 7]
    assert [batch.base_offset for batch in all_batches(log)] == [0, 7]


def test_a_sealed_segment_has_its_indexes_on_the_disk(disk: Disk) -> None:
    log = open_log(disk, LogConfig(index_interval_bytes=100))
    for number in range(20):
        append(log, size=60, timestamp_ms=1000 - number if number % 3 else 2000 + number)
    log.roll(0)
    append(log)
    log.close(clean=True)
    assert len(audit(disk, FOLDER)) == 21
    assert len(disk.read_file(f"{FOLDER}/00000000000000000000.index")) == 8 * 19


def test_a_leftover_file_with_the_new_name_is_emptied(disk: Disk) -> None:
    log = open_log(disk)
    append(log)
    disk.write_file(f"{FOLDER}/00000000000000000001.log", b"old", sync=False)
    disk.write_file(f"{FOLDER}/00000000000000000001.txnindex", b"old", sync=False)
    log.roll(0)
    append(log)
    log.close(clean=True)
    assert len(audit(disk, FOLDER)) == 2


def test_a_failed_roll_leaves_the_log_unchanged(disk: UnsyncedDisk) -> None:
    for number in range(1, 10):
        log = open_log(disk)
        append(log)
        before = (log.log_end_offset, len(log.segments))
        disk.fail_call(number)
        try:
            log.roll(0)
        except StorageError:
            assert (log.log_end_offset, len(log.segments)) == before
            append(log)
            log.roll(0)
        append(log)
        assert [b.base_offset for b in all_batches(log)] == list(range(log.log_end_offset))
        log.close(clean=True)
    assert len(audit(disk, FOLDER)) == log.log_end_offset
