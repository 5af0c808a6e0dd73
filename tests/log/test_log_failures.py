"""A failing disk: nothing half-done becomes visible, and no offset is used twice."""

from __future__ import annotations

import errno

import pytest

from fencepost.base.failures import DamagedError, StorageError
from fencepost.log import LogConfig
from fencepost.records.index import AbortedTxn
from fencepost.simulation.disk import UnsyncedDisk
from tests.log.audit import audit
from tests.log.batches import FOLDER, all_batches, append, open_log, sealed


@pytest.fixture
def disk() -> UnsyncedDisk:
    return UnsyncedDisk()


@pytest.mark.parametrize("free_bytes", [0, 1, 30, 61, 80])
def test_on_a_full_disk_an_append_fails_and_the_log_is_unchanged(
    disk: UnsyncedDisk, free_bytes: int
) -> None:
    log = open_log(disk)
    append(log, 2)
    size = log.size_bytes
    disk.fill(free_bytes)
    with pytest.raises(StorageError):
        append(log, size=1000)
    assert (log.log_end_offset, log.size_bytes) == (2, size)
    assert len(disk.read_file(f"{FOLDER}/{0:020d}.log")) == size
    disk.empty()
    append(log)
    assert [batch.base_offset for batch in all_batches(log)] == [0, 2]
    log.close(clean=True)
    assert len(audit(disk, FOLDER)) == 2


@pytest.mark.parametrize("rolls", [False, True])
def test_a_torn_tail_blocks_appends_until_it_is_truncated_before_a_batch_or_a_roll(
    disk: UnsyncedDisk, rolls: bool
) -> None:
    log = open_log(disk)
    append(log)
    disk.fill(20)
    disk.fail_call(2)
    with pytest.raises(StorageError):
        append(log)
    disk.empty()
    assert len(disk.read_file(f"{FOLDER}/{0:020d}.log")) == log.size_bytes + 20
    assert [batch.base_offset for batch in all_batches(log)] == [0]
    disk.fail_call(1)
    with pytest.raises(StorageError):
        append(log)
    if rolls:
        log.roll(0)
    append(log)
    assert [batch.base_offset for batch in all_batches(log)] == [0, 1]
    log.close(clean=True)
    assert len(audit(disk, FOLDER)) == 2


def test_after_a_failed_append_the_batch_can_be_assigned_its_offset_again(
    disk: UnsyncedDisk,
) -> None:
    log = open_log(disk)
    batch = sealed(log, [(b"k", b"v")])
    disk.fail_call(1, errno.ENOSPC)
    with pytest.raises(StorageError):
        log.append(batch)
    log.append(batch)
    assert bytes(log.read(0, 1000, upper_offset=1).data) == bytes(batch.data)


def test_a_failed_read_is_a_storage_error(disk: UnsyncedDisk) -> None:
    log = open_log(disk)
    append(log)
    disk.fail_call(1)
    with pytest.raises(StorageError):
        log.read(0, 1000, upper_offset=1)
    assert log.read(0, 1000, upper_offset=1).next_offset == 1


def test_a_read_of_damaged_bytes_raises_and_never_loops(disk: UnsyncedDisk) -> None:
    log = open_log(disk, LogConfig(index_interval_bytes=10**6))
    for _ in range(5):
        size = append(log).size_bytes
    file = disk.open(f"{FOLDER}/{0:020d}.log")
    data = bytearray(file.read(0, 5 * size))
    data[size + 8 : size + 12] = bytes(4)
    file.truncate(0)
    file.append([data])
    assert len(log.read(4, 1000, upper_offset=5).data) == size
    assert [batch.base_offset for batch in log.scan(0)] == [0, 2, 3, 4]
    with pytest.raises(DamagedError):
        log.read(1, 1000, upper_offset=5)
    file.truncate(size + 10)
    with pytest.raises(StorageError):
        log.read(4, 1000, upper_offset=5)


def test_aborted_transactions_that_cannot_be_written_yet_are_known_and_written_later(
    disk: UnsyncedDisk,
) -> None:
    log = open_log(disk)
    append(log, 9)
    log.append_aborted(AbortedTxn(1, 0, 2, 3))
    disk.fill(10)
    log.append_aborted(AbortedTxn(2, 3, 5, 6))
    both = [AbortedTxn(1, 0, 2, 3), AbortedTxn(2, 3, 5, 6)]
    assert log.aborted_between(0, 9) == both
    disk.empty()
    log.close(clean=True)
    audit(disk, FOLDER)
    assert open_log(disk, clean=True).aborted_between(0, 9) == both


def test_a_segment_is_not_sealed_before_its_aborted_transactions_are_written(
    disk: UnsyncedDisk,
) -> None:
    log = open_log(disk)
    append(log, 9)
    disk.fail_call(1)
    log.append_aborted(AbortedTxn(1, 0, 2, 3))
    disk.fail_call(1)
    with pytest.raises(StorageError):
        log.roll(0)
    log.roll(0)
    assert len(disk.read_file(f"{FOLDER}/{0:020d}.txnindex")) == 34


def test_writing_snapshots_and_epochs_raises_if_the_disk_fails(disk: UnsyncedDisk) -> None:
    log = open_log(disk)
    disk.fill(0)
    with pytest.raises(StorageError):
        log.snapshots.write(0, b"data")
    with pytest.raises(StorageError):
        log.assign_epoch(3, 0)
    assert log.epochs.latest == -1
    assert log.snapshots.latest(10) is None


def test_a_folder_that_cannot_be_read_is_a_storage_error(disk: UnsyncedDisk) -> None:
    open_log(disk).close(clean=True)
    disk.fail_call(2)
    with pytest.raises(StorageError):
        open_log(disk)


def test_a_closed_log_has_no_open_files(disk: UnsyncedDisk) -> None:
    log = open_log(disk)
    append(log)
    log.close(clean=True)
    with pytest.raises((AssertionError, StorageError)):
        append(log)


def test_a_clean_close_on_a_full_disk_raises_and_the_log_recovers(disk: UnsyncedDisk) -> None:
    log = open_log(disk, LogConfig(index_interval_bytes=10, segment_bytes=20_000))
    for _ in range(10):
        append(log)
    disk.fill(0)
    with pytest.raises(StorageError):
        log.close(clean=True)
    disk.empty()
    assert open_log(disk).log_end_offset == 10
