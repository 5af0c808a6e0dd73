"""Timeouts, expiry, and clocks that jump. Numbers are those of docs/cases.md."""

from __future__ import annotations

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.coordinator.txn.events import Reply
from fencepost.coordinator.txn.prepare import timed_out_ids
from fencepost.coordinator.txn.states import State
from fencepost.records.transaction_log import encode_key
from tests.coordinator.txn.ledger import TXN, Ledger, transaction

WEEK_MS = 604_800_000


@pytest.mark.parametrize("state", list(State)[:6])
def test_case_35_only_open_transactions_time_out(state: State) -> None:
    ledger = Ledger(transaction(state, start_ms=1_000, timeout_ms=500))
    late = timed_out_ids(ledger.state, ledger.pending, 1_000_000)
    assert late == ([(TXN, 4000)] if state is State.ONGOING else [])


def test_case_35_a_transaction_times_out_after_its_timeout_and_not_at_it() -> None:
    ledger = Ledger(transaction(State.ONGOING, start_ms=1_000, timeout_ms=500))
    assert timed_out_ids(ledger.state, ledger.pending, 1_500) == []
    assert timed_out_ids(ledger.state, ledger.pending, 1_501) == [(TXN, 4000)]


def test_case_36_a_pending_transition_is_left_for_the_next_scan() -> None:
    ledger = Ledger(transaction(State.ONGOING, start_ms=1_000, timeout_ms=500))
    ledger.pending.add(TXN)
    assert timed_out_ids(ledger.state, ledger.pending, 1_000_000) == []
    assert ledger.time_out().error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert len(ledger.log) == 1


def test_a_timeout_of_a_transaction_that_has_ended_does_nothing() -> None:
    ledger = Ledger(transaction(State.COMPLETE_COMMIT))
    assert ledger.time_out().error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert len(ledger.log) == 1


@pytest.mark.parametrize(("version", "last_epoch"), [(0, -1), (2, 5)])
def test_a_timeout_aborts_at_the_next_epoch(version: int, last_epoch: int) -> None:
    ledger = Ledger(transaction(State.ONGOING, epoch=5, last_epoch=3), cluster_version=version)
    assert ledger.time_out().error is ErrorCode.NONE
    assert ledger.txn.state == State.PREPARE_ABORT
    assert ledger.identity == (4000, 6)
    assert ledger.txn.last_producer_epoch == last_epoch
    assert ledger.txn.client_transaction_version == version


@pytest.mark.parametrize("state", list(State)[:6])
def test_only_idle_ids_expire(state: State) -> None:
    ledger = Ledger(transaction(state, update_ms=0))
    ledger.now_ms = WEEK_MS
    gone = ledger.expire(WEEK_MS)
    idle = state in (State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT)
    assert gone == (1 if idle else 0)
    assert (TXN in ledger.state.transactions) == (not idle)


def test_an_id_expires_at_its_expiration_time() -> None:
    ledger = Ledger(transaction(update_ms=1))
    ledger.now_ms = WEEK_MS
    assert ledger.expire(WEEK_MS) == 0
    ledger.now_ms += 1
    assert ledger.expire(WEEK_MS) == 1


def test_a_pending_id_does_not_expire() -> None:
    ledger = Ledger(transaction(update_ms=0))
    ledger.pending.add(TXN)
    ledger.now_ms = WEEK_MS
    assert ledger.expire(WEEK_MS) == 0


def test_case_40_kafka_14880_an_id_with_epoch_minus_1_expires() -> None:
    ledger = Ledger(transaction(epoch=-1, update_ms=0))
    ledger.now_ms = WEEK_MS
    assert ledger.expire(WEEK_MS) == 1


def test_case_40_kafka_13099_tombstones_are_split_by_batch_size() -> None:
    ledger = Ledger()
    names = [f"id-{number:04d}" for number in range(100)]
    for name in names:
        ledger.put(name, transaction(update_ms=0))
    ledger.now_ms = WEEK_MS
    room_bytes = 30 * (len(encode_key(names[0])) + 32)
    counts = []
    while gone := ledger.expire(WEEK_MS, room_bytes):
        counts.append(gone)
    assert counts == [30, 30, 30, 10]
    assert ledger.state.transactions == {}


def test_case_40_one_tombstone_is_written_however_small_the_batch() -> None:
    ledger = Ledger(transaction(update_ms=0))
    ledger.now_ms = WEEK_MS
    assert ledger.expire(WEEK_MS, 1) == 1


def test_case_38_an_expired_id_is_unknown_until_it_is_initialised_again() -> None:
    ledger = Ledger(transaction(epoch=5, update_ms=0))
    ledger.now_ms = WEEK_MS
    ledger.expire(WEEK_MS)
    unknown = ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert ledger.add(4000, 5) is unknown
    assert ledger.end(4000, 5, commit=True, version=0).error is unknown
    assert ledger.end(4000, 5, commit=True, version=2).error is unknown
    assert ledger.init() == Reply(ErrorCode.NONE, 9000, 0)


def test_requests_wait_while_the_tombstone_of_their_id_is_not_durable() -> None:
    ledger = Ledger(transaction(epoch=5, update_ms=0))
    ledger.now_ms = WEEK_MS
    ledger.expire(WEEK_MS)
    ledger.pending.add(TXN)
    concurrent = ErrorCode.CONCURRENT_TRANSACTIONS
    assert ledger.init().error is concurrent
    assert ledger.add(4000, 5) is concurrent
    assert ledger.end(4000, 5, commit=True, version=0).error is concurrent
    assert ledger.end(4000, 5, commit=True, version=2).error is concurrent


@pytest.mark.parametrize("version", [0, 2])
def test_case_45_kafka_8803_a_clock_that_moves_backwards_stops_nothing(version: int) -> None:
    ledger = Ledger(transaction(epoch=5, update_ms=100_000))
    ledger.now_ms = 50_000
    assert ledger.add(4000, 5, version=version) is ErrorCode.NONE
    ledger.now_ms = 40_000
    assert ledger.end(4000, 5, commit=True, version=version).error is ErrorCode.NONE
    ledger.now_ms = 30_000
    ledger.complete()
    assert ledger.txn.state == State.COMPLETE_COMMIT
    assert ledger.txn.last_update_ms == 30_000
