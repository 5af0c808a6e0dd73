"""The verdict on every kind of history. Times are the coordinator's, in milliseconds."""

from __future__ import annotations

import pytest

from fencepost.forensics.history.incidents import SOON_MS, find_incidents, signs
from fencepost.forensics.history.rules import RULES, Cause, Certainty
from fencepost.forensics.history.state_changes import StateChange
from fencepost.forensics.history.why import Verdict, judge
from tests.forensics.changes import PRODUCER, change, metadata, tombstone

PROVEN, LIKELY, CANNOT_TELL = Certainty.PROVEN, Certainty.LIKELY, Certainty.CANNOT_TELL
TIMEOUT = 60_000


def opened(tv: int, epoch: int = 0) -> list[StateChange]:
    """A new id with an open transaction since 1,000."""
    return [
        change(0, metadata("Empty", 900, epoch, tv=0)),
        change(1, metadata("Ongoing", 1_000, epoch, start_ms=1_000, tv=tv)),
    ]


def ended(
    at_ms: int, epoch: int, *, commit: bool = False, coordinator_epoch: int = 0, tv: int = 2
) -> list[StateChange]:
    outcome = "Commit" if commit else "Abort"
    return [
        change(
            2,
            metadata(f"Prepare{outcome}", at_ms, epoch, start_ms=1_000, tv=tv),
            coordinator_epoch,
        ),
        change(
            3,
            metadata(f"Complete{outcome}", at_ms + 5, epoch, start_ms=1_000, tv=tv),
            coordinator_epoch,
        ),
    ]


def initialised(at_ms: int, epoch: int, *, timeout_ms: int = TIMEOUT) -> list[StateChange]:
    return [change(4, metadata("Empty", at_ms, epoch, timeout_ms=timeout_ms))]


def used(at_ms: int, epoch: int) -> list[StateChange]:
    return [change(5, metadata("Ongoing", at_ms, epoch, start_ms=at_ms))]


IN_TIME = 5_000
LATE = 1_000 + TIMEOUT + 4_000

