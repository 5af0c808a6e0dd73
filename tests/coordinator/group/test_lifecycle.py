"""Every pair of the table of states."""

from __future__ import annotations

import itertools

import pytest

from fencepost.coordinator.group.group import Group
from fencepost.coordinator.group.lifecycle import TRANSITIONS, State

LEGAL = {
    (State.EMPTY, State.PREPARING_REBALANCE),
    (State.EMPTY, State.DEAD),
    (State.PREPARING_REBALANCE, State.COMPLETING_REBALANCE),
    (State.PREPARING_REBALANCE, State.EMPTY),
    (State.PREPARING_REBALANCE, State.DEAD),
    (State.COMPLETING_REBALANCE, State.STABLE),
    (State.COMPLETING_REBALANCE, State.PREPARING_REBALANCE),
    (State.COMPLETING_REBALANCE, State.DEAD),
    (State.STABLE, State.PREPARING_REBALANCE),
    (State.STABLE, State.DEAD),
    (State.DEAD, State.DEAD),
}


@pytest.mark.parametrize(("before", "after"), list(itertools.product(State, State)))
def test_a_group_makes_only_the_transitions_in_the_table(before: State, after: State) -> None:
    group = Group("g", 1)
    group.state = before
    if (before, after) in LEGAL:
        group.become(after, 2)
        assert (group.state, group.previous_state, group.state_timestamp_ms) == (after, before, 2)
    else:
        with pytest.raises(AssertionError):
            group.become(after, 2)
        assert group.state is before


def test_every_state_has_a_row() -> None:
    assert set(TRANSITIONS) == set(State)


def test_only_a_dead_group_has_no_transition() -> None:
    assert {state for state, after in TRANSITIONS.items() if after <= {state}} == {State.DEAD}
