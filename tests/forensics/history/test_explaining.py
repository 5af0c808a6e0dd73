"""Verdicts with their evidence, and how sure they may be."""

from __future__ import annotations

from fencepost.forensics.history.explaining import explain
from fencepost.forensics.history.facts import IdFacts
from fencepost.forensics.history.rules import Cause, Certainty
from fencepost.forensics.history.state_changes import StateChange
from tests.forensics.history.changes import PRODUCER, history, lives, marker, seen


def facts(changes: list[StateChange], reached: int = 100) -> IdFacts:
    return IdFacts("refunds", history(changes, reached=reached), None, [])


def test_a_history_that_was_not_read_to_its_end_proves_nothing() -> None:
    whole = explain(facts(lives(3)), (PRODUCER, 3))
    part = explain(facts(lives(3), reached=50), (PRODUCER, 3))
    assert (whole.verdict.cause, whole.verdict.certainty) == (Cause.NOT_FENCED, Certainty.PROVEN)
    assert (part.verdict.cause, part.verdict.certainty) == (Cause.NOT_FENCED, Certainty.LIKELY)
    assert "--max-read" in (part.verdict.prove or "")


def test_the_evidence_is_the_records_around_the_incident_and_its_markers() -> None:
    found = facts(lives(3))
    found.partitions = seen(marker(2_011, commit=True, epoch=2))
    row = explain(found, (PRODUCER, 1)).row()
    assert [(each["state"], each["producer_epoch"]) for each in row["evidence"]] == [
        ("Ongoing", 1),
        ("PrepareCommit", 2),
        ("CompleteCommit", 2),
        ("Ongoing", 2),
        ("COMMIT marker", 2),
    ]
    assert row["evidence"][1]["open_for_ms"] == 10
