"""Verdicts with their evidence, and how sure they may be."""

from __future__ import annotations

from fencepost.forensics.history.explaining import explain
from fencepost.forensics.history.facts import MOST_CHANGES, IdFacts, changes_around
from fencepost.forensics.history.rules import Cause, Certainty
from fencepost.forensics.history.state_changes import StateChange
from tests.forensics.changes import PRODUCER, change, history, metadata
from tests.forensics.test_timeline import marker, seen


def lives(count: int) -> list[StateChange]:
    """Transactions that are committed with TV2: every one raises the epoch."""
    found = [change(0, metadata("Empty", 900))]
    for number in range(count):
        at_ms, offset = 1_000 * (number + 1), 3 * number
        start = {"start_ms": at_ms}
        found += [
            change(offset + 1, metadata("Ongoing", at_ms, number, **start)),
            change(offset + 2, metadata("PrepareCommit", at_ms + 10, number + 1, **start)),
            change(offset + 3, metadata("CompleteCommit", at_ms + 12, number + 1, **start)),
        ]
    return found


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


def test_the_partitions_are_searched_around_the_producer_that_is_asked_for() -> None:
    changes = lives(40)
    old = changes_around(changes, (PRODUCER, 10))
    assert {each.metadata.producer_epoch for each in old if each.metadata} >= {10, 11}
    assert max(each.offset for each in old) < 40
    assert changes_around(changes, None) == changes[-MOST_CHANGES:]
    assert changes_around(changes, (99, 99)) == changes[-MOST_CHANGES:]
    assert changes_around([], None) == []
