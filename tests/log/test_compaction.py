"""Compaction of whole logs: what is kept, what is removed, and when."""

from __future__ import annotations

import random
from itertools import count
from typing import Any

import pytest

from fencepost.base.failures import StorageError
from fencepost.log import Log, LogConfig
from fencepost.log.cleaning import LastRecord
from fencepost.log.compaction import Compacted, plan_round
from fencepost.log.config import COMPACT
from fencepost.records.batch import read_header
from fencepost.records.builder import build_batch
from fencepost.records.index import AbortedTxn
from fencepost.records.opened import Record, open_batch
from fencepost.simulation.disk import UnsyncedDisk
from tests.halves import EVERY_CALL, HALF
from tests.log.audit import audit
from tests.log.batches import (
    FOLDER,
    all_batches,
    append_marker,
    append_pairs,
    compact,
    fold,
    open_log,
    put,
    retain,
    round_of,
)

NOW = 1_000_000
DAY = 86_400_000
CONFIG = LogConfig(
    cleanup_policy=frozenset({COMPACT}),
    segment_bytes=1_000_000,
    index_interval_bytes=100,
    delete_retention_ms=DAY,
)


@pytest.fixture
def disk() -> UnsyncedDisk:
    return UnsyncedDisk()


@pytest.fixture
def log(disk: UnsyncedDisk) -> Log:
    return open_log(disk, CONFIG)


def clean(log: Log, *, now_ms: int = NOW, **more: Any) -> Compacted | None:
    """Seals the active segment and compacts everything."""
    log.roll(now_ms)
    return compact(log, upper_offset=log.log_end_offset, now_ms=now_ms, **more)


def contents(log: Log) -> list[tuple[int, bytes | None, bytes | None]]:
    return [
        (record.offset, record.key, record.value)
        for batch in all_batches(log)
        if not batch.is_control
        for record in open_batch(batch)
    ]


def test_the_newest_record_of_every_key_keeps_its_offset(log: Log, disk: UnsyncedDisk) -> None:
    append_pairs(log, (b"a", b"1"), (b"b", b"1"), (b"a", b"2"))
    append_pairs(log, (b"c", b"1"))
    append_pairs(log, (b"a", b"3"))
    assert clean(log) is not None
    assert contents(log) == [(1, b"b", b"1"), (3, b"c", b"1"), (4, b"a", b"3")]
    first = all_batches(log)[0]
    assert (first.base_offset, first.last_offset, first.record_count) == (0, 2, 1)
    log.close(clean=True)
    audit(disk, FOLDER)


def test_the_active_segment_is_not_compacted(log: Log) -> None:
    append_pairs(log, (b"a", b"1"))
    append_pairs(log, (b"a", b"2"))
    compact(log, upper_offset=2, now_ms=NOW, force=True)
    assert len(contents(log)) == 2
    log.roll(NOW)
    append_pairs(log, (b"a", b"3"))
    compact(log, upper_offset=3, now_ms=NOW, force=True)
    assert contents(log) == [(1, b"a", b"2"), (2, b"a", b"3")]


def test_segments_that_reach_the_upper_offset_are_not_compacted(log: Log) -> None:
    for value in (b"1", b"2", b"3"):
        append_pairs(log, (b"a", value))
        log.roll(NOW)
    assert compact(log, upper_offset=0, now_ms=NOW, force=True) is None
    compact(log, upper_offset=2, now_ms=NOW, force=True)
    assert contents(log) == [(1, b"a", b"2"), (2, b"a", b"3")]
    assert log.first_dirty_offset == 2


def test_records_without_a_key_are_removed(log: Log) -> None:
    append_pairs(log, (None, b"1"), (b"a", b"1"))
    clean(log)
    assert contents(log) == [(1, b"a", b"1")]


@pytest.mark.parametrize("codec", range(5))
def test_a_thinned_batch_keeps_its_codec(log: Log, codec: int) -> None:
    records = [Record(0, NOW, b"k%d" % (n % 3), b"value" * 20) for n in range(9)]
    put(log, read_header(build_batch(records, timestamp_ms=NOW, codec=codec)))
    clean(log)
    assert [offset for offset, _, _ in contents(log)] == [6, 7, 8]
    assert all_batches(log)[0].codec == codec


