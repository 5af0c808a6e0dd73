"""What a trace tells about a producer that hung: the product of where it hung and how it ended.

Each case is a producer with a timeout of 30 s that waits for 47 s, or for 12 s, in one of three
places: before its last request (no request at all), in the call (the request has no reply), or in
the client (it fails and is tried again). Then the request is answered with a fencing error, still
waits when the trace ends, or loses its connection.
"""

from __future__ import annotations

from itertools import product
from typing import Any, Final

import pytest

from fencepost.forensics.figures import Certainty
from fencepost.forensics.tap.swimlane import show
from fencepost.forensics.tap.swimlane.conclusion import (
    CAUSES,
    OUTCOMES,
    TIMEOUT,
    Conclusion,
    Fact,
    Outcome,
    conclude,
)
from fencepost.forensics.tap.swimlane.conclusion_words import HEADLINES, WAITS, sentences
from fencepost.forensics.tap.swimlane.story import Span, read_story
from fencepost.forensics.tap.swimlane.waits import Place
from fencepost.records.trace import TAP_STOPPED
from tests.forensics.tap.traces import ID, START_US, Script, written

ANSWERED, NEVER, LOST = "answered", "never answered", "connection lost"
ENDS: Final = {ANSWERED: Outcome.FENCED, NEVER: Outcome.WAITING, LOST: Outcome.LOST}
TIMEOUT_US: Final = 30_000_000
PAST, IN_TIME = 47.0, 12.0
RETRY_SECONDS: Final = 0.5
PAUSE_US: Final = 200_000
"""What the requests of a script take besides its waits, at most."""

IDENTITY: Final = {"transactional_id": ID, "producer_id": 7, "producer_epoch": 0}
REQUESTS: Final[dict[str, tuple[dict[str, Any], dict[str, int], str]]] = {
    "EndTxn": ({**IDENTITY, "committed": True}, {}, "COORDINATOR_LOAD_IN_PROGRESS"),
    "AddOffsetsToTxn": ({**IDENTITY, "group_id": "g"}, {}, "NOT_COORDINATOR"),
    "TxnOffsetCommit": (
        {**IDENTITY, "group_id": "g"},
        {"connection": 2, "broker": 2},
        "COORDINATOR_NOT_AVAILABLE",
    ),
    "Produce": (written(0, 0, 5), {"connection": 2, "broker": 2}, "NOT_LEADER_OR_FOLLOWER"),
}
"""Requests inside a transaction: body, where they go, and an error that clients retry."""


def opened(protocol: int) -> Script:
    """A producer with an open transaction: AddPartitionsToTxn opens it, or the first write."""
    script = Script()
    script.init(0)
    if protocol == 1:
        topics = [{"name": "payments", "partitions": [0]}]
        body = {"transactions": [{**IDENTITY, "topics": topics}]}
        script.call("AddPartitionsToTxn", body, {})
    script.call("Produce", written(0, 0), {}, connection=2, broker=2)
    return script


def hung(place: Place, end: str, protocol: int, api: str, seconds: float, fails: str) -> Script:
    """One case."""
    script = opened(protocol)
    body, where, error = REQUESTS[api]
    connection = where.get("connection", 1)
    if place is Place.IN_CLIENT:
        for number in range(int(seconds / RETRY_SECONDS)):
            asked = script.ask(api, body, **(where | {"connection": connection}))
            if fails == "error":
                script.answer(asked, {}, error)
            else:
                script.close(connection)
                # Of the same client, by its identity.
                connection = 10 * (number + 2) + connection % 10
            script.wait(RETRY_SECONDS)
    if place is Place.BEFORE_CALL:
        script.wait(seconds)
    asked = script.ask(api, body, **(where | {"connection": connection}))
    if place is Place.IN_CALL:
        script.wait(seconds)
    if end == ANSWERED:
        script.answer(asked, {}, "INVALID_PRODUCER_EPOCH")
    elif end == LOST:
        script.close(connection)
    else:
        script.tick()
    return script


CASES = [
    *product(Place, ENDS, (1, 2), REQUESTS, (PAST, IN_TIME), ["error"]),
    *product([Place.IN_CLIENT], ENDS, (1, 2), REQUESTS, (PAST, IN_TIME), ["lost"]),
]


def concluded(script: Script) -> Conclusion:
    (found,) = conclude(read_story(script.lines, ID))
    return found


def near(time_us: int, wanted_us: float) -> bool:
    return abs(time_us - wanted_us) <= PAUSE_US


