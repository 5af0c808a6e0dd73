"""EndTxn: every cell of both tables, retries, and the last epoch.

Numbers are those of docs/cases.md.
"""

from __future__ import annotations

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.coordinator.txn.events import Reply
from fencepost.coordinator.txn.states import State
from tests.coordinator.txn.ledger import TXN, Ledger, transaction

CODES = {
    "0": ErrorCode.NONE,
    "bump": ErrorCode.NONE,
    "48": ErrorCode.INVALID_TXN_STATE,
    "49": ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    "51": ErrorCode.CONCURRENT_TRANSACTIONS,
    "90": ErrorCode.PRODUCER_FENCED,
}

TV1 = {
    # state: (commit, abort)
    State.EMPTY: ("48", "48"),
    State.ONGOING: ("0", "0"),
    State.PREPARE_COMMIT: ("51", "48"),
    State.PREPARE_ABORT: ("48", "51"),
    State.COMPLETE_COMMIT: ("0", "48"),
    State.COMPLETE_ABORT: ("48", "0"),
}
TV2 = {
    # state: (commit at the epoch, commit at the one before, abort at the epoch, abort at the one
    # before)
    State.EMPTY: ("48", "90", "bump", "90"),
    State.ONGOING: ("bump", "90", "bump", "90"),
    State.PREPARE_COMMIT: ("90", "51", "90", "48"),
    State.PREPARE_ABORT: ("90", "48", "90", "51"),
    State.COMPLETE_COMMIT: ("48", "0", "bump", "48"),
    State.COMPLETE_ABORT: ("48", "48", "bump", "0"),
}
TV1_CELLS = [
    (state, commit, cell)
    for state, cells in TV1.items()
    for commit, cell in zip((True, False), cells, strict=True)
]
TV2_CELLS = [
    (state, commit, epoch, cell)
    for state, cells in TV2.items()
    for (commit, epoch), cell in zip(
        [(True, 5), (True, 4), (False, 5), (False, 4)], cells, strict=True
    )
]


@pytest.mark.parametrize(("state", "commit", "cell"), TV1_CELLS)
def test_case_26_every_cell_of_the_tv1_table(state: State, commit: bool, cell: str) -> None:
    ledger = Ledger(transaction(state, epoch=5))
    reply = ledger.end(4000, 5, commit=commit, version=0)
    assert reply == Reply(CODES[cell])
    assert ledger.identity == (4000, 5)
    assert len(ledger.log) == (2 if state is State.ONGOING else 1)


@pytest.mark.parametrize(("state", "commit", "epoch", "cell"), TV2_CELLS)
def test_case_26_every_cell_of_the_tv2_table(
    state: State, commit: bool, epoch: int, cell: str
) -> None:
    ledger = Ledger(transaction(state, epoch=5, last_epoch=4, version=2))
    reply = ledger.end(4000, epoch, commit=commit, version=2)
    if cell == "bump":
        assert reply == Reply(CODES[cell], 4000, 6)
        assert ledger.txn.state == (State.PREPARE_COMMIT if commit else State.PREPARE_ABORT)
        assert ledger.identity == (4000, 6)
        assert ledger.txn.last_producer_epoch == 5
    elif cell == "0":
        assert reply == Reply(CODES[cell], 4000, 5)
        assert len(ledger.log) == 1
    else:
        assert reply == Reply(CODES[cell])
        assert len(ledger.log) == 1


@pytest.mark.parametrize("version", [0, 2])
def test_an_unknown_id_has_no_producer(version: int) -> None:
    assert Ledger().end(4000, 0, commit=True, version=version).error is CODES["49"]


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("epoch", [3, 6, 32766])
def test_kafka_9600_only_the_epochs_of_the_table_are_accepted(version: int, epoch: int) -> None:
    for state in TV1:
        ledger = Ledger(transaction(state, epoch=5))
        assert ledger.end(4000, epoch, commit=True, version=version).error is CODES["90"]


