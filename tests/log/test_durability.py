"""Sync: what survives a power loss, and the order of durability."""

from __future__ import annotations

import pytest

from fencepost.base.failures import StorageError
from fencepost.log import LogConfig
from fencepost.records.index import AbortedTxn
from fencepost.simulation.disk import UnsyncedDisk
from tests.log.audit import audit
from tests.log.batches import FOLDER, all_batches, append, open_log

SMALL = LogConfig(segment_bytes=300, index_interval_bytes=50)


@pytest.fixture
def disk() -> UnsyncedDisk:
    made = UnsyncedDisk()
    made.make_dir("data")
    return made


def test_only_synced_data_survives(disk: UnsyncedDisk) -> None:
    log = open_log(disk)
    append(log, 3)
    assert log.sync() == 3
    append(log, 4)
    disk.crash()
    log = open_log(disk, recovery_point=3)
    assert log.log_end_offset == 3


def test_without_a_sync_not_even_the_folder_survives(disk: UnsyncedDisk) -> None:
    append(open_log(disk))
    disk.crash()
    assert disk.list_dir("data") == []


def test_a_sync_covers_new_segments_and_their_names_and_indexes(disk: UnsyncedDisk) -> None:
    log = open_log(disk, SMALL)
    for _ in range(20):
        append(log)
    count = len(log.segments)
    assert count > 3
    assert log.sync() == 20
    disk.crash()
    log = open_log(disk, SMALL, recovery_point=20)
    assert len(log.segments) == count
    assert [batch.base_offset for batch in all_batches(log)] == list(range(20))
    for segment in log.segments[:-1]:
        assert disk.exists(segment.path(".index"))
        assert disk.read_file(segment.path(".timeindex"))
    log.close(clean=True)
    audit(disk, FOLDER)


def test_a_sync_covers_the_aborted_transactions(disk: UnsyncedDisk) -> None:
    log = open_log(disk)
    append(log, 3)
    log.append_aborted(AbortedTxn(1, 0, 2, 3))
    log.roll(0)
    append(log)
    log.sync()
    disk.crash()
    log = open_log(disk, recovery_point=4)
    assert log.aborted_between(0, 10) == [AbortedTxn(1, 0, 2, 3)]


def test_a_clean_close_survives_with_its_indexes(disk: UnsyncedDisk) -> None:
    log = open_log(disk, SMALL)
    for _ in range(20):
        append(log)
    log.close(clean=True)
    disk.crash()
    assert len(audit(disk, FOLDER)) == 20


def test_a_prepared_sync_covers_only_what_was_appended_before_it(disk: UnsyncedDisk) -> None:
    log = open_log(disk)
    append(log, 2)
    pending = log.prepare_sync()
    append(log, 2)
    pending.run()
    assert log.complete_sync(pending) == 2
    assert log.recovery_point == 2
    assert log.sync() == 4


def test_the_log_may_roll_during_a_sync(disk: UnsyncedDisk) -> None:
    log = open_log(disk)
    append(log, 2)
    pending = log.prepare_sync()
    log.roll(0)
    append(log, 2)
    pending.run()
    assert log.complete_sync(pending) == 2
    assert log.sync() == 4
    disk.crash()
    assert open_log(disk, recovery_point=4).log_end_offset == 4


def test_a_file_that_is_written_during_a_sync_is_synced_again(disk: UnsyncedDisk) -> None:
    log = open_log(disk)
    append(log, 3)
    log.append_aborted(AbortedTxn(1, 0, 2, 3))
    log.sync()
    append(log, 3)
    log.append_aborted(AbortedTxn(2, 3, 4, 5))
    pending = log.prepare_sync()
    pending.run()
    log.append_aborted(AbortedTxn(3, 3, 5, 6))
    log.complete_sync(pending)
    log.sync()
    disk.crash()
    assert len(disk.read_file(f"{FOLDER}/{0:020d}.txnindex")) == 3 * 34


def test_a_log_that_was_only_read_is_closed_without_a_write(disk: UnsyncedDisk) -> None:
    log = open_log(disk, SMALL)
    log.assign_epoch(1, 0)
    for _ in range(10):
        append(log)
    log.close(clean=True)
    log = open_log(disk, SMALL, clean=True)
    all_batches(log)
    disk.fail_call(1)  # Any call would fail.
    log.close(clean=True)
    disk.crash()
    assert len(audit(disk, FOLDER)) == 10


def test_an_empty_log_is_closed_without_a_write(disk: UnsyncedDisk) -> None:
    log = open_log(disk)
    disk.fail_call(1)
    log.close(clean=True)
    disk.kill()
    assert open_log(disk, clean=True).log_end_offset == 0


def test_segments_may_be_deleted_during_a_sync(disk: UnsyncedDisk) -> None:
    log = open_log(disk, SMALL)
    for _ in range(20):
        append(log)
    pending = log.prepare_sync()
    log.delete_before(10)
    pending.run()
    assert log.complete_sync(pending) == 20


def test_a_sync_with_nothing_to_do_makes_no_disk_call(disk: UnsyncedDisk) -> None:
    log = open_log(disk)
    append(log)
    log.sync()
    calls = disk.calls
    assert log.sync() == 1
    assert disk.calls == calls


def test_a_failed_sync_raises_and_does_not_move_the_recovery_point(disk: UnsyncedDisk) -> None:
    log = open_log(disk)
    append(log)
    disk.fail_call(2)
    with pytest.raises(StorageError):
        log.sync()
    assert log.recovery_point == 0


def test_leader_epochs_are_durable_as_soon_as_they_are_assigned(disk: UnsyncedDisk) -> None:
    log = open_log(disk)
    log.sync()
    log.assign_epoch(4, 0)
    disk.crash()
    assert open_log(disk).epochs.latest == -1, "nothing was written in that epoch"
    log = open_log(disk)
    log.assign_epoch(4, 0)
    append(log)
    log.sync()
    disk.crash()
    assert open_log(disk).epochs.latest == 4