def test_the_last_batch_of_a_round_is_kept_even_if_it_is_empty(log: Log) -> None:
    append_pairs(log, (b"a", b"1"))
    append_pairs(log, (None, b"2"))
    clean(log)
    last = all_batches(log)[-1]
    assert (last.base_offset, last.record_count, last.size_bytes) == (1, 0, 61)


def test_tombstones_are_removed_after_the_delete_retention(log: Log) -> None:
    append_pairs(log, (b"a", b"1"))
    append_pairs(log, (b"a", None))
    append_pairs(log, (b"z", b"1"))
    clean(log)
    assert contents(log) == [(1, b"a", None), (2, b"z", b"1")]
    horizon = next(b for b in all_batches(log) if b.base_offset == 1).delete_horizon_ms
    assert horizon == NOW + DAY
    append_pairs(log, (b"z", b"2"))
    clean(log, now_ms=NOW + DAY - 1, force=True)
    assert contents(log) == [(1, b"a", None), (3, b"z", b"2")]
    append_pairs(log, (b"z", b"3"))
    clean(log, now_ms=NOW + DAY, force=True)
    assert contents(log) == [(4, b"z", b"3")]


def test_a_superseded_tombstone_is_removed_immediately(log: Log) -> None:
    append_pairs(log, (b"a", None))
    append_pairs(log, (b"a", b"1"))
    clean(log)
    assert contents(log) == [(1, b"a", b"1")]


def transaction(log: Log, producer_id: int, *pairs: tuple[bytes, bytes], commit: bool) -> None:
    first = append_pairs(
        log,
        *pairs,
        timestamp_ms=NOW,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    ).base_offset
    marker = append_marker(log, producer_id, commit=commit, timestamp_ms=NOW)
    if not commit:
        end = marker.base_offset
        log.append_aborted(AbortedTxn(producer_id, first, end, end + 1))


def test_records_of_aborted_transactions_are_removed_and_supersede_nothing(log: Log) -> None:
    append_pairs(log, (b"a", b"1"))
    transaction(log, 7, (b"a", b"2"), (b"b", b"2"), commit=False)
    append_pairs(log, (b"z", b"1"))
    before = fold(log)
    clean(log, last_records={})
    assert contents(log) == [(0, b"a", b"1"), (4, b"z", b"1")]
    assert fold(log) == before


def test_records_of_committed_transactions_are_treated_like_any_others(log: Log) -> None:
    append_pairs(log, (b"a", b"1"))
    transaction(log, 7, (b"a", b"2"), commit=True)
    before = fold(log)
    clean(log, last_records={})
    assert contents(log) == [(1, b"a", b"2")]
    assert fold(log) == before == {b"a": b"2"}


def markers(log: Log) -> list[int]:
    return [b.base_offset for b in all_batches(log) if b.is_control and b.record_count]


@pytest.mark.parametrize("commit", [True, False])
def test_a_marker_is_kept_until_its_transaction_is_gone_and_the_retention_is_over(
    log: Log, commit: bool
) -> None:
    transaction(log, 7, (b"a", b"1"), commit=commit)
    append_pairs(log, (b"a", b"2"))
    clean(log, last_records={})
    assert markers(log) == [1], "its data was there at the beginning of the round"
    append_pairs(log, (b"a", b"3"))
    clean(log, last_records={}, force=True)
    marker = all_batches(log)[0]
    assert (marker.base_offset, marker.delete_horizon_ms) == (1, NOW + DAY)
    append_pairs(log, (b"a", b"4"))
    clean(log, now_ms=NOW + DAY - 1, last_records={}, force=True)
    assert markers(log) == [1]
    append_pairs(log, (b"a", b"5"))
    clean(log, now_ms=NOW + DAY, last_records={}, force=True)
    assert markers(log) == []


def test_the_marker_of_a_transaction_with_records_is_never_removed(log: Log) -> None:
    transaction(log, 7, (b"a", b"1"), commit=True)
    for number in range(3):
        append_pairs(log, (b"b", b"%d" % number))
        clean(log, now_ms=NOW + number * 10 * DAY, last_records={}, force=True)
    assert markers(log) == [1]
    assert fold(log) == {b"a": b"1", b"b": b"2"}