def test_tv1_checks_producer_id_then_epoch_then_pending_then_state() -> None:
    ledger = Ledger(transaction(State.EMPTY, epoch=5))
    ledger.pending.add(TXN)
    assert ledger.end(4001, 5, commit=True, version=0).error is CODES["49"]
    assert ledger.end(4000, 4, commit=True, version=0).error is CODES["90"]
    assert ledger.end(4000, 5, commit=True, version=0).error is CODES["51"]


def test_tv2_checks_pending_then_producer_id_then_epoch_then_state() -> None:
    ledger = Ledger(transaction(State.EMPTY, epoch=5))
    assert ledger.end(4001, 4, commit=True, version=2).error is CODES["49"]
    assert ledger.end(4000, 4, commit=True, version=2).error is CODES["90"]
    ledger.pending.add(TXN)
    assert ledger.end(4001, 4, commit=True, version=2).error is CODES["51"]


def test_a_tv1_commit_keeps_the_producer_id_and_epoch() -> None:
    ledger = Ledger(transaction(State.ONGOING, epoch=5, last_epoch=4, start_ms=777))
    ledger.end(4000, 5, commit=True, version=0)
    assert ledger.txn.partitions == {"t": (0,)}
    assert ledger.txn.start_ms == 777
    ledger.complete()
    assert ledger.txn.state == State.COMPLETE_COMMIT
    assert ledger.identity == (4000, 5)
    assert ledger.txn.last_producer_epoch == 4
    assert ledger.txn.partitions == {}
    assert ledger.txn.start_ms == 777


def test_a_tv2_abort_without_a_transaction_starts_and_ends_now() -> None:
    ledger = Ledger(transaction(State.EMPTY, epoch=5))
    ledger.now_ms = 7_000
    ledger.end(4000, 5, commit=False, version=2)
    assert ledger.txn.state == State.PREPARE_ABORT
    assert ledger.txn.partitions == {}
    assert ledger.txn.start_ms == 7_000
    ledger.complete()
    assert ledger.txn.state == State.COMPLETE_ABORT


def test_case_27_a_repeated_commit_gets_the_same_reply_and_writes_nothing() -> None:
    ledger = Ledger(transaction(State.ONGOING, epoch=5))
    first = ledger.end(4000, 5, commit=True, version=2)
    ledger.complete()
    written = len(ledger.log)
    assert ledger.end(4000, 5, commit=True, version=2) == first
    assert len(ledger.log) == written


@pytest.mark.parametrize("commit", [True, False])
def test_case_28_the_last_epoch_is_followed_by_a_fresh_producer_id(commit: bool) -> None:
    ledger = Ledger(transaction(State.ONGOING, epoch=32766))
    reply = ledger.end(4000, 32766, commit=commit, version=2)
    assert reply == Reply(ErrorCode.NONE, 9000, 0)
    assert ledger.identity == (4000, 32767)
    assert ledger.txn.next_producer_id == 9000
    assert ledger.end(4000, 32766, commit=commit, version=2).error is CODES["51"]
    ledger.complete()
    assert ledger.identity == (9000, 0)
    assert ledger.txn.previous_producer_id == 4000
    assert ledger.txn.next_producer_id == -1
    assert ledger.end(4000, 32766, commit=commit, version=2) == reply
    assert ledger.ids_taken == 1


def test_case_28_the_other_outcome_is_refused_after_the_change_of_producer_id() -> None:
    ledger = Ledger(transaction(State.ONGOING, epoch=32766))
    ledger.end(4000, 32766, commit=True, version=2)
    assert ledger.end(4000, 32766, commit=False, version=2).error is CODES["48"]
    ledger.complete()
    assert ledger.end(4000, 32766, commit=False, version=2).error is CODES["48"]
    assert ledger.end(4000, 32765, commit=True, version=2).error is CODES["49"]


