"""Every pair of the table of states."""

from __future__ import annotations

from itertools import product

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.coordinator.txn.end_table import END_TXN_TV1, END_TXN_TV2
from fencepost.coordinator.txn.states import TRANSITIONS, State
from fencepost.records.transaction_log import STATE_NAMES
from tests.coordinator.txn.ledger import T0_T1, Ledger, transaction

WRITTEN = list(State)[:6]

PREVIOUS = {
    # Kafka's table, which is the inverse: the states before each state.
    State.EMPTY: {State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT},
    State.ONGOING: {State.ONGOING, State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT},
    State.PREPARE_COMMIT: {State.ONGOING},
    State.PREPARE_ABORT: {
        State.ONGOING,
        State.PREPARE_EPOCH_FENCE,
        State.EMPTY,
        State.COMPLETE_COMMIT,
        State.COMPLETE_ABORT,
    },
    State.COMPLETE_COMMIT: {State.PREPARE_COMMIT},
    State.COMPLETE_ABORT: {State.PREPARE_ABORT},
    State.DEAD: {State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT},
    State.PREPARE_EPOCH_FENCE: {State.ONGOING},
}


def test_the_table_is_the_inverse_of_kafkas() -> None:
    for before, after in product(State, State):
        assert (after in TRANSITIONS[before]) == (before in PREVIOUS[after])


def test_every_state_has_kafkas_name_and_number() -> None:
    assert [STATE_NAMES[state] for state in State] == [
        "".join(part.capitalize() for part in state.name.split("_")) for state in State
    ]


@pytest.mark.parametrize("state", WRITTEN)
@pytest.mark.parametrize(
    "event", ["init", "init with identity", "add", "commit", "abort", "time out", "expire"]
)
def test_no_event_in_any_state_leaves_the_table(state: State, event: str) -> None:
    for version, epoch in product((0, 2), (4, 5, 6)):
        check_transition(state, event, version, epoch)


def check_transition(state: State, event: str, version: int, epoch: int) -> None:
    ledger = Ledger(transaction(state, epoch=5, version=version), cluster_version=version)
    if event == "init":
        ledger.init()
    elif event == "init with identity":
        ledger.init(4000, epoch)
    elif event == "add":
        ledger.add(4000, epoch, T0_T1, version=version)
    elif event == "time out":
        ledger.time_out()
    elif event == "expire":
        ledger.expire()
    else:
        ledger.end(4000, epoch, commit=event == "commit", version=version)
    if event == "expire":
        assert ("orders" in ledger.state.transactions) == (State.DEAD not in TRANSITIONS[state])
    elif len(ledger.log) > 1:
        assert ledger.txn.state in TRANSITIONS[state]
    else:
        assert ledger.txn.state == state


@pytest.mark.parametrize("state", WRITTEN)
def test_both_end_tables_have_every_cell_that_the_earlier_checks_allow(state: State) -> None:
    for commit in (True, False):
        assert (state, commit) in END_TXN_TV1
        lets_retry_through = state not in (State.EMPTY, State.ONGOING)
        lets_current_through = state not in (State.PREPARE_COMMIT, State.PREPARE_ABORT)
        assert ((state, commit, True) in END_TXN_TV2) == lets_retry_through
        assert ((state, commit, False) in END_TXN_TV2) == lets_current_through


def test_a_prepared_transaction_can_only_be_completed() -> None:
    for state in (State.PREPARE_COMMIT, State.PREPARE_ABORT):
        ledger = Ledger(transaction(state))
        assert ledger.init().error is ErrorCode.CONCURRENT_TRANSACTIONS
        assert ledger.add(4000, 0) is ErrorCode.CONCURRENT_TRANSACTIONS
        assert ledger.expire() == 0
        ledger.complete()
        assert ledger.txn.state in TRANSITIONS[state]
