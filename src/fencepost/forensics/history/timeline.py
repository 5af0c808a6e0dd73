"""The timeline of an id: its states in order, with durations and the markers of each end.

A marker belongs to the Prepare record that has its producer id, epoch and outcome and was written
last before it. One that belongs to none was written by someone else: WriteTxnMarkers from an
administrator's tool leaves nothing in the coordinator's log.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fencepost.forensics.history.markers import CLOCK_SLACK_MS, PartitionFacts, SeenMarker
from fencepost.forensics.history.state_changes import (
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    History,
    StateChange,
    follows,
    lost_in_words,
)

_ENDS = {PREPARE_COMMIT: True, PREPARE_ABORT: False}


@dataclass(slots=True)
class Step:
    """One state of the id."""

    change: StateChange
    since_previous_ms: int | None
    """How long the state before lasted."""
    added: tuple[str, ...]
    """Partitions that joined the transaction with this record."""
    notes: tuple[str, ...]
    markers: list[SeenMarker] = field(default_factory=list)
    missing: tuple[str, ...] = ()
    """Partitions of this end whose marker was not found."""


@dataclass(slots=True)
class Timeline:
    """All steps of an id, and what is known to be missing."""

    history: History
    steps: list[Step]
    strays: list[SeenMarker]
    """Markers that no record of the coordinator explains."""
    problems: list[str]

    @property
    def lost(self) -> str | None:
        """What compaction took."""
        return lost_in_words(self.history)


def build_timeline(history: History, partitions: Sequence[PartitionFacts] = ()) -> Timeline:
    """Puts the records and the markers together."""
    steps = []
    before: StateChange | None = None
    for change in history.changes:
        steps.append(
            Step(
                change,
                change.at_ms - before.at_ms if before is not None else None,
                _added(before, change),
                tuple(_notes(before, change)),
            )
        )
        before = change
    markers = sorted(
        (marker for facts in partitions for marker in facts.markers),
        key=lambda marker: marker.end.at_ms,
    )
    strays = [marker for marker in markers if not _attach(steps, marker)]
    unread = {str(facts.partition) for facts in partitions if facts.problem}
    if partitions:
        _mark_missing(steps, unread)
    problems = [f"{facts.partition}: {facts.problem}" for facts in partitions if facts.problem]
    return Timeline(history, steps, strays, problems)


def names_of(change: StateChange) -> tuple[str, ...]:
    """The partitions of a record, as Kafka writes them."""
    partitions = change.metadata.partitions if change.metadata is not None else {}
    return tuple(f"{topic}-{index}" for topic, indexes in partitions.items() for index in indexes)


def _added(before: StateChange | None, change: StateChange) -> tuple[str, ...]:
    if change.metadata is None or change.metadata.state != ONGOING:
        return ()
    known = names_of(before) if before is not None and before.state == "Ongoing" else ()
    return tuple(name for name in names_of(change) if name not in known)


def _notes(before: StateChange | None, change: StateChange) -> Iterable[str]:
    if change.problem:
        yield f"cannot be read: {change.problem}"
    if before is None:
        return
    if not follows(before, change):
        yield "records before this one were compacted away"
    if before.coordinator_epoch != change.coordinator_epoch:
        epochs = f"{before.coordinator_epoch} to {change.coordinator_epoch}"
        yield f"the coordinator moved (epoch {epochs})"
    old, new = before.metadata, change.metadata
    if old is None or new is None:
        return
    if old.producer_id != new.producer_id:
        yield f"a new producer id, after {old.producer_id}"
    if new.administrator and new.administrator != old.administrator:
        yield f"by an administrator: {new.administrator}"
    if new.state in _ENDS and new.start_ms >= 0:
        lasted_ms = change.at_ms - new.start_ms
        if lasted_ms >= new.timeout_ms:
            yield f"open for {lasted_ms:,} ms; its timeout was {new.timeout_ms:,} ms"


def _attach(steps: Sequence[Step], marker: SeenMarker) -> bool:
    """Gives a marker to the last Prepare record before it that has none in that partition."""
    candidates = [step for step in steps if _explains(step.change, marker)]
    before = [step for step in candidates if step.change.at_ms <= marker.end.at_ms]
    # A leader's clock may be behind the coordinator's.
    behind = [step for step in candidates if step.change.at_ms <= marker.end.at_ms + CLOCK_SLACK_MS]
    for step in (*reversed(before), *behind):
        if all(each.partition != marker.partition for each in step.markers):
            step.markers.append(marker)
            return True
    return False


def _explains(change: StateChange, marker: SeenMarker) -> bool:
    return (
        change.metadata is not None
        and _ENDS.get(change.metadata.state) is marker.end.commit
        and change.identity == (marker.producer_id, marker.end.producer_epoch)
        and str(marker.partition) in names_of(change)
    )


def _mark_missing(steps: Iterable[Step], unread: set[str]) -> None:
    for step in steps:
        if step.change.metadata is None or step.change.metadata.state not in _ENDS:
            continue
        found = {str(marker.partition) for marker in step.markers} | unread
        step.missing = tuple(name for name in names_of(step.change) if name not in found)


# -- as rows --------------------------------------------------------------------------------------


def marker_row(marker: SeenMarker) -> dict[str, Any]:
    """A marker for JSON."""
    return {
        "partition": str(marker.partition),
        "offset": marker.end.offset,
        "at_ms": marker.end.at_ms,
        "outcome": "commit" if marker.end.commit else "abort",
        "producer_id": marker.producer_id,
        "producer_epoch": marker.end.producer_epoch,
        "coordinator_epoch": marker.end.coordinator_epoch,
        "first_offset": marker.first_offset,
        "is_first_offset_exact": marker.has_start,
    }


def change_row(change: StateChange) -> dict[str, Any]:
    """A record for JSON."""
    metadata = change.metadata
    row: dict[str, Any] = {
        "offset": change.offset if change.offset >= 0 else None,
        "decided_at_ms": change.at_ms if change.at_ms >= 0 else None,
        "state": change.state,
        "producer_id": metadata.producer_id if metadata else None,
        "producer_epoch": metadata.producer_epoch if metadata else None,
        "coordinator_epoch": change.coordinator_epoch,
        "partitions": list(names_of(change)),
    }
    if metadata is not None:
        row |= {
            "timeout_ms": metadata.timeout_ms,
            "started_at_ms": metadata.start_ms if metadata.start_ms >= 0 else None,
            "transaction_version": metadata.client_transaction_version,
            "administrator": metadata.administrator or None,
        }
    if change.offset >= 0:
        row["written_at_ms"] = change.written_at_ms
    return row


def timeline_row(timeline: Timeline) -> dict[str, Any]:
    """The whole timeline for JSON."""
    history = timeline.history
    return {
        "transactional_id": history.transactional_id,
        "log_partition": str(history.partition),
        "is_complete": history.is_whole and timeline.lost is None,
        "lost": timeline.lost,
        "problems": timeline.problems,
        "steps": [
            change_row(step.change)
            | {
                "since_previous_ms": step.since_previous_ms,
                "added": list(step.added),
                "notes": list(step.notes),
                "markers": [marker_row(marker) for marker in step.markers],
                "missing_markers": list(step.missing),
            }
            for step in timeline.steps
        ],
        "stray_markers": [marker_row(marker) for marker in timeline.strays],
    }