@pytest.mark.parametrize(
    ("place", "end", "protocol", "api", "seconds", "fails"),
    CASES,
    ids=lambda value: getattr(value, "value", str(value)),
)
def test_every_way_to_hang_is_told_from_the_others(
    place: Place, end: str, protocol: int, api: str, seconds: float, fails: str
) -> None:
    found = concluded(hung(place, end, protocol, api, seconds, fails))
    is_late = seconds == PAST

    # What was in flight.
    assert found.outcome is ENDS[end]
    assert found.call is not None
    assert (found.call.api, found.call.broker) == (
        api,
        f"broker {REQUESTS[api][1].get('broker', 1)}",
    )
    assert found.error == ("INVALID_PRODUCER_EPOCH" if end == ANSWERED else None)

    # Where the time went.
    assert found.wait is not None
    assert found.wait.place is place
    assert near(found.wait.spent_us, seconds * 1_000_000)
    if place is not Place.BEFORE_CALL:
        assert {call.api for call in found.wait.attempts} == {api}

    # How old the transaction was, and who had it.
    transaction = found.transaction
    assert transaction is not None
    assert transaction.opened_by is not None
    assert transaction.opened_by.api == ("AddPartitionsToTxn" if protocol == 1 else "Produce")
    assert transaction.timeout_ms == 30_000
    assert transaction.coordinator == "broker 1"
    assert found.age_us is not None
    assert near(found.age_us, seconds * 1_000_000)

    # What ended it.
    by = (TIMEOUT, Certainty.ESTIMATED) if is_late else (None, Certainty.UNKNOWN)
    assert (found.by.value, found.by.certainty) == by
    assert found.decided_us == (transaction.since_us + TIMEOUT_US if is_late else None)
    in_flight = [api] if is_late and place is Place.IN_CALL else []
    assert [call.api for call in found.in_flight_then] == in_flight
    assert found.in_flight == []


@pytest.mark.parametrize(("place", "end"), [*product(Place, ENDS)], ids=str)
def test_the_sentences_say_what_since_when_how_old_and_where(place: Place, end: str) -> None:
    script = hung(place, end, 1, "EndTxn", PAST, "error")
    story = read_story(script.lines, ID)
    said = "\n".join(sentences(ID, conclude(story)))
    headline = {
        ANSWERED: "EndTxn got INVALID_PRODUCER_EPOCH from broker 1 at 08:00:47.",
        NEVER: "refunds-1 was not fenced in this trace. When it ends, at 08:00:47.",
        LOST: "lost its connection after ",
    }[end]
    assert headline in said
    waited = {
        Place.BEFORE_CALL: "no request after the reply to Produce at 08:00:00.003000, before "
        "EndTxn to broker 1.",
        Place.IN_CALL: "EndTxn to broker 1, since 08:00:00.003100 (7/0 commit).",
        Place.IN_CLIENT: "between 95 attempts of EndTxn to broker 1 since 08:00:00.003100, of "
        "which the last failed one got COORDINATOR_LOAD_IN_PROGRESS.",
    }[place]
    assert f" {place.value}: {waited}" in said
    assert "s old, since AddPartitionsToTxn at 08:00:00.001100; its timeout is 30 s; " in said
    assert "its coordinator is broker 1; ~" in said
    assert f"by its transaction timeout (see `fencepost txn why {ID}`)." in said
    then = "EndTxn to broker 1 for 30.0 s, since 08:00:00.003100 (7/0 commit)"
    then = then if place is Place.IN_CALL else "nothing"
    assert f"In flight when its timeout passed, at 08:00:30.001100: {then}." in said
    drawn = "\n".join(show.drawing(story, 120))
    assert ("the trace ends" in drawn) == (end != ANSWERED)
    assert ("EndTxn: no reply" in drawn) == (end == NEVER)
    assert ("connection lost" in drawn) == (end == LOST)


def test_the_tables_are_complete() -> None:
    assert set(HEADLINES) == set(Outcome)
    assert set(WAITS) == set(Place)
    assert len(OUTCOMES) == len(Outcome) - 1, "a fence is looked for first"
    used = set()
    for outcome, overdue, may_be in product(Outcome, (True, False, None), (True, False)):
        for newer in (None, concluded(opened(2)).transaction.opened_by):  # type: ignore[union-attr]
            fact = Fact(outcome, newer, overdue, may_be)
            used.add(next(number for number, rule in enumerate(CAUSES) if rule.fits(fact)))
    assert used == set(range(len(CAUSES)))


# -- other stories ---------------------------------------------------------------------------------


