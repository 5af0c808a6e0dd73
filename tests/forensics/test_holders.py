"""Goal: an open producer is judged by what its coordinator says, and never by absence alone."""

from __future__ import annotations

import pytest

from fencepost.base.ids import TopicPartition
from fencepost.client.survey.asking import Missing
from fencepost.client.survey.partitions import PartitionEnds
from fencepost.forensics.holders import (
    Look,
    Standing,
    Transaction,
    held_by_live,
    judge_holder,
    merge,
    unexplained,
)
from fencepost.forensics.pins import Surroundings, judge_pins
from fencepost.forensics.visibility import Visibility
from tests.forensics.facts import ORDERS, SEES_ALL, SEES_SOME, look, producer, transaction, view

OTHER = TopicPartition("other", 3)


@pytest.mark.parametrize(
    ("told", "visibility", "standing"),
    [
        (transaction(view("Ongoing")), None, Standing.LIVE),
        (transaction(view("PrepareCommit")), None, Standing.ENDING),
        (transaction(view("PrepareAbort")), None, Standing.ENDING),
        (transaction(view("PrepareEpochFence")), None, Standing.ENDING),
        (transaction(view("Ongoing", OTHER)), None, Standing.HANGING),
        (transaction(view("PrepareCommit", OTHER)), None, Standing.HANGING),
        (transaction(view("CompleteCommit")), None, Standing.HANGING),
        (transaction(view("CompleteAbort")), None, Standing.HANGING),
        (transaction(view("Empty")), None, Standing.HANGING),
        (transaction(view("Ongoing", producer_id=8)), None, Standing.UNSEEN),
        (transaction(Missing("TRANSACTIONAL_ID_AUTHORIZATION_FAILED", 53)), None, Standing.UNSEEN),
        (None, SEES_ALL, Standing.HANGING),
        (None, SEES_SOME, Standing.UNSEEN),
        (None, None, Standing.UNSEEN),
    ],
)
def test_the_standing_of_an_open_producer(
    told: Transaction | None, visibility: Visibility | None, standing: Standing
) -> None:
    assert judge_holder(ORDERS, producer(), told, visibility).standing is standing


def test_a_lag_is_unexplained_only_if_the_producers_are_known_and_none_is_open_there() -> None:
    assert unexplained(look([])) == [ORDERS]
    assert unexplained(look([producer(15)])) == [ORDERS]
    assert unexplained(look([producer(10)])) == []
    assert unexplained(look(Missing("TOPIC_AUTHORIZATION_FAILED", 29))) == []


# The second look.

PENDING = {7: transaction(view("PrepareCommit"))}
OPEN = {7: transaction(view("Ongoing"))}
ENDS = PartitionEnds(0, 20, 10)
MOVED = PartitionEnds(0, 24, 14)


def confirmed(first: Look, second: Look, last: PartitionEnds | Missing = ENDS) -> Look:
    merge(first, second, {ORDERS: last})
    return first


def test_what_two_looks_agree_on_is_kept() -> None:
    for told in ({}, PENDING):
        found = confirmed(look([producer()], told), look([producer()], told))
        assert [each.standing for each in found.holders] == [
            Standing.ENDING if told else Standing.HANGING
        ]
        assert found.moving == set()


def test_a_transaction_that_ended_between_the_looks_is_dropped() -> None:
    ended = look([producer(-1)], ends=PartitionEnds(0, 20, 20))
    found = confirmed(look([producer()]), ended)
    assert found.holders == []
    assert judge_pins(found, Surroundings({}, {})).found == []


@pytest.mark.parametrize(
    "second",
    [
        look([producer(14)], ends=MOVED),
        look([producer(10, producer_id=8)]),
        look([producer()], PENDING),
    ],
    ids=["at another offset", "of another producer", "with another standing"],
)
def test_what_appears_in_the_second_look_only_is_on_its_way(second: Look) -> None:
    found = confirmed(look([producer()]), second, second.ends[ORDERS])
    assert found.holders == []
    assert found.moving == {ORDERS}
    assert judge_pins(found, Surroundings({}, {})).found == []


def test_a_transaction_that_begins_to_end_during_the_look_is_not_stuck() -> None:
    found = confirmed(look([producer()], OPEN), look([producer()], PENDING))
    assert (found.holders, found.moving) == ([], {ORDERS})


def test_a_partition_without_a_holder_must_stand_still_in_three_looks() -> None:
    nobody = [producer(-1)]
    stands = confirmed(look(nobody), look(nobody))
    assert [pin.kind for pin in judge_pins(stands, Surroundings({}, {})).found] == ["no holder"]
    moves = confirmed(look(nobody), look(nobody), MOVED)
    assert judge_pins(moves, Surroundings({}, {})).found == []


@pytest.mark.parametrize("is_hidden_first", [True, False])
def test_a_coordinator_that_answered_only_once_leaves_it_open_what_it_is(
    is_hidden_first: bool,
) -> None:
    told, hidden = look([producer()]), look([producer()], visibility=SEES_SOME)
    found = confirmed(hidden, told) if is_hidden_first else confirmed(told, hidden)
    assert [each.standing for each in found.holders] == [Standing.UNSEEN]


def test_a_live_holder_in_the_second_look_is_shown() -> None:
    second = look([producer()], OPEN)
    assert held_by_live(second) == {ORDERS}
    first = look([producer(-1)])
    merge(first, second, {})
    assert [each.standing for each in first.holders] == [Standing.LIVE]
