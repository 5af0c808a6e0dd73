"""Which incident is the cause."""

from __future__ import annotations

import pytest

from fencepost.forensics.history.rules import Cause, Certainty
from fencepost.forensics.history.state_changes import StateChange
from tests.forensics.history.changes import PRODUCER, change, metadata
from tests.forensics.history.lives import IN_TIME, TIMEOUT, ended, opened, verdict

PROVEN, LIKELY, CANNOT_TELL = Certainty.PROVEN, Certainty.LIKELY, Certainty.CANNOT_TELL


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