def test_the_new_transaction_index_has_only_the_entries_that_are_still_needed(
    log: Log, disk: UnsyncedDisk
) -> None:
    transaction(log, 7, (b"a", b"1"), commit=False)
    transaction(log, 8, (b"a", b"1"), commit=False)
    append_pairs(log, (b"b", b"1"))
    # Producer 8 is active: its last batch stays, empty, and its entry too.
    clean(log, last_records={8: LastRecord(2, 0)})
    assert log.aborted_between(0, 10) == [AbortedTxn(7, 0, 1, 2), AbortedTxn(8, 2, 3, 4)]
    append_pairs(log, (b"b", b"2"))
    clean(log, last_records={8: LastRecord(2, 0)}, force=True)
    assert log.aborted_between(0, 10) == [AbortedTxn(8, 2, 3, 4)]
    append_pairs(log, (b"b", b"3"))
    clean(log, last_records={}, force=True)
    clean_again = open_log(disk, CONFIG)
    assert [b.base_offset for b in all_batches(clean_again)][-1] == 6


def test_an_aborted_transaction_is_removed_from_both_of_its_segments(log: Log) -> None:
    append_pairs(log, (b"a", b"1"), producer_id=7, producer_epoch=0, transactional=True)
    log.roll(NOW)
    append_pairs(log, (b"b", b"1"), producer_id=7, producer_epoch=0, transactional=True)
    append_marker(log, 7, commit=False)
    log.append_aborted(AbortedTxn(7, 0, 2, 3))
    append_pairs(log, (b"z", b"1"))
    clean(log, last_records={})
    assert contents(log) == [(3, b"z", b"1")]


def test_the_last_batch_of_an_active_producer_is_kept_for_its_sequence(log: Log) -> None:
    numbered = {"producer_id": 7, "producer_epoch": 3}
    append_pairs(log, (b"a", b"1"), (b"b", b"1"), base_sequence=40, **numbered)
    append_pairs(log, (b"a", b"2"), base_sequence=42, **numbered)
    append_pairs(log, (b"a", b"3"), (b"b", b"3"))
    clean(log)
    kept = [b for b in all_batches(log) if b.producer_id == 7]
    assert [(b.base_offset, b.record_count, b.last_sequence) for b in kept] == [(2, 0, 42)]
    append_pairs(log, (b"a", b"4"))
    clean(log, last_records={}, force=True)
    assert [b for b in all_batches(log) if b.producer_id == 7] == []


def test_the_last_marker_of_a_producer_without_data_is_kept_for_its_epoch(log: Log) -> None:
    append_marker(log, 7, commit=False, epoch=5)
    append_pairs(log, (b"a", b"1"))
    only_marker = {7: LastRecord(None, 5)}
    clean(log, last_records=only_marker)
    append_pairs(log, (b"a", b"2"))
    clean(log, now_ms=NOW + 2 * DAY, last_records=only_marker, force=True)
    kept = [b for b in all_batches(log) if b.is_control]
    assert [(b.producer_epoch, b.record_count) for b in kept] == [(5, 0)]


def test_a_batch_that_cannot_be_opened_is_kept_unchanged(log: Log) -> None:
    data = build_batch([Record(0, NOW, b"a", b"1")], timestamp_ms=NOW, codec=1)
    data[61:] = b"\xff" * (len(data) - 61)
    broken = read_header(data)
    broken.stamp_append_time(NOW)
    log.append(broken)
    append_pairs(log, (b"a", b"2"))
    append_pairs(log, (b"a", b"3"))
    clean(log)
    assert bytes(all_batches(log)[0].data) == bytes(broken.data)
    assert [batch.base_offset for batch in all_batches(log)] == [0, 2]


def test_a_clean_log_is_not_compacted(log: Log) -> None:
    append_pairs(log, (b"a", b"1" * 1000))
    assert clean(log) is not None
    append_pairs(log, (b"b", b"1"))
    assert clean(log) is None
    log.config = LogConfig(cleanup_policy=frozenset({COMPACT}), min_cleanable_dirty_ratio=0.0)
    assert clean(log) is not None


