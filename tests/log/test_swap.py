"""A compacted segment takes its place, though the disk fails or the log is closed in between."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fencepost.base.failures import StorageError
from fencepost.log import Log, LogConfig
from fencepost.log.config import COMPACT
from fencepost.simulation.disk import UnsyncedDisk
from tests.log.audit import audit
from tests.log.batches import FOLDER, Table, append_pairs, compact, fold, open_log

CONFIG = LogConfig(cleanup_policy=frozenset({COMPACT}), segment_bytes=300)
NOW = 1_000_000


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
