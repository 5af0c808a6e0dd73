"""Flipped leader epochs, which no CRC covers: the file of leader epochs decides."""

from __future__ import annotations

import logging

import pytest

from fencepost.log import Log, LogConfig
from fencepost.log.segment.survey import examine
from fencepost.log.segment.wrong_epochs import UNKNOWN, WrongEpoch, find_wrong, rising
from fencepost.log.times import find_timestamp
from fencepost.records.batch import HEADER_BYTES, split_batches
from fencepost.records.text_files import EpochEntry
from fencepost.simulation.disk import UnsyncedDisk
from tests.log.batches import FOLDER, all_batches, append, compact, open_log

SEGMENT = f"{FOLDER}/{0:020d}.log"
EPOCHS = f"{FOLDER}/leader-epoch-checkpoint"
WRITTEN = (3, 3, 3, 5, 5, 5)
"""The leader epochs of the log's six batches."""
KNOWN = [EpochEntry(3, 0), EpochEntry(5, 3)]


@pytest.fixture
def disk() -> UnsyncedDisk:
    return UnsyncedDisk()


def written(disk: UnsyncedDisk, config: LogConfig | None = None) -> Log:
    log = open_log(disk, config)
    for number, epoch in enumerate(WRITTEN):
        log.assign_epoch(epoch, log.log_end_offset)
        append(log, leader_epoch=epoch, timestamp_ms=1000 + number)
    return log


def set_epoch(disk: UnsyncedDisk, number: int, epoch: int) -> None:
    """Changes the leader epoch of one batch."""
    data = bytearray(disk.read_file(SEGMENT))
    start = sum(batch.size_bytes for batch in split_batches(data)[:number])
    data[start + 12 : start + 16] = epoch.to_bytes(4, "big", signed=True)
    disk.write_file(SEGMENT, bytes(data), sync=True)


def epochs_read(log: Log) -> tuple[int, ...]:
    return tuple(batch.leader_epoch for batch in all_batches(log))


@pytest.mark.parametrize("number", range(len(WRITTEN)))
@pytest.mark.parametrize("epoch", [0, 1, 4, 7, 2**30, -(2**31)])
@pytest.mark.parametrize("lost_power", [False, True])
def test_after_a_crash_a_flipped_epoch_misleads_neither_the_file_nor_a_reader(
    disk: UnsyncedDisk, number: int, epoch: int, lost_power: bool
) -> None:
    written(disk).close(clean=False)
    set_epoch(disk, number, epoch)
    log = open_log(disk, lost_power=lost_power)
    if lost_power and number == len(WRITTEN) - 1 and epoch > 5:
        # The last batch might be all that a power loss has left of a newer epoch.
        assert log.epochs.entries == [*KNOWN, EpochEntry(epoch, 5)]
        return
    assert log.epochs.entries == KNOWN
    assert epochs_read(log) == WRITTEN
    assert log.epochs.end_offset_for(3, log.log_end_offset) == (3, 3)
    found = find_timestamp(log, 1000 + number, 6)
    assert found is not None
    assert found.leader_epoch == WRITTEN[number]


@pytest.mark.parametrize("number", range(len(WRITTEN)))
@pytest.mark.parametrize("epoch", [0, 4, 2**30])
def test_epochs_are_learned_from_the_batches_without_the_one_that_contradicts_the_others(
    disk: UnsyncedDisk, number: int, epoch: int
) -> None:
    """The file is gone as well, so the order of the batches is all that is known."""
    written(disk).close(clean=True)
    set_epoch(disk, number, epoch)
    disk.remove(EPOCHS)
    for clean in (True, False):
        log = open_log(disk, clean=clean)
        entries = log.epochs.entries
        assert entries == sorted(entries), "epochs rise with their offsets"
        if number in (1, 4) and epoch != 4:
            assert entries == KNOWN
        log.close(clean=False)


def test_a_missing_file_is_made_again_from_the_batches(disk: UnsyncedDisk) -> None:
    written(disk).close(clean=True)
    disk.remove(EPOCHS)
    assert open_log(disk, clean=True).epochs.entries == KNOWN
    assert disk.exists(EPOCHS)


