"""A compacted segment takes its place, though the disk fails or the log is closed in between."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import pytest

from fencepost.base.failures import StorageError
from fencepost.log import Log, LogConfig
from fencepost.log.compaction import Compacted
from fencepost.log.config import COMPACT
from fencepost.log.durability import PendingSync
from fencepost.records.batch import split_batches
from fencepost.simulation.disk import UnsyncedDisk
from tests.log.audit import audit
from tests.log.batches import FOLDER, Table, append_pairs, compact, fold, open_log, round_of

CONFIG = LogConfig(cleanup_policy=frozenset({COMPACT}), segment_bytes=300)
NOW = 1_000_000
Steps = Generator[PendingSync | None, None, Compacted | None]


def half_swapped() -> Iterator[tuple[UnsyncedDisk, Log, Table]]:
    """Logs whose swap has failed at each of its disk calls, and their newest values before."""
    for number in range(1, 200):
        disk = UnsyncedDisk()
        log = open_log(disk, CONFIG)
        for value in range(20):
            append_pairs(log, (b"k%d" % (value % 3), b"%d" % value))
        log.roll(NOW)
        before = fold(log)
        disk.fail_call(number)
        try:
            compact(log, upper_offset=log.log_end_offset, now_ms=NOW)
        except StorageError as problem:
            if "half in place" in str(problem):
                yield disk, log, before
        else:
            return


def test_the_next_use_of_the_log_finishes_the_swap() -> None:
    count = 0
    for disk, log, before in half_swapped():
        assert fold(log) == before
        append_pairs(log, (b"new", b"1"))
        log.close(clean=True)
        audit(disk, FOLDER)
        count += 1
    assert count > 5


def test_no_read_passes_between_files_and_memory_that_disagree() -> None:
    for disk, log, _ in half_swapped():
        disk.fail_call(1)
        with pytest.raises(StorageError, match="half in place"):
            log.read(log.log_start_offset, 1000, upper_offset=log.log_end_offset)


def test_a_closed_log_leaves_its_swap_to_the_next_open() -> None:
    """Its folder may belong to another log by then."""
    for disk, log, before in half_swapped():
        log.close(clean=False)
        files = disk.list_dir(FOLDER)
        with pytest.raises(StorageError):
            log.read(log.log_start_offset, 1000, upper_offset=log.log_end_offset)
        with pytest.raises(StorageError):
            append_pairs(log, (b"new", b"1"))
        assert disk.list_dir(FOLDER) == files
        assert fold(open_log(disk, CONFIG)) == before


def test_a_round_of_compaction_first_finishes_the_swap_that_another_has_left() -> None:
    for _, log, before in half_swapped():
        compact(log, upper_offset=log.log_end_offset, now_ms=NOW, force=True)
        append_pairs(log, (b"new", b"1"))
        assert fold(log) == before | {b"new": b"1"}


def test_a_round_that_cannot_finish_the_swap_of_another_leaves_its_files_alone() -> None:
    for disk, log, before in half_swapped():
        files = disk.list_dir(FOLDER)
        disk.fail_call(1)
        with pytest.raises(StorageError):
            compact(log, upper_offset=log.log_end_offset, now_ms=NOW, force=True)
        assert disk.list_dir(FOLDER) == files
        append_pairs(log, (b"new", b"1"))
        assert fold(log) == before | {b"new": b"1"}
        log.close(clean=True)
        audit(disk, FOLDER)


def test_retention_removes_what_a_finished_swap_has_put_in_place() -> None:
    for disk, log, _ in half_swapped():
        log.delete_before(log.log_end_offset)
        log.close(clean=True)
        audit(disk, FOLDER)
        reopened = open_log(disk, CONFIG, clean=True, log_start_offset=log.log_start_offset)
        assert fold(reopened) == {}


@pytest.mark.parametrize("suffix", [".timeindex", ".log"])
def test_a_file_that_is_missing_in_the_middle_of_a_swap_is_an_error(suffix: str) -> None:
    """Read with the size of the new file, the old one would lose records."""
    disk, log, _ = next(half_swapped())
    name = next(n for n in disk.list_dir(FOLDER) if n.endswith(f"{suffix}.swap"))
    disk.remove(f"{FOLDER}/{name}")
    for _ in range(2):
        with pytest.raises(StorageError, match="missing in the middle of a swap"):
            append_pairs(log, (b"new", b"1"))
        with pytest.raises(StorageError, match="missing in the middle of a swap"):
            compact(log, upper_offset=log.log_end_offset, now_ms=NOW, force=True)


# --- a swap that is promised, and a round that waits for its sync --------------------------------


def promised() -> tuple[UnsyncedDisk, Log, Steps, Table]:
    """A round that waits for the sync of its `.swap` files."""
    disk = UnsyncedDisk()
    log = open_log(disk, CONFIG)
    for value in range(20):
        append_pairs(log, (b"k%d" % (value % 3), b"%d" % value))
    log.roll(NOW)
    before = fold(log)
    steps = round_of(log, upper_offset=log.log_end_offset, now_ms=NOW)
    while not any(name.endswith(".log.swap") for name in disk.list_dir(FOLDER)):
        next(steps)
    return disk, log, steps, before


def test_a_promised_swap_is_taken_back_before_segments_are_removed() -> None:
    """After a kill it would bring removed records back, with a gap behind them."""
    disk, log, steps, _ = promised()
    start = log.segments[-2].base_offset
    log.delete_before(start)
    assert not [name for name in disk.list_dir(FOLDER) if name.endswith(".swap")]
    expected = fold(log)
    with pytest.raises(StopIteration):
        next(steps)
    assert fold(log) == expected
    disk.kill()
    reopened = open_log(disk, CONFIG, log_start_offset=start, lost_power=False)
    assert fold(reopened) == expected
    assert reopened.is_sound


def test_segments_stay_while_a_promised_swap_cannot_be_taken_back() -> None:
    disk, log, _, before = promised()
    disk.fail_call(1)
    with pytest.raises(StorageError):
        log.delete_before(log.segments[-2].base_offset)
    disk.kill()
    reopened = open_log(disk, CONFIG, lost_power=False)
    assert fold(reopened) == before
    assert reopened.is_sound


def test_a_swap_that_could_not_be_taken_back_does_not_return_after_a_later_round() -> None:
    disk, log, steps, before = promised()
    disk.fail_call(1)
    steps.close()
    assert any(name.endswith(".log.swap") for name in disk.list_dir(FOLDER))
    append_pairs(log, (b"new", b"1"))
    log.roll(NOW)
    compact(log, upper_offset=log.log_end_offset, now_ms=NOW, force=True)
    disk.kill()
    reopened = open_log(disk, CONFIG, lost_power=False)
    assert fold(reopened) == before | {b"new": b"1"}
    reopened.close(clean=True)
    audit(disk, FOLDER)


@pytest.mark.parametrize("ending", ["resumed", "closed"])
def test_a_round_of_a_closed_log_leaves_the_files_of_the_next_log_alone(ending: str) -> None:
    """Another broker may have opened the folder, and be compacting it."""
    disk, log, steps, before = promised()
    log.close(clean=True)
    other = open_log(disk, CONFIG, clean=True)
    append_pairs(other, (b"new", b"1"))
    other.roll(NOW)
    others = round_of(other, upper_offset=other.log_end_offset, now_ms=NOW, force=True)
    while not any(name.endswith(".log.swap") for name in disk.list_dir(FOLDER)):
        next(others)
    files = disk.list_dir(FOLDER)
    if ending == "resumed":
        with pytest.raises(StopIteration):
            next(steps)
    else:
        steps.close()
    assert disk.list_dir(FOLDER) == files
    with pytest.raises(StopIteration):
        for _ in range(100):
            next(others)
    assert fold(other) == before | {b"new": b"1"}


def test_a_round_that_is_closed_at_any_pause_leaves_the_next_log_alone() -> None:
    for pauses in range(1, 100):
        disk = UnsyncedDisk()
        log = open_log(disk, CONFIG)
        for value in range(20):
            append_pairs(log, (b"k%d" % (value % 3), b"%d" % value))
        log.roll(NOW)
        before = fold(log)
        steps = round_of(log, upper_offset=log.log_end_offset, now_ms=NOW)
        try:
            for _ in range(pauses):
                next(steps)
        except StopIteration:
            assert pauses > 10
            return
        log.close(clean=True)
        other = open_log(disk, CONFIG, clean=True)
        calls = disk.calls
        with pytest.raises(StopIteration):
            next(steps)
        assert disk.calls == calls, "a closed log makes no more disk calls"
        assert fold(other) == before
    raise AssertionError("the round never ended")


def test_records_that_a_segment_lacks_at_its_end_are_never_compacted_away(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = UnsyncedDisk()
    log = open_log(disk, CONFIG)
    for value in range(20):
        append_pairs(log, (b"k%d" % value, b"%d" % value))
    log.roll(NOW)
    victim = log.segments[1]
    path = victim.path(".log")
    data = disk.read_file(path)
    last = split_batches(data)[-1].size_bytes
    disk.write_file(path, data[:-last], sync=False)
    victim.release_file()
    victim.size_bytes -= last
    sizes = {name: disk.size(f"{FOLDER}/{name}") for name in disk.list_dir(FOLDER)}
    assert compact(log, upper_offset=log.log_end_offset, now_ms=NOW, force=True) is None
    assert "fail their check" in caplog.text
    assert not log.is_sound
    assert disk.size(path) == sizes[path.rpartition("/")[2]]