CASES: dict[str, tuple[list[StateChange], Cause, Certainty]] = {
    "a TV1 producer's own abort keeps its epoch": (
        opened(1) + ended(IN_TIME, 0, tv=0),
        Cause.CLIENT_ABORT,
        PROVEN,
    ),
    "a TV1 producer's own abort is its own after the timeout, too": (
        opened(1) + ended(LATE, 0, tv=0),
        Cause.CLIENT_ABORT,
        PROVEN,
    ),
    "a TV1 transaction past its timeout with a raised epoch": (
        opened(1) + ended(LATE, 1),
        Cause.TIMEOUT,
        PROVEN,
    ),
    "a timeout after which the producer restarts much later": (
        opened(1) + ended(LATE, 1) + initialised(LATE + 30_000, 2) + used(LATE + 31_000, 2),
        Cause.TIMEOUT,
        PROVEN,
    ),
    "a TV2 transaction past its timeout": (opened(2) + ended(LATE, 1), Cause.TIMEOUT, LIKELY),
    "a TV2 transaction past its timeout whose producer goes on": (
        opened(2) + ended(LATE, 1) + used(LATE + 100, 1),
        Cause.UNKNOWN,
        CANNOT_TELL,
    ),
    "a newer instance takes a TV1 transaction and uses the id": (
        opened(1) + ended(IN_TIME, 1) + initialised(IN_TIME + 40, 2) + used(IN_TIME + 60, 2),
        Cause.NEWER_INSTANCE,
        PROVEN,
    ),
    "a newer instance takes a TV1 transaction": (
        opened(1) + ended(IN_TIME, 1) + initialised(IN_TIME + 40, 2),
        Cause.NEWER_INSTANCE,
        LIKELY,
    ),
    "a newer instance takes a TV2 transaction and uses the id": (
        opened(2) + ended(IN_TIME, 1) + initialised(IN_TIME + 40, 2) + used(IN_TIME + 60, 2),
        Cause.NEWER_INSTANCE,
        LIKELY,
    ),
    "a newer instance takes a TV2 transaction": (
        opened(2) + ended(IN_TIME, 1) + initialised(IN_TIME + 40, 2),
        Cause.NEWER_INSTANCE,
        LIKELY,
    ),
    "a newer instance comes when the timeout has passed": (
        opened(1) + ended(LATE, 1) + initialised(LATE + 40, 2),
        Cause.NEWER_INSTANCE,
        LIKELY,
    ),
    "Java's Admin.fenceProducers": (
        opened(2) + ended(IN_TIME, 1) + initialised(IN_TIME + 40, 2, timeout_ms=30_000),
        Cause.ADMINISTRATOR,
        LIKELY,
    ),
    "a newer instance with the administrator's timeout that uses the id": (
        opened(1)
        + ended(IN_TIME, 1)
        + initialised(IN_TIME + 40, 2, timeout_ms=30_000)
        + used(IN_TIME + 60, 2),
        Cause.NEWER_INSTANCE,
        PROVEN,
    ),
    "a TV2 producer aborts and goes on": (
        opened(2) + ended(IN_TIME, 1) + used(IN_TIME + 10, 1),
        Cause.CLIENT_ABORT,
        PROVEN,
    ),
    "a TV2 producer aborts and is not seen again": (
        opened(2) + ended(IN_TIME, 1),
        Cause.CLIENT_ABORT,
        LIKELY,
    ),
    "a newer instance long after a TV2 producer's own abort": (
        opened(2) + ended(IN_TIME, 1) + initialised(IN_TIME + 50_000, 2),
        Cause.NEWER_INSTANCE,
        LIKELY,
    ),
    "a new coordinator aborts what it finds open": (
        opened(1) + ended(IN_TIME, 1, coordinator_epoch=1),
        Cause.COORDINATOR_MOVED,
        LIKELY,
    ),
    "a TV2 abort by another coordinator than the one that opened the transaction": (
        opened(2) + ended(IN_TIME, 1, coordinator_epoch=1),
        Cause.CLIENT_ABORT,
        LIKELY,
    ),
    "somebody raises the epoch of a TV1 transaction and does not come back": (
        opened(1) + ended(IN_TIME, 1),
        Cause.NEWER_INSTANCE,
        LIKELY,
    ),
    "a newer instance between transactions": (
        opened(1) + ended(IN_TIME, 0, commit=True, tv=0) + initialised(IN_TIME + 9_000, 1),
        Cause.NEWER_INSTANCE,
        LIKELY,
    ),
    "a newer instance between transactions that uses the id": (
        opened(1)
        + ended(IN_TIME, 0, commit=True, tv=0)
        + initialised(IN_TIME + 9_000, 1)
        + used(IN_TIME + 9_100, 1),
        Cause.NEWER_INSTANCE,
        LIKELY,
    ),
    "an administrator between transactions": (
        opened(1)
        + ended(IN_TIME, 0, commit=True, tv=0)
        + initialised(IN_TIME + 9_000, 1, timeout_ms=30_000),
        Cause.ADMINISTRATOR,
        LIKELY,
    ),
    "an id that expired": (
        [*opened(2), *ended(IN_TIME, 1, commit=True), tombstone(4, 700_000_000)],
        Cause.EXPIRED,
        PROVEN,
    ),
    "a producer id whose epochs are used up": (
        [
            change(0, metadata("CompleteCommit", 900, 32766, start_ms=800)),
            change(1, metadata("Empty", 950, 0, producer=PRODUCER + 1, previous=PRODUCER)),
        ],
        Cause.NEW_PRODUCER_ID,
        PROVEN,
    ),
    "an abort whose earlier records are gone, past the timeout": (
        ended(LATE, 1),
        Cause.TIMEOUT,
        LIKELY,
    ),
    "an abort whose earlier records are gone": (ended(IN_TIME, 1), Cause.UNKNOWN, CANNOT_TELL),
    "a transaction that is open": (opened(2), Cause.NOT_FENCED, PROVEN),
    "an id that only ever committed": (
        opened(2) + ended(IN_TIME, 1, commit=True),
        Cause.NOT_FENCED,
        PROVEN,
    ),
    "an id without records": ([], Cause.UNKNOWN, CANNOT_TELL),
}


def verdict(changes: list[StateChange], identity: tuple[int, int] | None = None) -> Verdict:
    return judge(changes, find_incidents(changes), identity)