def test_young_segments_are_not_compacted(disk: UnsyncedDisk) -> None:
    config = LogConfig(cleanup_policy=frozenset({COMPACT}), min_compaction_lag_ms=100)
    log = open_log(disk, config)
    append_pairs(log, (b"a", b"1"), timestamp_ms=NOW - 200)
    log.roll(NOW)
    append_pairs(log, (b"a", b"2"), timestamp_ms=NOW - 150)
    log.roll(NOW)
    append_pairs(log, (b"a", b"3"), timestamp_ms=NOW - 50)
    clean(log)
    assert [value for _, _, value in contents(log)] == [b"2", b"3"]
    assert log.first_dirty_offset == 2


def test_a_log_is_compacted_after_the_maximum_lag_however_clean_it_is(log: Log) -> None:
    append_pairs(log, (b"a", b"1" * 1000), timestamp_ms=NOW - 1000)
    clean(log)
    append_pairs(log, (b"b", b"1"), timestamp_ms=NOW - 500)
    log.roll(NOW)
    assert not plan_round(log, log.log_end_offset, NOW).is_overdue
    log.config = LogConfig(cleanup_policy=frozenset({COMPACT}), max_compaction_lag_ms=499)
    assert plan_round(log, log.log_end_offset, NOW).is_overdue
    assert clean(log) is not None


def test_small_adjacent_segments_are_merged(disk: UnsyncedDisk) -> None:
    config = LogConfig(cleanup_policy=frozenset({COMPACT}), segment_bytes=2000)
    log = open_log(disk, config)
    for number in range(100):
        append_pairs(log, (b"key-%d" % (number % 5), b"v" * 100))
    before = len(log.segments)
    assert before > 5
    # One round cleans, the next one merges the small segments.
    for _ in range(2):
        clean(log, force=True)
        append_pairs(log, (b"x", b"1"))
    assert len(log.segments) <= 3
    log.close(clean=True)
    audit(disk, FOLDER)
    again = open_log(disk, config, clean=True)
    assert len(fold(again)) == 6


