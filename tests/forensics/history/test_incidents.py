"""Incidents in a history."""

from __future__ import annotations

from fencepost.forensics.history.incidents import SOON_MS, find_incidents, signs
from fencepost.forensics.history.rules import Cause, Certainty
from tests.forensics.history.changes import PRODUCER, tombstone
from tests.forensics.history.lives import IN_TIME, LATE, ended, initialised, opened, used, verdict

PROVEN, LIKELY, CANNOT_TELL = Certainty.PROVEN, Certainty.LIKELY, Certainty.CANNOT_TELL


def test_the_timeout_of_a_producer_is_found_behind_the_restart_that_followed_it() -> None:
    changes = opened(1) + ended(LATE, 1) + initialised(LATE + 30_000, 2) + used(LATE + 31_000, 2)
    found = verdict(changes, (PRODUCER, 0))
    assert (found.cause, found.certainty) == (Cause.TIMEOUT, PROVEN)


def test_a_restart_just_after_the_window_is_not_taken_for_the_cause() -> None:
    for gap_ms, cause in ((SOON_MS, Cause.NEWER_INSTANCE), (SOON_MS + 1, Cause.TIMEOUT)):
        changes = opened(1) + ended(LATE, 1) + initialised(LATE + gap_ms, 2)
        assert verdict(changes, (PRODUCER, 0)).cause is cause


def test_an_id_that_is_removed_soon_after_its_abort_was_not_initialised_again() -> None:
    changes = [*opened(1), *ended(IN_TIME, 1), tombstone(4, IN_TIME + 100)]
    (abort, _) = find_incidents(changes)
    found = signs(abort)
    assert (found.is_initialised, found.initialised_after_ms) == (False, None)