@pytest.mark.parametrize("name", CASES)
def test_the_verdict_on_the_last_event_of(name: str) -> None:
    changes, cause, certainty = CASES[name]
    found = verdict(changes)
    assert (found.cause, found.certainty) == (cause, certainty), found.sentence
    assert found.sentence.endswith(".")
    assert (found.prove is None) == (certainty is PROVEN or found.incident is None)


def test_every_rule_of_the_table_decides_some_history() -> None:
    deciding = set()
    histories = [changes for changes, _, _ in CASES.values()]
    for changes in histories:
        for incident in find_incidents(changes):
            found = signs(incident)
            rule = next(r for r in RULES if r.kind == incident.kind and r.fits(found))
            deciding.add(rule.because)
    missing = [rule.because for rule in RULES if rule.because not in deciding]
    # The one that is left needs a record whose time is not known (test_without_log.py).
    assert [each for each in missing if "has called InitProducerId since" not in each] == []


def test_the_timeout_of_a_producer_is_found_behind_the_restart_that_followed_it() -> None:
    changes = opened(1) + ended(LATE, 1) + initialised(LATE + 30_000, 2) + used(LATE + 31_000, 2)
    found = verdict(changes, (PRODUCER, 0))
    assert (found.cause, found.certainty) == (Cause.TIMEOUT, PROVEN)


def test_a_restart_just_after_the_window_is_not_taken_for_the_cause() -> None:
    for gap_ms, cause in ((SOON_MS, Cause.NEWER_INSTANCE), (SOON_MS + 1, Cause.TIMEOUT)):
        changes = opened(1) + ended(LATE, 1) + initialised(LATE + gap_ms, 2)
        assert verdict(changes, (PRODUCER, 0)).cause is cause


def test_a_tv1_producer_that_aborted_before_is_judged_by_what_took_the_id_from_it() -> None:
    changes = [
        *opened(1),
        *ended(IN_TIME, 0, tv=0),
        change(4, metadata("Ongoing", 6_000, 0, start_ms=6_000, tv=0)),
        change(5, metadata("PrepareAbort", 6_000 + TIMEOUT, 1, start_ms=6_000)),
    ]
    assert verdict(changes, (PRODUCER, 0)).cause is Cause.TIMEOUT


def test_a_commit_with_a_lost_reply_is_not_called_a_fence() -> None:
    for tv, epoch in ((1, 0), (2, 1)):
        changes = opened(tv) + ended(IN_TIME, epoch, commit=True)
        found = verdict(changes, (PRODUCER, 0))
        assert (found.cause, found.certainty) == (Cause.COMMITTED, PROVEN)
        assert "reply was lost" in found.sentence.replace("\n", " ")


@pytest.mark.parametrize(
    ("identity", "cause", "certainty", "said"),
    [
        ((PRODUCER, 7), Cause.UNKNOWN, CANNOT_TELL, "never had epoch 7"),
        ((PRODUCER + 5, 0), Cause.EXPIRED, LIKELY, "gets a new one"),
    ],
)
def test_a_producer_that_the_history_does_not_know(
    identity: tuple[int, int], cause: Cause, certainty: Certainty, said: str
) -> None:
    found = verdict(opened(2), identity)
    assert (found.cause, found.certainty) == (cause, certainty)
    assert said in found.sentence


def test_an_epoch_that_was_compacted_away_is_not_guessed() -> None:
    changes = [change(90, metadata("CompleteCommit", 9_000, 5))]
    found = verdict(changes, (PRODUCER, 2))
    assert (found.cause, found.certainty) == (Cause.UNKNOWN, CANNOT_TELL)
    assert "oldest one left has epoch 5" in found.sentence


def test_records_across_a_gap_are_not_compared() -> None:
    """Compaction took what lay between: the epoch before the abort is not known."""
    changes = [
        change(0, metadata("Ongoing", 1_000, 0, start_ms=1_000, tv=1)),
        change(50, metadata("PrepareAbort", 99_000, 4, start_ms=98_000)),
    ]
    found = verdict(changes)
    assert found.certainty is CANNOT_TELL
    assert found.incident is not None
    assert found.incident.victim is None


def test_unreadable_records_do_not_stop_the_judge() -> None:
    unknown = StateChange(2, 1_500, 0, None, "version 9 of the schema")
    changes = [*opened(2), unknown, *ended(IN_TIME, 1)]
    assert verdict(changes).certainty is not None
