"""Whom the demo kills, and when."""

from __future__ import annotations

import pytest

from fencepost.broker.settings.config import BrokerConfig
from fencepost_examples.demo.plan import (
    IN_TURN,
    IN_TURN_OF_SEVERAL,
    LAST_KILL,
    LONGEST_OUTAGE_MS,
    PAUSE_MS,
    Aim,
    plan_kills,
    plan_loader_kill,
)
from tests.demo.histories import SIDES


def test_a_seed_repeats_the_plan_and_each_process_is_killed_on_both_sides() -> None:
    plan = plan_kills(7, 6, IN_TURN, SIDES)
    assert plan == plan_kills(7, 6, IN_TURN, SIDES)
    assert plan != plan_kills(8, 6, IN_TURN, SIDES)
    for victim in IN_TURN:
        struck = [kill for kill in plan if kill.victim is victim]
        assert {kill.side for kill in struck} == set(SIDES)
    shares = [kill.share for kill in plan]
    assert shares == sorted(shares)
    assert all(0 < share <= LAST_KILL for share in shares)


def test_of_several_brokers_a_coordinator_and_a_leader_are_killed_paused_and_rolled() -> None:
    plan = plan_kills(7, 10, IN_TURN_OF_SEVERAL, SIDES)
    for victim in IN_TURN_OF_SEVERAL:
        struck = [kill for kill in plan if kill.victim is victim]
        assert {kill.side for kill in struck} == set(SIDES)
        assert [kill.aim for kill in struck] == [Aim.COORDINATOR, Aim.LEADER]
    longest = PAUSE_MS + LONGEST_OUTAGE_MS
    assert longest < BrokerConfig({"node.id": "1"}).broker_session_timeout_ms


def test_a_seed_repeats_the_loader_kill_and_any_load_can_be_hit() -> None:
    assert plan_loader_kill(7, 5) == plan_loader_kill(7, 5)
    assert {plan_loader_kill(seed, 5).load for seed in range(100)} == set(range(5))


@pytest.mark.parametrize("batch_share", [0.3, 0.5, 1.0])
def test_in_a_short_run_kills_come_before_the_last_two_batches(batch_share: float) -> None:
    plan = plan_kills(7, 3, IN_TURN, SIDES, batch_share)
    assert all(kill.share <= max(0, 1 - 2 * batch_share) for kill in plan)
