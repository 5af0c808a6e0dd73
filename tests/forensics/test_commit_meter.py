"""Rates and latencies from the records of coordinators, on plain records."""

from __future__ import annotations

from fencepost.base.ids import TRANSACTION_STATE_TOPIC, TopicPartition
from fencepost.forensics.commit_meter import CommitMeter
from fencepost.forensics.history.state_changes import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    StateChange,
)
from fencepost.forensics.history.transaction_log import TailedChange
from fencepost.records.transaction_log import TransactionMetadata

PARTITION = TopicPartition(TRANSACTION_STATE_TOPIC, 0)


def record(state: int | None, at_ms: int, transactional_id: str = "a") -> TailedChange:
    metadata = None
    if state is not None:
        metadata = TransactionMetadata(1, 1, -1, 0, -1, 60_000, state, {}, 0, at_ms, 2)
    return TailedChange(transactional_id, StateChange(0, at_ms, 0, metadata))


def test_commits_are_timed_from_the_decision_to_the_end() -> None:
    meter = CommitMeter()
    meter.add([record(ONGOING, 0), record(PREPARE_COMMIT, 100), record(COMPLETE_COMMIT, 107)])
    ended = meter.drain()
    assert (ended.committed, ended.aborted, ended.commit_ms) == (1, 0, (7,))
    assert meter.drain().committed == 0


def test_records_of_several_ids_mix() -> None:
    meter = CommitMeter()
    meter.add(
        [
            record(PREPARE_COMMIT, 100, "a"),
            record(PREPARE_ABORT, 100, "b"),
            record(COMPLETE_ABORT, 103, "b"),
        ]
    )
    meter.add([record(COMPLETE_COMMIT, 150, "a")])
    ended = meter.drain()
    assert (ended.committed, ended.aborted, ended.commit_ms) == (1, 1, (50,))


def test_a_commit_whose_decision_was_not_seen_counts_without_a_time() -> None:
    meter = CommitMeter()
    meter.add([record(COMPLETE_COMMIT, 100)])
    ended = meter.drain()
    assert (ended.committed, ended.commit_ms) == (1, ())
    assert ended.commit_ms_at(0.5) is None


def test_a_tombstone_forgets_a_decision_and_a_clock_that_goes_back_is_no_time() -> None:
    meter = CommitMeter()
    meter.add([record(PREPARE_COMMIT, 100), record(None, 200), record(COMPLETE_COMMIT, 300)])
    assert meter.drain().commit_ms == ()
    meter.add([record(PREPARE_COMMIT, 100), record(COMPLETE_COMMIT, 90)])
    assert meter.drain().commit_ms == (0,)


def test_shares_of_the_commits() -> None:
    meter = CommitMeter()
    for number in range(100):
        meter.add([record(PREPARE_COMMIT, 0), record(COMPLETE_COMMIT, number)])
    ended = meter.drain()
    assert [ended.commit_ms_at(share) for share in (0.5, 0.99, 1.0)] == [50, 99, 99]
