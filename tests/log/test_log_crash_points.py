"""A power loss at every disk call of a long story: everything promised survives.

Method: the story runs once for every n, with the power lost at the n-th call, until a run makes
fewer calls. The disk then holds only synced bytes or, with a seed, a random prefix of the others
too. Promises are what the story recorded before the loss.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from fencepost.log import Log, LogConfig
from fencepost.log.config import COMPACT
from fencepost.records.index import AbortedTxn
from fencepost.simulation.disk import PowerLost, UnsyncedDisk
from tests.halves import half_of
from tests.log.audit import audit
from tests.log.batches import (
    FOLDER,
    SeededRandomness,
    Table,
    all_batches,
    append,
    append_marker,
    append_pairs,
    compact,
    fold,
    open_log,
)

NOW = 1_000_000
SMALL = LogConfig(segment_bytes=400, index_interval_bytes=80)
COMPACTED = LogConfig(
    segment_bytes=600, index_interval_bytes=100, cleanup_policy=frozenset({COMPACT})
)


@dataclass
class Promises:
    """What the owner of the log wrote to its checkpoints."""

    recovery_point: int = 0
    saved_point: int = 0
    """The recovery point in the owner's checkpoint."""
    log_start_offset: int = 0
    written: list[bytes] = field(default_factory=list)
    table: Table = field(default_factory=dict)
    calls_before: int = 0
    """Calls at the start of the story that no test interrupts."""


Story = Callable[[UnsyncedDisk, Promises], None]


def append_and_roll(disk: UnsyncedDisk, promises: Promises) -> None:
    log = open_log(disk, SMALL)
    for number in range(24):
        promises.written.append(bytes(append(log, size=20, timestamp_ms=number).data))
        if number % 3 == 2:
            log.append_aborted(AbortedTxn(number, number - 1, number, number + 1))
        if number % 5 == 4:
            promises.recovery_point = log.sync()
            promises.saved_point = log.saved_recovery_point
    log.close(clean=True)
    promises.recovery_point = log.log_end_offset
    promises.saved_point = log.saved_recovery_point


def delete_and_append(disk: UnsyncedDisk, promises: Promises) -> None:
    log = open_log(disk, SMALL)
    for number in range(15):
        promises.written.append(bytes(append(log, size=20, timestamp_ms=number).data))
    promises.recovery_point = log.sync()
    promises.saved_point = log.saved_recovery_point
    promises.log_start_offset = 5
    log.delete_before(5)
    for number in range(15, 20):
        promises.written.append(bytes(append(log, size=20, timestamp_ms=number).data))
    promises.recovery_point = log.sync()
    promises.saved_point = log.saved_recovery_point


def crash_during(story: Story, call: int, seed: int | None) -> tuple[UnsyncedDisk, Promises] | None:
    """The disk after a power loss at a call; None if the story ended before it."""
    disk = UnsyncedDisk()
    disk.make_dir("data")
    promises = Promises()
    disk.lose_power_at(call)
    try:
        story(disk, promises)
    except PowerLost:
        disk.crash(SeededRandomness(seed) if seed is not None else None)
        return disk, promises
    return None


@pytest.mark.parametrize("story", [append_and_roll, delete_and_append])
@pytest.mark.parametrize("seed", half_of([None, 1, 2, 3]))
def test_synced_data_survives_a_crash_at_any_call(story: Story, seed: int | None) -> None:
    call = 0
    while (left := crash_during(story, call := call + 1, seed)) is not None:
        disk, promises = left
        log = open_log(
            disk,
            SMALL,
            recovery_point=promises.saved_point,
            log_start_offset=promises.log_start_offset,
        )
        assert log.log_end_offset >= promises.recovery_point
        assert log.log_start_offset >= promises.log_start_offset
        for batch in all_batches(log):
            if batch.base_offset < promises.recovery_point:
                assert bytes(batch.data) == promises.written[batch.base_offset]
        found = [batch.base_offset for batch in all_batches(log)]
        assert found == list(range(found[0], log.log_end_offset)) if found else True
        append(log)
        log.close(clean=True)
        audit(disk, FOLDER)
    assert call > 50


def fill_and_compact(disk: UnsyncedDisk, promises: Promises) -> None:
    log = open_log(disk, COMPACTED)
    for number in range(24):
        if number % 4 == 3:
            producer_id = number % 3
            first = append_pairs(
                log,
                (b"k%d" % (number % 5), b"aborted"),
                producer_id=producer_id,
                producer_epoch=0,
                transactional=True,
            )
            marker = append_marker(log, producer_id, commit=False)
            end = marker.base_offset
            log.append_aborted(AbortedTxn(producer_id, first.base_offset, end, end + 1))
        else:
            append_pairs(log, (b"k%d" % (number % 5), b"%d" % number), timestamp_ms=number)
    log.roll(NOW)
    promises.recovery_point = log.sync()
    promises.saved_point = log.saved_recovery_point
    promises.table = fold(log)
    promises.calls_before = disk.calls
    for round_number in range(2):
        compact(
            log,
            upper_offset=log.log_end_offset,
            now_ms=NOW + round_number * 10**9,
            last_records={},
            force=True,
        )
        append_pairs(log, (b"new", b"%d" % round_number))
        log.roll(NOW)


@pytest.mark.parametrize("seed", half_of([None, 1, 2, 3]))
def test_a_crash_at_any_call_of_compaction_loses_nothing(seed: int | None) -> None:
    undisturbed = Promises()
    fill_and_compact(UnsyncedDisk(), undisturbed)
    call = undisturbed.calls_before
    while (left := crash_during(fill_and_compact, call := call + 1, seed)) is not None:
        disk, promises = left
        log = open_log(disk, COMPACTED, recovery_point=promises.saved_point)
        assert log.log_end_offset >= promises.recovery_point
        table = fold(log)
        table.pop(b"new", None)
        assert table == promises.table
        assert aborted_are_known(log)
        log.close(clean=True)
        audit(disk, FOLDER)
    assert call > undisturbed.calls_before + 100


def aborted_are_known(log: Log) -> bool:
    """The index has every aborted transaction that still has a batch.

    The partition rebuilds the entries of recovered markers from its snapshot.
    """
    left: dict[int, int] = {}
    for batch in all_batches(log):
        if batch.is_transactional and not batch.is_control:
            left.setdefault(batch.producer_id, batch.base_offset)
        elif batch.is_control and batch.base_offset < (log.recovered_from or 0):
            first = left.pop(batch.producer_id, None)
            known = [txn.last_offset for txn in log.aborted_between(batch.base_offset, 10**9)]
            if first is not None and batch.base_offset not in known:
                return False
    return True


@pytest.mark.parametrize("call", range(1, 60))
def test_recovery_itself_may_be_interrupted(call: int) -> None:
    disk = UnsyncedDisk()
    disk.make_dir("data")
    promises = Promises()
    append_and_roll(disk, promises)
    name = next(n for n in reversed(disk.list_dir(FOLDER)) if n.endswith(".log"))
    path = f"{FOLDER}/{name}"
    disk.open(path).append([b"torn"])
    disk.lose_power_at(call)
    try:
        open_log(disk, SMALL)
    except PowerLost:
        disk.crash()
    else:
        disk.kill()
    log = open_log(disk, SMALL)
    assert [bytes(batch.data) for batch in all_batches(log)] == promises.written
