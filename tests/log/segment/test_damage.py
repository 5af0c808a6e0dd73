"""Damaged bytes: everything around them stays readable; only a torn tail is cut.

Method: a log of several segments is written, one byte is changed, and the log is opened again as
after a crash. For every byte, no file gets shorter, every other record can be read, and appends
continue at the end.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fencepost.base.failures import DamagedError
from fencepost.log import Log, LogConfig
from fencepost.log.config import COMPACT
from fencepost.log.retention import expired_segments
from fencepost.log.segment.survey import examine
from fencepost.log.times import find_timestamp
from fencepost.records.batch import BatchError, split_batches
from fencepost.simulation.disk import UnsyncedDisk
from tests.log.batches import FOLDER, append, append_pairs, compact, open_log

SMALL = LogConfig(segment_bytes=400, index_interval_bytes=100)
RECORDS = 12


@pytest.fixture
def disk() -> UnsyncedDisk:
    return UnsyncedDisk()


def written(disk: UnsyncedDisk, config: LogConfig = SMALL) -> Log:
    log = open_log(disk, config)
    for _ in range(RECORDS):
        append(log, size=50)
    return log


def flip(disk: UnsyncedDisk, path: str, position: int, bits: int = 0x04) -> None:
    data = bytearray(disk.read_file(path))
    data[position] ^= bits
    disk.write_file(path, bytes(data), sync=True)


def sizes(disk: UnsyncedDisk) -> dict[str, int]:
    names = [name for name in disk.list_dir(FOLDER) if name.endswith(".log")]
    return {name: len(disk.read_file(f"{FOLDER}/{name}")) for name in names}


def readable(log: Log) -> list[int]:
    """The offsets at which a reader gets a batch."""
    found = []
    for offset in range(log.log_start_offset, log.log_end_offset):
        try:
            part = log.read(offset, 1, upper_offset=log.log_end_offset)
            batches = split_batches(bytes(part.data))
        except (DamagedError, BatchError):  # The reader finds damage below the recovery point.
            continue
        found += [batch.base_offset for batch in batches if batch.base_offset == offset]
    return found


@pytest.mark.parametrize("segment", [0, 1, -1])
@pytest.mark.parametrize("bits", [0x01, 0x80])
def test_a_damaged_byte_loses_only_its_own_batch(
    disk: UnsyncedDisk, segment: int, bits: int
) -> None:
    log = written(disk)
    path = log.segments[segment].path(".log")
    batch = split_batches(disk.read_file(path))[0]
    log.close(clean=False)
    sound = {name: disk.read_file(f"{FOLDER}/{name}") for name in disk.list_dir(FOLDER)}
    for position in range(batch.size_bytes):
        flip(disk, path, position, bits)
        before = sizes(disk)
        # After a kill only the last segment is scanned.
        log = open_log(disk, SMALL, lost_power=segment >= 0)
        assert sizes(disk) == before
        assert log.log_end_offset == RECORDS
        found = readable(log)
        wanted = [offset for offset in range(RECORDS) if offset != batch.base_offset]
        # Bytes 12 to 15 are the leader epoch, which no check covers.
        assert set(wanted) <= set(found), position
        assert append(log).base_offset == RECORDS
        assert [batch.base_offset for batch in log.scan(0)] == [*found, RECORDS]
        log.close(clean=False)
        for name in disk.list_dir(FOLDER):
            disk.remove(f"{FOLDER}/{name}")
        for name, data in sound.items():
            if name.endswith(".log"):
                disk.write_file(f"{FOLDER}/{name}", data, sync=True)


@pytest.mark.parametrize("segment", [0, 1])
def test_a_damaged_byte_below_the_recovery_point_removes_nothing(
    disk: UnsyncedDisk, segment: int
) -> None:
    """These segments were not scanned: the first reader finds the damage."""
    log = written(disk)
    log.close(clean=True)
    damaged = log.segments[segment]
    path = damaged.path(".log")
    sound = disk.read_file(path)
    others = {o for o in range(RECORDS) if not damaged.base_offset <= o < damaged.next_offset}
    for position in range(len(sound)):
        flip(disk, path, position)
        before = sizes(disk)
        for clean in (True, False):
            log = open_log(disk, SMALL, clean=clean, recovery_point=RECORDS - 1)
            assert log.log_end_offset == RECORDS
            assert others <= set(readable(log))
            assert sizes(disk) == before
            log.segments[segment].examine()
            expected = [offset for offset in range(RECORDS) if not is_damaged(log, offset)]
            assert readable(log) == expected
            assert len(expected) >= RECORDS - 1
            log.close(clean=False)
        disk.write_file(path, sound, sync=True)


def is_damaged(log: Log, offset: int) -> bool:
    found = [damage for segment in log.segments for damage in segment.damage]
    return any(damage.first_offset <= offset < damage.end_offset for damage in found)


@pytest.mark.parametrize("lost_power", [False, True])
def test_a_batch_that_fails_its_check_is_damage_even_after_a_power_loss(
    disk: UnsyncedDisk, lost_power: bool
) -> None:
    log = written(disk)
    damaged = log.segments[1 if lost_power else -1]
    path, base = damaged.path(".log"), damaged.base_offset
    log.close(clean=False)
    flip(disk, path, 70)
    log = open_log(disk, SMALL, lost_power=lost_power)
    assert log.log_end_offset == RECORDS
    assert readable(log) == [offset for offset in range(RECORDS) if offset != base]
    with pytest.raises(DamagedError, match=f"offsets {base} to {base} "):
        log.read(base, 1000, upper_offset=RECORDS)


@pytest.mark.parametrize("lost_power", [False, True])
def test_a_page_of_zeros_is_the_end_of_the_log_only_after_a_power_loss(
    disk: UnsyncedDisk, lost_power: bool
) -> None:
    log = open_log(disk)
    for _ in range(20):
        append(log, size=1000)
    path = log.segments[0].path(".log")
    log.close(clean=False)
    data = bytearray(disk.read_file(path))
    data[4096:8192] = bytes(4096)
    disk.write_file(path, bytes(data), sync=True)
    log = open_log(disk, lost_power=lost_power)
    assert log.log_end_offset == (3 if lost_power else 20)
    assert readable(log) == [0, 1, 2, *(() if lost_power else range(8, 20))]


@pytest.mark.parametrize("lost_power", [False, True])
def test_an_incomplete_last_batch_is_truncated(disk: UnsyncedDisk, lost_power: bool) -> None:
    log = written(disk)
    path = log.segments[-1].path(".log")
    size = log.segments[-1].size_bytes
    log.close(clean=False)
    for cut in (1, 40, 100):
        disk.open(path).truncate(size - cut)
        log = open_log(disk, SMALL, lost_power=lost_power)
        assert log.log_end_offset == RECORDS - 1
        assert append(log, size=50).base_offset == RECORDS - 1
        log.close(clean=False)


def test_a_complete_last_batch_that_fails_its_check_is_truncated_only_after_a_power_loss(
    disk: UnsyncedDisk,
) -> None:
    log = written(disk)
    path = log.segments[-1].path(".log")
    size = log.segments[-1].size_bytes
    log.close(clean=False)
    flip(disk, path, size - 5)
    log = open_log(disk, SMALL, lost_power=False)
    assert log.log_end_offset == RECORDS
    assert readable(log) == list(range(RECORDS - 1))
    log.close(clean=False)
    assert open_log(disk, SMALL, lost_power=True).log_end_offset == RECORDS - 1


def test_a_truncated_segment_below_the_recovery_point_removes_nothing(disk: UnsyncedDisk) -> None:
    log = written(disk)
    second, third = log.segments[1], log.segments[2]
    log.close(clean=False)
    disk.open(second.path(".log")).truncate(second.size_bytes - 150)
    before = sizes(disk)
    log = open_log(disk, SMALL, recovery_point=third.base_offset - 1, lost_power=True)
    assert sizes(disk)[f"{third.base_offset:020d}.log"] == before[f"{third.base_offset:020d}.log"]
    assert log.log_end_offset == RECORDS


def test_record_bytes_that_look_like_a_batch_are_not_read_as_one(disk: UnsyncedDisk) -> None:
    inner = open_log(disk, folder="data/inner-0")
    for _ in range(9):
        append(inner)
    embedded = disk.read_file(f"data/inner-0/{0:020d}.log")
    log = open_log(disk)
    append(log)
    outer = append_pairs(log, (b"k", embedded))
    append(log)
    path = log.segments[0].path(".log")
    log.close(clean=False)
    flip(disk, path, outer.size_bytes + 30)
    log = open_log(disk, lost_power=False)
    assert readable(log) == [0, 2]


def test_a_damaged_range_does_not_end_at_bytes_that_only_look_like_a_batch(
    disk: UnsyncedDisk,
) -> None:
    inner = open_log(disk, folder="data/inner-0")
    for _ in range(9):
        append(inner)
    embedded = bytearray(disk.read_file(f"data/inner-0/{0:020d}.log"))
    for batch in split_batches(bytes(embedded)):
        embedded[batch.base_offset * batch.size_bytes + batch.size_bytes - 1] ^= 1
    log = open_log(disk)
    first = append(log)
    append_pairs(log, (b"k", bytes(embedded)))
    append(log)
    path = log.segments[0].path(".log")
    log.close(clean=False)
    # In the length, so that recovery must search for the start of the next batch.
    flip(disk, path, first.size_bytes + 11)
    log = open_log(disk, lost_power=False)
    assert readable(log) == [0, 2]


@pytest.mark.parametrize("spoil", [lambda data: data[:40], lambda data: bytes(len(data))])
def test_damaged_indexes_lose_nothing(disk: UnsyncedDisk, spoil: Callable[[bytes], bytes]) -> None:
    log = written(disk)
    log.close(clean=True)
    for name in disk.list_dir(FOLDER):
        if name.endswith("index"):
            path = f"{FOLDER}/{name}"
            disk.write_file(path, spoil(disk.read_file(path)), sync=True)
    log = open_log(disk, SMALL, clean=True)
    assert readable(log) == list(range(RECORDS))


def test_a_log_with_a_damaged_batch_is_not_compacted(disk: UnsyncedDisk) -> None:
    """Rewritten, a damaged batch would have a valid CRC and wrong records."""
    config = LogConfig(segment_bytes=400, cleanup_policy=frozenset({COMPACT}))
    log = open_log(disk, config)
    for number in range(20):
        append_pairs(log, (b"k%d" % (number % 3), b"value %d" % number))
    path = log.segments[0].path(".log")
    log.close(clean=True)
    flip(disk, path, 75)
    log = open_log(disk, config, clean=True)
    before = sizes(disk)
    for _ in range(2):
        compact(log, upper_offset=20, now_ms=10**12, force=True)
        assert sizes(disk) == before
    assert log.segments[0].damage


LARGE_BATCHES = 200
"""Enough of them that a clean open trusts the index and does not read the whole segment."""


def closed_with_a_damaged_first_header(
    disk: UnsyncedDisk, *, sealed: bool, timestamp_ms: int = 1000, config: LogConfig | None = None
) -> Log:
    """A log that was closed cleanly; then the first byte of magic rots, and it is opened again."""
    log = open_log(disk, config)
    log.assign_epoch(1, 0)
    for _ in range(LARGE_BATCHES):
        append(log, size=100, timestamp_ms=timestamp_ms)
    path = log.segments[0].path(".log")
    if sealed:
        log.roll(0)
        append(log)
    log.close(clean=True)
    flip(disk, path, 16)
    return open_log(disk, config, clean=True)


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("timestamp_ms", [1000, -1])
def test_a_damaged_first_header_after_a_clean_close_costs_its_own_batch(
    disk: UnsyncedDisk, sealed: bool, timestamp_ms: int
) -> None:
    log = closed_with_a_damaged_first_header(disk, sealed=sealed, timestamp_ms=timestamp_ms)
    assert readable(log) == list(range(1, log.log_end_offset))
    assert append(log).base_offset == log.log_end_offset - 1


def test_retention_works_though_the_first_header_of_a_segment_is_damaged(
    disk: UnsyncedDisk,
) -> None:
    log = closed_with_a_damaged_first_header(disk, sealed=True, timestamp_ms=-1)
    assert expired_segments(log, 10**12, log.log_end_offset) == log.segments


def test_compaction_is_planned_around_a_damaged_first_header(disk: UnsyncedDisk) -> None:
    config = LogConfig(cleanup_policy=frozenset({COMPACT}))
    log = closed_with_a_damaged_first_header(disk, sealed=True, config=config)
    before = sizes(disk)
    assert compact(log, upper_offset=LARGE_BATCHES, now_ms=10**12) is None
    assert sizes(disk) == before


def test_a_reader_that_skips_damage_skips_what_it_finds_first(disk: UnsyncedDisk) -> None:
    log = closed_with_a_damaged_first_header(disk, sealed=True)
    assert next(log.scan(0)).base_offset == 1
    log = closed_with_a_damaged_first_header(UnsyncedDisk(), sealed=True)
    found = find_timestamp(log, 0, log.log_end_offset)
    assert found is not None
    assert found.offset == 1


@pytest.mark.parametrize("by_scrub", [False, True])
def test_a_segment_that_is_examined_before_any_other_use_keeps_its_times(
    disk: UnsyncedDisk, by_scrub: bool
) -> None:
    log = closed_with_a_damaged_first_header(disk, sealed=True)
    segment = log.segments[0]
    if by_scrub:
        end_offset = segment.next_offset
        segment.adopt_examination(examine(segment.file(), segment.size_bytes, 0, end_offset))
    else:
        segment.examine()
    assert segment.newest_time() == 1000
    found = find_timestamp(log, 0, log.log_end_offset)
    assert found is not None
    assert found.offset == 1