def test_the_reply_after_the_timeout_names_the_request_that_hung() -> None:
    """EndTxn waits for 12.3 s; the timeout is 5 s, and no pause between requests is long."""
    script = Script()
    asked = {"transactional_id": ID, "transaction_timeout_ms": 5_000}
    script.call("InitProducerId", asked, {"producer_id": 7, "producer_epoch": 0})
    script.call("Produce", written(0, 0), {}, connection=2, broker=2)
    script.wait(0.544)
    number = script.ask("EndTxn", {**IDENTITY, "committed": True})
    script.wait(12.3)
    script.answer(number, {}, "PRODUCER_FENCED")
    assert "\n".join(sentences(ID, [concluded(script)])) == (
        "EndTxn got PRODUCER_FENCED from broker 1 at 08:00:12.847000 UTC, 12.3 s after it was "
        "sent.\n"
        "Longest wait: 12.3 s in the call: EndTxn to broker 1, since 08:00:00.546100 "
        "(7/0 commit).\n"
        "Its transaction was 12.8 s old, since Produce at 08:00:00.001100; its timeout is 5 s; its "
        "coordinator is broker 1; ~fenced by its transaction timeout (see `fencepost txn why "
        "refunds-1`).\n"
        "In flight when its timeout passed, at 08:00:05.001100: EndTxn to broker 1 for 4.5 s, "
        "since 08:00:00.546100 (7/0 commit).\n"
        "In flight when the error came: nothing else."
    )


def test_a_producer_that_only_wrote_for_too_long_did_not_hang() -> None:
    script = opened(2)
    for number in range(400):
        script.wait(0.1)
        script.call("Produce", written(0, 0, number), {}, connection=2, broker=2)
    script.end(0, "INVALID_PRODUCER_EPOCH")
    found = concluded(script)
    assert found.by.value == TIMEOUT
    assert found.wait is not None
    assert near(found.wait.spent_us, 100_000)


def test_an_idle_producer_without_a_transaction_is_not_fenced_by_a_timeout() -> None:
    script = opened(2)
    script.end(0)
    script.wait(PAST)
    script.call("Produce", written(0, 0), {}, "INVALID_PRODUCER_EPOCH", connection=2, broker=2)
    found = concluded(script)
    assert (found.outcome, found.by.value) == (Outcome.FENCED, None)


def test_a_newer_instance_is_the_cause_even_if_the_timeout_has_passed_too() -> None:
    script = opened(2)
    number = script.ask("EndTxn", {**IDENTITY, "committed": True})
    script.wait(PAST)
    script.init(1, connection=11)
    script.answer(number, {}, "PRODUCER_FENCED")
    found = concluded(script)
    assert found.by.value == "a newer instance, client id 'worker-1' at 127.0.0.1:50011"
    assert [call.api for call in found.in_flight_then] == ["EndTxn"]
    said = "\n".join(sentences(ID, [found]))
    assert (
        "In flight when the newer instance took over, at 08:00:47.003100: EndTxn to broker" in said
    )


def test_after_a_fence_the_newer_instance_that_hangs_is_told_too() -> None:
    script = opened(2)
    script.init(1, connection=11)
    script.call("Produce", written(0, 0, 5), {}, "INVALID_PRODUCER_EPOCH", connection=2, broker=2)
    script.call("Produce", written(0, 1), {}, connection=12, broker=2)
    script.ask("EndTxn", {**IDENTITY, "producer_epoch": 1, "committed": True}, connection=11)
    script.wait(PAST)
    script.tick()
    first, second = conclude(read_story(script.lines, ID))
    assert (first.outcome, first.instance) == (Outcome.FENCED, 1)
    assert (second.outcome, second.instance) == (Outcome.WAITING, 2)
    assert second.call is not None
    assert (second.call.api, second.by.value) == ("EndTxn", TIMEOUT)


def test_a_write_that_hangs_is_not_taken_for_one_that_was_tried_again() -> None:
    """Writes to other brokers go on."""
    script = opened(2)
    hangs = script.ask("Produce", written(0, 0, 5), connection=2, broker=2)
    for number in range(20):
        script.wait(2)
        script.call("Produce", written(1, 0, number), {}, connection=3, broker=3)
    found = concluded(script)
    assert found.outcome is Outcome.WAITING
    assert found.call is not None
    assert found.call.request["correlation_id"] == hangs
    assert found.wait is not None
    assert (found.wait.place, len(found.wait.attempts)) == (Place.IN_CALL, 1)
    assert near(found.wait.spent_us, 40_000_000)


def test_a_request_that_was_tried_again_elsewhere_is_not_waited_for() -> None:
    """A broker's trace does not tell that the client closed the first connection."""
    script = opened(2)
    script.ask("EndTxn", {**IDENTITY, "committed": True})
    script.wait(5)
    script.call("EndTxn", {**IDENTITY, "committed": True}, {}, connection=21)
    for line in script.lines:
        line.pop("address", None)
    assert concluded(script).outcome is Outcome.ENDED


