"""Appending and reading: whole batches, from the offset up to the bound."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from fencepost.base.seams import Disk
from fencepost.base.system import SystemDisk
from fencepost.log import Log, LogConfig, LogSlice, OpenSegments
from fencepost.records.batch import SealedBatch, read_header, split_batches
from fencepost.records.entry import Entry
from fencepost.simulation.disk import UnsyncedDisk
from tests.log.batches import (
    FOLDER,
    all_batches,
    append,
    append_marker,
    append_pairs,
    open_log,
    sealed,
)

SMALL = LogConfig(segment_bytes=2000, index_interval_bytes=200)


@pytest.fixture
def disk() -> Disk:
    return UnsyncedDisk()


@pytest.fixture
def log(disk: Disk) -> Log:
    return open_log(disk)


def offsets(log: Log, offset: int, max_bytes: int, upper_offset: int | None = None) -> list[int]:
    upper = log.log_end_offset if upper_offset is None else upper_offset
    part = log.read(offset, max_bytes, upper_offset=upper)
    batches = split_batches(bytes(part.data))
    if batches:
        assert part.next_offset >= batches[-1].next_offset
    else:
        assert part.next_offset == offset
    return [batch.base_offset for batch in batches]


def test_a_new_log_is_empty(log: Log) -> None:
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (0, 0, 0)
    assert offsets(log, 0, 1000) == []


def test_an_append_moves_the_end_offset_past_the_batch(log: Log) -> None:
    first = append(log, 3)
    second = append(log, 2)
    assert log.log_end_offset == 5
    assert log.size_bytes == first.size_bytes + second.size_bytes
    assert [batch.base_offset for batch in all_batches(log)] == [0, 3]


def test_batches_are_read_as_they_were_written(log: Log) -> None:
    written = [bytes(append(log, count).data) for count in (1, 2, 3)]
    assert bytes(log.read(0, 10_000, upper_offset=6).data) == b"".join(written)


def test_a_new_log_begins_at_the_given_start_offset(disk: Disk) -> None:
    log = open_log(disk, log_start_offset=500)
    append(log)
    assert (log.log_start_offset, log.log_end_offset) == (500, 501)
    assert disk.exists(f"{FOLDER}/00000000000000000500.log")


def test_the_first_batch_is_left_out_on_request_if_it_exceeds_the_limit(log: Log) -> None:
    append(log, size=5000)
    part = log.read(0, 100, upper_offset=1, at_least_one=False)
    assert part == LogSlice(b"", 0)
    part = log.read(0, 10_000, upper_offset=1, at_least_one=False)
    assert part.next_offset == 1


def test_a_read_at_the_end_of_the_log_returns_nothing(log: Log) -> None:
    append(log)
    assert offsets(log, 1, 1000) == []


@pytest.mark.parametrize("limit", [1, 2, 64])
def test_random_reads_agree_with_a_list_however_few_segments_are_open(
    tmp_path: Path, limit: int
) -> None:
    config = LogConfig(segment_bytes=3000, index_interval_bytes=150)
    shared = OpenSegments(limit)
    log = open_log(SystemDisk(), config, folder=f"{tmp_path}/t-0", open_segments=shared)
    chance = random.Random(limit)
    model = [append(log, chance.randrange(1, 6), size=chance.randrange(200)) for _ in range(300)]
    for _ in range(500):
        offset = chance.randrange(log.log_end_offset)
        upper = chance.choice([batch.base_offset for batch in model] + [log.log_end_offset])
        max_bytes = chance.choice([1, 100, 500, 1000, 5000])
        found = offsets(log, offset, max_bytes, upper)
        assert found == expected(log, model, offset, max_bytes, upper)
        assert 0 < len(shared) <= limit + 1, "the growing segment has a file too"


def expected(
    log: Log, model: list[SealedBatch], offset: int, max_bytes: int, upper: int
) -> list[int]:
    """The expected read: whole batches of one segment below `upper`, and always the first."""
    segment = next(s for s in reversed(log.segments) if s.base_offset <= offset)
    batches = [b for b in model if b.last_offset >= offset and b.base_offset < segment.next_offset]
    found: list[int] = []
    for batch in batches:
        max_bytes -= batch.size_bytes
        if batch.last_offset >= upper or (max_bytes < 0 and found):
            break
        found.append(batch.base_offset)
    return found


def test_a_batch_with_the_wrong_offset_or_size_is_refused(log: Log) -> None:
    batch = sealed(log, [(b"k", b"v")])
    batch.base_offset = 5
    with pytest.raises(AssertionError):
        log.append(batch)
    half = read_header(bytes(batch.data)[:-1])
    with pytest.raises(AssertionError):
        log.append(half)
    assert log.size_bytes == 0


def test_a_scan_starts_with_the_batch_that_contains_the_offset(disk: Disk) -> None:
    log = open_log(disk, SMALL)
    for _ in range(50):
        append(log, 2, size=100)
    assert [batch.base_offset for batch in log.scan(31)] == list(range(30, 100, 2))
    assert [batch.base_offset for batch in log.scan(100)] == []
    for batch in log.scan(0):
        assert len(batch.data) == batch.size_bytes


def test_a_scan_of_headers_still_returns_whole_markers(log: Log) -> None:
    append(log, size=2_000_000)
    append_marker(log, 7, commit=True)
    append(log, size=2_000_000)
    append_marker(log, 7, commit=False)
    batches = list(log.scan(0, headers_only=True))
    assert [batch.base_offset for batch in batches] == [0, 1, 2, 3]
    assert [len(b.data) == b.size_bytes for b in batches if b.is_control] == [True, True]
    whole = list(log.scan(0))
    assert all(len(batch.data) == batch.size_bytes for batch in whole)


def test_entries_are_records_and_markers_from_an_offset_on(log: Log) -> None:
    append_pairs(log, (b"a", b"1"), (b"b", None))
    append_pairs(log, (b"c", b"3"), producer_id=9, producer_epoch=1, transactional=True)
    append_marker(log, 9, commit=True, epoch=1)
    entries = list(log.entries(1))
    assert entries[0] == Entry(1, -1, -1, False, b"b", None)
    assert entries[1] == Entry(2, 9, 1, True, b"c", b"3")
    assert entries[2].marker is not None
    assert [entry.offset for entry in entries] == [1, 2, 3]


def test_the_repr_of_a_log_and_a_segment_shows_their_offsets(log: Log) -> None:
    append(log)
    assert repr(log).startswith("<log data/topic-0 0..1, 1 segments, ")
    assert repr(log.segments[0]).startswith("<active segment 0..0, ")
