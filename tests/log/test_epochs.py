"""Leader epochs: their file, and the epoch of an offset."""

from __future__ import annotations

import pytest

from fencepost.log import Log
from fencepost.records.text_files import EpochEntry
from fencepost.simulation.disk import UnsyncedDisk
from tests.log.batches import FOLDER, append, open_log


@pytest.fixture
def disk() -> UnsyncedDisk:
    return UnsyncedDisk()


def a_log(disk: UnsyncedDisk, *starts: tuple[int, int]) -> Log:
    """A log of ten records whose leaders took over at the given (epoch, offset)."""
    log = open_log(disk)
    for _ in range(10):
        append(log)
    for epoch, offset in starts:
        log.assign_epoch(epoch, offset)
    return log


def test_the_end_of_an_epoch_is_the_start_of_the_next(disk: UnsyncedDisk) -> None:
    log = a_log(disk, (2, 0), (4, 3), (7, 8))
    ends = {epoch: log.epochs.end_offset_for(epoch, log.log_end_offset) for epoch in range(-1, 9)}
    assert ends == {
        -1: (-1, -1),
        0: (0, 0),
        1: (1, 0),
        2: (2, 3),
        3: (2, 3),
        4: (4, 8),
        5: (4, 8),
        6: (4, 8),
        7: (7, 10),
        8: (-1, -1),
    }


def test_a_log_without_epochs_has_no_end_offset_for_any_epoch(disk: UnsyncedDisk) -> None:
    assert open_log(disk).epochs.end_offset_for(0, 0) == (-1, -1)


def test_the_file_has_kafkas_format(disk: UnsyncedDisk) -> None:
    a_log(disk, (2, 0), (4, 3))
    assert disk.read_file(f"{FOLDER}/leader-epoch-checkpoint") == b"0\n2\n2 0\n4 3\n"


def test_epochs_survive_a_restart(disk: UnsyncedDisk) -> None:
    log = a_log(disk, (2, 0), (4, 3))
    log.close(clean=True)
    assert open_log(disk, clean=True).epochs.entries == [EpochEntry(2, 0), EpochEntry(4, 3)]


def test_an_epoch_is_assigned_once(disk: UnsyncedDisk) -> None:
    log = a_log(disk, (2, 3), (2, 5))
    assert log.epochs.entries == [EpochEntry(2, 3)]


def test_an_epoch_without_records_is_replaced_by_the_next(disk: UnsyncedDisk) -> None:
    log = a_log(disk, (2, 0), (3, 10), (4, 10))
    assert log.epochs.entries == [EpochEntry(2, 0), EpochEntry(4, 10)]


def test_epochs_beyond_the_end_of_the_log_are_removed(disk: UnsyncedDisk) -> None:
    log = a_log(disk, (2, 0), (4, 3), (7, 8))
    assert log.epochs.cut_end(8)
    assert log.epochs.entries == [EpochEntry(2, 0), EpochEntry(4, 3)]


def test_epochs_before_the_start_are_merged_into_one(disk: UnsyncedDisk) -> None:
    log = a_log(disk, (2, 0), (4, 3), (7, 8))
    log.epochs.cut_start(5)
    assert log.epochs.entries == [EpochEntry(4, 5), EpochEntry(7, 8)]
    assert [log.epochs.epoch_at(offset) for offset in (4, 5, 7, 8)] == [-1, 4, 4, 7]


def test_a_damaged_file_is_rebuilt_from_the_batches(disk: UnsyncedDisk) -> None:
    log = open_log(disk)
    for epoch in (2, 2, 4):
        log.assign_epoch(epoch, log.log_end_offset)
        append(log, leader_epoch=epoch)
    log.close(clean=True)
    for damage in (b"", b"0\n1\nx\n", bytes(20)):
        disk.write_file(f"{FOLDER}/leader-epoch-checkpoint", damage, sync=False)
        for clean in (True, False):
            log = open_log(disk, clean=clean)
            assert log.epochs.entries == [EpochEntry(2, 0), EpochEntry(4, 2)]
            log.close(clean=True)


def test_epochs_lost_with_the_power_are_rebuilt_from_the_batches(disk: UnsyncedDisk) -> None:
    log = open_log(disk)
    log.assign_epoch(2, 0)
    append(log, leader_epoch=2)
    log.close(clean=True)
    stale = disk.read_file(f"{FOLDER}/leader-epoch-checkpoint")
    log = open_log(disk, clean=True)
    log.assign_epoch(5, 1)
    append(log, leader_epoch=5)
    log.close(clean=False)
    disk.write_file(f"{FOLDER}/leader-epoch-checkpoint", stale, sync=False)
    log = open_log(disk, recovery_point=1)
    assert log.epochs.entries == [EpochEntry(2, 0), EpochEntry(5, 1)]