def test_a_request_that_was_lost_and_then_succeeded_is_no_trouble() -> None:
    script = opened(2)
    script.ask("EndTxn", {**IDENTITY, "committed": True})
    script.close(1)
    script.call("EndTxn", {**IDENTITY, "committed": True}, {}, connection=21)
    assert sentences(ID, [concluded(script)]) == ["refunds-1 was not fenced in this trace."]


def test_a_lookup_of_the_coordinator_between_attempts_belongs_to_them() -> None:
    script = opened(2)
    body = {**IDENTITY, "committed": True}
    find = {"key_type": 1, "coordinator_keys": [ID]}
    for _ in range(40):
        script.call("EndTxn", body, {}, "NOT_COORDINATOR")
        script.wait(0.5)
        script.call("FindCoordinator", find, {}, connection=5, broker=3)
        script.wait(0.5)
    script.end(0, "INVALID_PRODUCER_EPOCH")
    found = concluded(script)
    assert found.wait is not None
    assert found.wait.place is Place.IN_CLIENT
    assert near(found.wait.spent_us, 40_000_000)


def test_a_client_that_gives_up_after_an_error_hangs_in_the_client() -> None:
    script = opened(2)
    script.ask("EndTxn", {**IDENTITY, "committed": True})
    script.close(1, "the client has closed it")
    script.wait(PAST)
    script.tick()
    found = concluded(script)
    assert found.outcome is Outcome.LOST
    assert found.wait is not None
    assert found.wait.place is Place.IN_CLIENT
    said = "\n".join(sentences(ID, [found]))
    assert "(the client has closed it): whether it took effect is not in the trace." in said
    assert "no request after EndTxn to broker 1 lost its connection" in said


def test_a_silence_that_has_not_ended_is_told() -> None:
    script = opened(1)
    script.wait(PAST)
    script.tick()
    found = concluded(script)
    assert (found.outcome, found.by.value) == (Outcome.OPEN, TIMEOUT)
    said = "\n".join(sentences(ID, [found]))
    assert "with its transaction open and nothing in flight." in said
    assert "no request after the reply to Produce at 08:00:00.003000, to the end." in said


def test_a_tap_that_is_stopped_loses_no_request() -> None:
    script = opened(2)
    script.ask("EndTxn", {**IDENTITY, "committed": True})
    script.wait(12)
    script.close(1, TAP_STOPPED)
    assert concluded(script).outcome is Outcome.WAITING


def test_a_broker_that_restarts_loses_its_requests() -> None:
    script = opened(2)
    script.ask("EndTxn", {**IDENTITY, "committed": True})
    for line in script.lines:
        line.pop("address", None)
    script.wait(3)
    restarted = {"format": "fencepost-tap", "version": 1, "kind": "start", "broker": 1}
    script.lines.append({**restarted, "time_us": script.now_us})
    found = concluded(script)
    assert found.outcome is Outcome.LOST
    assert "(broker 1 was restarted)" in sentences(ID, [found])[0]


def test_a_time_in_the_middle_shows_what_was_in_flight_then() -> None:
    story = read_story(hung(Place.IN_CALL, ANSWERED, 1, "EndTxn", PAST, "error").lines, ID)
    story.span = Span(None, START_US + 5_000_000)
    fenced = conclude(story)[0]
    assert fenced.outcome is Outcome.FENCED, "its request is in that time"
    waits = read_story(hung(Place.IN_CALL, NEVER, 1, "EndTxn", PAST, "error").lines, ID)
    waits.span = Span(None, START_US + 5_000_000)
    (found,) = conclude(waits)
    assert (found.outcome, found.at_us) == (Outcome.WAITING, START_US + 5_000_000)
    assert found.by.value is None, "the timeout had not passed then"


def test_a_write_without_acknowledgement_is_not_waited_for() -> None:
    script = opened(2)
    script.ask("Produce", {**written(0, 0, 5), "acks": 0}, connection=2, broker=2)
    script.end(0)
    assert concluded(script).outcome is Outcome.ENDED


def test_a_producer_that_hangs_in_its_first_call_has_no_transaction() -> None:
    script = Script()
    script.ask("InitProducerId", {"transactional_id": ID, "transaction_timeout_ms": 30_000})
    script.wait(12.3)
    script.tick()
    found = concluded(script)
    assert (found.outcome, found.by.value) == (Outcome.WAITING, None)
    assert found.wait is not None
    assert found.wait.place is Place.IN_CALL
    assert "What opened its transaction is not in the trace" in sentences(ID, [found])[2]


def test_lines_without_a_time_or_a_body_do_not_stop_it() -> None:
    script = opened(2)
    script.lines.append({"kind": "lost", "lines": 5, "reason": "standard output"})
    script.lines.append({"time_us": script.now_us, "kind": "connection", "event": "closed"})
    assert concluded(script).outcome is Outcome.OPEN
