"""Aborted transactions: the entries that a read_committed reader needs."""

from __future__ import annotations

import pytest

from fencepost.base.failures import CorruptError
from fencepost.log import Log, LogConfig
from fencepost.records.index import AbortedTxn
from fencepost.simulation.disk import UnsyncedDisk
from tests.log.batches import FOLDER, append, open_log


@pytest.fixture
def disk() -> UnsyncedDisk:
    return UnsyncedDisk()


@pytest.fixture
def log(disk: UnsyncedDisk) -> Log:
    """A hundred records in segments of ten."""
    made = open_log(disk, LogConfig(segment_bytes=10**6))
    for number in range(100):
        if number % 10 == 0:
            made.roll(0)
        append(made)
    return made


FIRST = AbortedTxn(1, 0, 29, 8)
SECOND = AbortedTxn(2, 8, 74, 36)
THIRD = AbortedTxn(3, 80, 85, 86)


def noted(log: Log) -> Log:
    for txn in (FIRST, SECOND, THIRD):
        log.append_aborted(txn)
    return log


@pytest.mark.parametrize(
    ("fetch_offset", "upper_offset", "expected"),
    [
        (0, 100, [FIRST, SECOND, THIRD]),
        (0, 5, [FIRST]),
        (0, 8, [FIRST]),
        (0, 9, [FIRST, SECOND]),
        (29, 30, [FIRST, SECOND]),
        (30, 40, [SECOND]),
        (75, 80, []),
        (75, 81, [THIRD]),
        (86, 100, []),
    ],
)
def test_a_reader_gets_the_aborted_transactions_in_its_range(
    log: Log, fetch_offset: int, upper_offset: int, expected: list[AbortedTxn]
) -> None:
    assert noted(log).aborted_between(fetch_offset, upper_offset) == expected


def test_an_entry_is_in_the_index_of_the_segment_that_has_its_marker(
    log: Log, disk: UnsyncedDisk
) -> None:
    noted(log)
    files = [name for name in disk.list_dir(FOLDER) if name.endswith(".txnindex")]
    assert files == [f"{base:020d}.txnindex" for base in (20, 70, 80)]


def test_no_file_is_created_without_an_aborted_transaction(log: Log, disk: UnsyncedDisk) -> None:
    log.close(clean=True)
    assert not [name for name in disk.list_dir(FOLDER) if name.endswith(".txnindex")]


def test_retention_removes_the_entries_of_a_deleted_segment(log: Log) -> None:
    noted(log).delete_before(30)
    assert log.aborted_between(30, 100) == [SECOND, THIRD]


def test_markers_must_be_added_in_order(log: Log) -> None:
    log.append_aborted(AbortedTxn(1, 0, 99, 100))
    with pytest.raises(AssertionError):
        log.append_aborted(AbortedTxn(2, 0, 98, 100))


def test_a_damaged_index_raises(log: Log, disk: UnsyncedDisk) -> None:
    noted(log).close(clean=True)
    disk.write_file(f"{FOLDER}/{20:020d}.txnindex", b"x", sync=False)
    log = open_log(disk, clean=True)
    with pytest.raises(CorruptError):
        log.aborted_between(0, 100)
