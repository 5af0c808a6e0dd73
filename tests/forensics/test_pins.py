"""Goal: a pin tells who holds it, until when, what comes next, and what to do."""

from __future__ import annotations

import pytest

from fencepost.client.admin import ActiveProducer
from fencepost.client.survey.asking import Missing
from fencepost.client.survey.partitions import PartitionEnds
from fencepost.forensics.figures import Certainty
from fencepost.forensics.holders import Look
from fencepost.forensics.pins import Pin, Surroundings, judge_pins
from tests.forensics.facts import NOW_MS, ORDERS, SEES_SOME, look, producer, transaction, view

AROUND = Surroundings({"orders": False}, {1: 4_000})


NOTHING_KNOWN = Surroundings({}, {})


def the_pin(seen: Look, around: Surroundings = AROUND) -> Pin:
    (pin,) = judge_pins(seen, around).found
    return pin


def test_an_open_transaction_is_shown_with_the_interval_in_which_its_timeout_ends_it() -> None:
    pin = the_pin(look([producer(10)], {7: transaction(view())}))
    assert (pin.kind, pin.hidden_offsets) == ("open", 10)
    assert pin.pinned_for_ms.value == 5_000
    assert pin.pinned_for_ms.certainty is Certainty.ESTIMATED
    assert (pin.ends_in_at_least_ms.value, pin.ends_in_at_most_ms.value) == (55_000, 59_000)
    assert pin.started_at_ms.value == NOW_MS - 5_000
    assert pin.started_at_ms.clock == "coordinator"
    assert str(pin.command) == "fencepost txn fence refunds"


def test_kafkas_default_period_is_assumed_and_said_if_the_coordinator_does_not_tell() -> None:
    pin = the_pin(look([producer(10)], {7: transaction(view())}), NOTHING_KNOWN)
    assert pin.ends_in_at_most_ms.value == 65_000
    assert "10000 ms, assumed" in pin.ends_in_at_most_ms.source


def test_an_overdue_transaction_ends_within_one_period() -> None:
    late = view(start_ms=NOW_MS - 90_000)
    pin = the_pin(look([producer(10)], {7: transaction(late)}))
    assert (pin.ends_in_at_least_ms.value, pin.ends_in_at_most_ms.value) == (0, 4_000)


def test_a_clock_ahead_of_ours_gives_no_negative_age() -> None:
    pin = the_pin(look([producer(10)], {7: transaction(view(start_ms=NOW_MS + 3_000))}))
    assert pin.pinned_for_ms.value == 0


def test_the_last_stable_offset_moves_to_the_next_open_transaction() -> None:
    both = [producer(10), producer(14, producer_id=8), producer(17, producer_id=9)]
    pin = the_pin(look(both, {7: transaction(view())}))
    assert pin.next_last_stable_offset.value == 14
    assert pin.next_last_stable_offset.certainty is Certainty.EXACT
    assert pin.open_producers == 3


def test_without_another_one_it_moves_to_the_high_watermark_or_beyond() -> None:
    pin = the_pin(look([producer(10)], {7: transaction(view())}))
    assert pin.next_last_stable_offset.value == 20
    assert pin.next_last_stable_offset.certainty is Certainty.ESTIMATED


@pytest.mark.parametrize("state", ["PrepareCommit", "PrepareAbort"])
def test_a_marker_that_cannot_be_delivered_is_not_offered_to_be_fenced(state: str) -> None:
    pin = the_pin(look([producer(10)], {7: transaction(view(state))}))
    assert pin.kind == "ending"
    assert pin.ends_in_at_most_ms.certainty is Certainty.UNKNOWN
    assert str(pin.command) == "fencepost txn describe refunds"
    assert "broker 1" in pin.advice


def test_a_hanging_transaction_is_to_be_aborted_on_its_partition() -> None:
    pin = the_pin(look([producer(10)]))
    assert pin.kind == "hanging"
    assert str(pin.command) == "fencepost txn abort orders-0 --producer-id 7 --start-offset 10"
    assert pin.ends_in_at_most_ms.certainty is Certainty.UNKNOWN
    assert pin.pinned_for_ms.value == 2_000
    assert "last write" in pin.pinned_for_ms.source


def test_a_hidden_holder_is_not_called_hanging() -> None:
    pin = the_pin(look([producer(10)], visibility=SEES_SOME))
    assert (pin.kind, pin.command) == ("cannot tell", None)


def test_a_lag_without_an_open_producer_names_the_replicas_that_are_behind() -> None:
    pin = the_pin(look([producer(-1)], isr=(1,), replicas=(1, 2)))
    assert (pin.kind, pin.holder) == ("no holder", None)
    assert "[1] of [1, 2]" in pin.why
    assert pin.next_last_stable_offset.certainty is Certainty.UNKNOWN


def test_producers_that_may_not_be_read_make_the_holder_unknown() -> None:
    pin = the_pin(look(Missing("TOPIC_AUTHORIZATION_FAILED", 29)))
    assert pin.kind == "cannot tell"
    assert "TOPIC_AUTHORIZATION_FAILED" in pin.why
    assert pin.pinned_for_ms.certainty is Certainty.UNKNOWN


@pytest.mark.parametrize(
    ("compacted", "waits"), [({"orders": True}, True), ({"orders": False}, False), ({}, None)]
)
def test_compaction_waits_only_where_there_is_compaction(
    compacted: dict[str, bool], waits: bool | None
) -> None:
    around = Surroundings(compacted, {})
    assert the_pin(look([producer(10)]), around).compaction_waits.value is waits


def test_a_partition_that_does_not_lag_is_no_pin_and_one_that_cannot_be_read_is_said() -> None:
    opened: list[ActiveProducer] = []
    assert judge_pins(look(opened, ends=PartitionEnds(0, 20, 20)), AROUND).found == []
    found = judge_pins(look(opened, ends=Missing("no leader", 5)), AROUND)
    assert (found.found, [each.partition for each in found.unread]) == ([], [ORDERS])