def test_a_file_that_no_batch_agrees_with_corrects_nothing(disk: UnsyncedDisk) -> None:
    """Then the file may be what is damaged."""
    written(disk).close(clean=False)
    disk.write_file(EPOCHS, b"0\n2\n2 0\n7 3\n", sync=True)
    assert epochs_read(open_log(disk, lost_power=False)) == WRITTEN


def test_a_wrong_epoch_is_logged_once_with_advice(
    disk: UnsyncedDisk, caplog: pytest.LogCaptureFixture
) -> None:
    written(disk).close(clean=True)
    set_epoch(disk, 1, 99)
    log = open_log(disk, clean=True)
    segment = log.segments[0]
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            found = examine(segment.file(), segment.size_bytes, 0, segment.next_offset)
            log.check_epochs(segment, found.epochs)
    (line,) = caplog.messages
    assert "offsets 1 to 1 have leader epoch 99, but were written in 3" in line
    assert "fencepost repair" in line
    assert epochs_read(log) == WRITTEN


def test_compaction_does_not_forget_which_epochs_are_wrong(disk: UnsyncedDisk) -> None:
    config = LogConfig(cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.0)
    log = written(disk, config)
    log.roll(0)
    append(log, leader_epoch=5)
    log.close(clean=False)
    set_epoch(disk, 5, 4)
    log = open_log(disk, config, lost_power=True)
    assert compact(log, upper_offset=log.log_end_offset, now_ms=5_000) is not None
    assert set(epochs_read(log)) == {5}, "the newest record of the key is left"


def test_a_gap_or_damage_between_two_epochs_is_no_wrong_epoch() -> None:
    known = [EpochEntry(3, 0), EpochEntry(5, 10)]
    assert find_wrong([(3, 0), (UNKNOWN, 8), (5, 12)], 20, known) == []
    assert find_wrong([(3, 0), (5, 12)], 20, known) == [WrongEpoch(10, 12, 3, 5)]
    assert find_wrong([(3, 0), (UNKNOWN, 8)], 20, known) == []


def test_a_damaged_first_batch_of_an_epoch_is_no_wrong_epoch(disk: UnsyncedDisk) -> None:
    written(disk).close(clean=False)
    data = bytearray(disk.read_file(SEGMENT))
    data[sum(batch.size_bytes for batch in split_batches(data)[:3]) + HEADER_BYTES] ^= 1
    disk.write_file(SEGMENT, bytes(data), sync=True)
    (segment,) = open_log(disk, lost_power=False).segments
    assert [(damage.first_offset, damage.end_offset) for damage in segment.damage] == [(3, 4)]
    assert segment.wrong_epochs == ()


def test_a_run_that_crosses_the_start_of_an_epoch_is_wrong_from_there_on() -> None:
    known = [EpochEntry(3, 0), EpochEntry(5, 10)]
    assert find_wrong([(3, 0), (5, 11)], 20, known) == [WrongEpoch(10, 11, 3, 5)]
    assert find_wrong([(3, 0), (5, 9)], 20, known) == [WrongEpoch(9, 10, 5, 3)]


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ([], []),
        ([(0, 0)], [(0, 0)]),
        ([(3, 0), (99, 4), (3, 5)], [(3, 0)]),
        ([(3, 0), (1, 4), (3, 5), (4, 9)], [(3, 0), (4, 9)]),
        ([(99, 0), (3, 1), (4, 9)], [(3, 1), (4, 9)]),
        ([(3, 0), (4, 5), (1, 10)], [(3, 0), (4, 5)]),
        ([(3, 0), (UNKNOWN, 4), (4, 9)], [(3, 0), (4, 9)]),
        ([(3, 0), (5, 4), (1, 5), (5, 6)], [(3, 0), (5, 4)]),
        ([(3, 0), (99, 4), (5, 6), (6, 11)], [(3, 0), (5, 6), (6, 11)]),
    ],
)
def test_of_two_runs_that_contradict_each_other_the_longer_one_stays(
    runs: list[tuple[int, int]], expected: list[tuple[int, int]]
) -> None:
    assert rising(runs, 12) == expected