def test_a_full_map_ends_the_round_early_and_the_next_one_continues(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fencepost.log.cleaning.MAX_KEYS", 10)
    monkeypatch.setattr("fencepost.log.cleaning.NewestOffsets.__init__.__defaults__", (10,))
    for repetition in range(3):
        for number in range(12):
            append_pairs(log, (b"k%d" % number, b"%d" % repetition))
    before = fold(log)
    rounds = 0
    log.roll(NOW)
    while compact(log, upper_offset=36, now_ms=NOW, force=True) is not None:
        rounds += 1
        assert fold(log) == before
    assert rounds > 1
    assert len(contents(log)) == 12


def test_long_keys_are_distinguished(log: Log) -> None:
    append_pairs(log, (b"x" * 100 + b"1", b"1"), (b"x" * 100 + b"2", b"1"), (b"x" * 16, b"1"))
    append_pairs(log, (b"x" * 100 + b"1", b"2"))
    clean(log)
    assert [offset for offset, _, _ in contents(log)] == [1, 2, 3]


def test_readers_and_writers_continue_between_the_steps(log: Log) -> None:
    for number in range(100):
        append_pairs(log, (b"k%d" % (number % 7), b"v" * 100_000))
    log.roll(NOW)
    steps = round_of(log, upper_offset=log.log_end_offset, now_ms=NOW)
    scan = log.scan(0)
    seen = {}
    count = 0
    for _ in steps:
        append_pairs(log, (b"new", b"%d" % count))
        count += 1
        for record in open_batch(next(scan)):
            seen[record.key] = record.value
    assert count > 3
    for batch in scan:
        for record in open_batch(batch):
            seen[record.key] = record.value
    assert seen == fold(log)
    assert len(fold(log)) == 8


def interruptions(log: Log) -> list[Any]:
    return [
        lambda: log.delete_before(30),
        lambda: log.close(clean=False),
        lambda: retain(log, NOW + 10**9, upper_offset=log.log_end_offset),
    ]


@pytest.mark.parametrize("kind", range(3))
def test_a_round_ends_cleanly_if_the_log_changes_during_it(disk: UnsyncedDisk, kind: int) -> None:
    config = LogConfig(
        cleanup_policy=frozenset({COMPACT, "delete"}), segment_bytes=2_000_000, retention_ms=1000
    )
    log = open_log(disk, config)
    for number in range(40):
        append_pairs(log, (b"k%d" % (number % 7), b"v" * 200_000))
    steps = round_of(log, upper_offset=40, now_ms=NOW, force=True)
    next(steps)
    next(steps)
    interruptions(log)[kind]()
    for _ in steps:
        pass
    if kind != 1:
        all_batches(log)
        log.close(clean=True)
    left = [name for name in disk.list_dir(FOLDER) if name.endswith((".cleaned", ".swap"))]
    assert left == []
    log = open_log(disk, config, log_start_offset=log.log_start_offset)
    fold(log)


def test_an_abandoned_round_leaves_no_files_behind(log: Log, disk: UnsyncedDisk) -> None:
    for _ in range(40):
        append_pairs(log, (b"k", b"v" * 200_000))
    log.roll(NOW)
    steps = round_of(log, upper_offset=40, now_ms=NOW)
    while not [name for name in disk.list_dir(FOLDER) if name.endswith(".cleaned")]:
        next(steps)
    steps.close()
    assert not [name for name in disk.list_dir(FOLDER) if name.endswith(".cleaned")]


def test_a_disk_failure_at_sampled_calls_loses_only_the_round(disk: UnsyncedDisk) -> None:
    for number in count(1) if EVERY_CALL else count(HALF, 2):
        log = filled(UnsyncedDisk())
        broken = log.disk
        assert isinstance(broken, UnsyncedDisk)
        before = fold(log)
        broken.fail_call(number)
        try:
            compact(log, upper_offset=log.log_end_offset, now_ms=NOW, force=True)
        except StorageError:
            pass
        else:
            break
        assert fold(log) == before
        append_pairs(log, (b"new", b"1"))
        broken.kill()
        again = open_log(broken, log.config)
        assert fold(again) == {**before, b"new": b"1"}
    assert number > 30


def filled(disk: UnsyncedDisk, seed: int = 3) -> Log:
    """A log of several segments with a case for every rule of compaction."""
    config = LogConfig(
        cleanup_policy=frozenset({COMPACT}), segment_bytes=1200, index_interval_bytes=150
    )
    log = open_log(disk, config)
    chance = random.Random(seed)
    for _ in range(60):
        key = b"k%d" % chance.randrange(6)
        value = None if chance.random() < 0.2 else b"%d" % chance.randrange(1000)
        kind = chance.random()
        if kind < 0.4:
            append_pairs(log, (key, value), (b"k%d" % chance.randrange(6), b"x"), timestamp_ms=NOW)
        else:
            transaction(log, chance.randrange(3), (key, value or b""), commit=kind < 0.7)
    log.roll(NOW)
    return log


@pytest.mark.parametrize("seed", range(12))
def test_no_number_of_rounds_changes_the_newest_values(seed: int) -> None:
    disk = UnsyncedDisk()
    log = filled(disk, seed)
    chance = random.Random(seed)
    before = fold(log)
    for number in range(4):
        now_ms = NOW + number * chance.choice([1, DAY])
        clean(log, now_ms=now_ms, force=True, last_records=chance.choice([None, {}]))
        assert fold(log) == before
        append_pairs(log, (b"k1", b"%d" % number), timestamp_ms=now_ms)
        before[b"k1"] = b"%d" % number
    config = log.config
    log.close(clean=True)
    audit(disk, FOLDER)
    assert fold(open_log(disk, config, clean=True)) == before
    assert fold(open_log(disk, config)) == before


def test_the_older_record_of_a_key_is_removed_only_when_the_newer_one_is_durable() -> None:
    """The newer record was not synced when the round began; the power fails after it."""
    disk = UnsyncedDisk()
    disk.make_dir("data")
    config = LogConfig(cleanup_policy=frozenset({COMPACT}))
    log = open_log(disk, config)
    append_pairs(log, (b"key", b"older"))
    log.roll(0)
    log.sync()
    append_pairs(log, (b"key", b"newer"))
    log.roll(0)
    append_pairs(log, (b"other", b"value"))
    assert compact(log, upper_offset=log.log_end_offset, now_ms=0, force=True) is not None
    disk.crash()
    assert b"key" in fold(open_log(disk, config, recovery_point=log.recovery_point))