def test_case_29_kafka_18464_an_abort_right_after_a_commit_waits_and_is_never_fenced() -> None:
    ledger = Ledger(transaction(State.ONGOING, epoch=5))
    reply = ledger.end(4000, 5, commit=True, version=2)
    ledger.pending.add(TXN)
    assert ledger.end(4000, reply.producer_epoch, commit=False, version=2).error is CODES["51"]
    ledger.pending.remove(TXN)
    ledger.complete()
    again = ledger.end(4000, reply.producer_epoch, commit=False, version=2)
    assert again == Reply(ErrorCode.NONE, 4000, 7)


def test_case_30_a_tv2_producer_recovers_from_its_timeout_by_aborting() -> None:
    ledger = Ledger(transaction(State.ONGOING, epoch=5, version=2))
    ledger.time_out()
    ledger.complete()
    assert ledger.end(4000, 5, commit=False, version=2) == Reply(ErrorCode.NONE, 4000, 6)
    assert ledger.end(4000, 5, commit=True, version=2).error is CODES["48"]


def test_case_31_a_timeout_at_the_last_epoch_takes_one_fresh_id() -> None:
    ledger = Ledger(transaction(State.ONGOING, epoch=32766, version=2))
    ledger.time_out()
    ledger.complete()
    assert ledger.end(4000, 32766, commit=False, version=2) == Reply(ErrorCode.NONE, 9000, 0)
    assert ledger.ids_taken == 1


def test_a_tv1_producer_is_fenced_by_its_timeout() -> None:
    ledger = Ledger(transaction(State.ONGOING, epoch=5), cluster_version=0)
    ledger.time_out()
    ledger.complete()
    assert ledger.end(4000, 5, commit=True, version=0).error is CODES["90"]
    assert ledger.init(4000, 5).error is CODES["90"]
    assert ledger.txn.last_producer_epoch == -1


def test_kafka_17754_a_late_tv1_end_decides_the_next_transaction() -> None:
    """The known hazard of TV1: the request does not identify its transaction."""
    ledger = Ledger(transaction(State.ONGOING, epoch=5))
    ledger.end(4000, 5, commit=False, version=0)
    ledger.complete()
    ledger.add(4000, 5)
    assert ledger.end(4000, 5, commit=False, version=0).error is CODES["0"]
    assert ledger.txn.state == State.PREPARE_ABORT


def test_kafka_17754_a_late_tv2_end_is_fenced() -> None:
    ledger = Ledger(transaction(State.ONGOING, epoch=5))
    reply = ledger.end(4000, 5, commit=False, version=2)
    ledger.complete()
    ledger.add(4000, reply.producer_epoch, version=2)
    assert ledger.end(4000, 5, commit=False, version=2).error is CODES["90"]
    assert ledger.txn.state == State.ONGOING


def test_kafka_18227_a_client_may_switch_from_tv1_to_tv2_within_a_transaction() -> None:
    ledger = Ledger(transaction(State.ONGOING, epoch=5, version=0))
    assert ledger.end(4000, 5, commit=True, version=2) == Reply(ErrorCode.NONE, 4000, 6)
    assert ledger.txn.client_transaction_version == 2


def test_kafka_20310_the_next_producer_id_survives_in_the_log() -> None:
    ledger = Ledger(transaction(State.ONGOING, epoch=32766))
    ledger.end(4000, 32766, commit=True, version=2)
    moved = ledger.moved()
    moved.complete()
    assert moved.identity == (9000, 0)
    assert moved.end(4000, 32766, commit=True, version=2) == Reply(ErrorCode.NONE, 9000, 0)


def test_an_end_that_cannot_be_written_changes_nothing() -> None:
    ledger = Ledger(transaction(State.ONGOING, epoch=5))
    ledger.append_fails = 1
    ledger.end(4000, 5, commit=True, version=2)
    assert ledger.txn.state == State.ONGOING
    assert ledger.end(4000, 5, commit=True, version=2).error is CODES["0"]
