"""Offsets by timestamp."""

from __future__ import annotations

import random

import pytest

from fencepost.log import Log, LogConfig
from fencepost.log.times import find_newest, find_timestamp
from fencepost.records.batch import read_header
from fencepost.records.builder import build_batch
from fencepost.records.opened import Record
from fencepost.simulation.disk import UnsyncedDisk
from tests.log.batches import append, append_times, open_log

SMALL = LogConfig(segment_bytes=600, index_interval_bytes=100)


@pytest.fixture
def log() -> Log:
    return open_log(UnsyncedDisk(), SMALL)


def found(log: Log, timestamp_ms: int, upper_offset: int | None = None) -> int | None:
    upper = log.log_end_offset if upper_offset is None else upper_offset
    result = find_timestamp(log, timestamp_ms, upper)
    return None if result is None else result.offset


def test_nothing_at_or_beyond_the_upper_offset_is_found(log: Log) -> None:
    append_times(log, 100, 200)
    append_times(log, 300)
    assert found(log, 300, 2) is None
    assert found(log, 200, 2) == 1
    assert found(log, 200, 1) is None


def test_nothing_below_the_start_of_the_log_is_found(log: Log) -> None:
    append_times(log, 100, 200, 300)
    log.delete_before(1)
    assert found(log, 50) == 1


def test_an_empty_log_has_no_timestamps(log: Log) -> None:
    assert found(log, 0) is None
    assert find_newest(log) is None


def test_records_without_timestamps_are_not_found(log: Log) -> None:
    append_times(log, -1, -1)
    assert find_newest(log) is None
    assert found(log, 0) is None


@pytest.mark.parametrize("clean", [True, False])
def test_searches_agree_with_a_list_across_many_segments_and_a_restart(clean: bool) -> None:
    disk = UnsyncedDisk()
    log = open_log(disk, SMALL)
    chance = random.Random(5)
    times: list[int] = []
    for _ in range(200):
        batch = [chance.randrange(10_000) for _ in range(chance.randrange(1, 4))]
        append_times(log, *batch)
        times += batch
    log.close(clean=clean)
    log = open_log(disk, SMALL, clean=clean)
    assert len(log.segments) > 10
    for timestamp in [*range(0, 10_000, 97), *times]:
        expected = next((n for n, time in enumerate(times) if time >= timestamp), None)
        assert found(log, timestamp) == expected
    newest = find_newest(log)
    assert newest is not None
    assert (newest.timestamp_ms, newest.offset) == (max(times), times.index(max(times)))


def test_a_batch_that_cannot_be_opened_is_found_by_its_header(log: Log) -> None:
    data = build_batch([Record(0, 700, b"k", b"v")], timestamp_ms=0, codec=1)
    data[61:] = b"\xff" * (len(data) - 61)
    batch = read_header(data)
    batch.stamp_append_time(700)
    log.append(batch)
    assert found(log, 600) == 0
    newest = find_newest(log)
    assert newest is not None
    assert newest.offset == 0


def test_a_newest_record_that_is_damaged_is_not_found() -> None:
    disk = UnsyncedDisk()
    log = open_log(disk)
    log.assign_epoch(1, 0)
    size_bytes = [append(log, timestamp_ms=time).size_bytes for time in (100, 200, 300)][-1]
    path = log.segments[0].path(".log")
    log.roll(0)
    append(log, timestamp_ms=50)
    log.close(clean=True)
    data = bytearray(disk.read_file(path))
    data[-size_bytes + 8] ^= 0x40  # The length of the last batch.
    disk.write_file(path, bytes(data), sync=True)
    log = open_log(disk, clean=True)
    assert find_newest(log) is None
    assert found(log, 150) == 1
