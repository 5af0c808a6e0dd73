"""Explains what happened to a producer: facts in, verdict and evidence out. Pure.

The evidence is the records and markers around the incident, each with its offset, time and epoch,
so that a reader can check the verdict against the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fencepost.forensics.history.facts import IdFacts
from fencepost.forensics.history.incidents import Incident, find_incidents, signs
from fencepost.forensics.history.markers import SeenMarker
from fencepost.forensics.history.rules import CLIENTS_SAY, IN_ITS_NAME, Cause, Certainty
from fencepost.forensics.history.state_changes import StateChange, lost_in_words
from fencepost.forensics.history.timeline import build_timeline, change_row, marker_row
from fencepost.forensics.history.torn import find_torn
from fencepost.forensics.history.why import Verdict, judge
from fencepost.forensics.history.without_log import at_most_likely, infer_changes

_NEEDS_READ = "READ on __transaction_state, which has the coordinator's own records."
_NEEDS_MORE = "A larger --max-read: newer records of the id may tell otherwise."
_NEEDS_REQUESTS = "Kafka's request log, or the log of the producer, says who sent EndTxn."
NO_LOG = "inferred from batches and markers"


@dataclass(frozen=True, slots=True)
class Explanation:
    """A verdict, and what it rests on."""

    transactional_id: str
    producer: tuple[int, int] | None
    """The producer id and epoch that the verdict is about."""
    verdict: Verdict
    evidence: Sequence[dict[str, Any]]
    notes: Sequence[str]

    def row(self) -> dict[str, Any]:
        """All fields for JSON."""
        producer_id, epoch = self.producer or (None, None)
        return {
            "transactional_id": self.transactional_id,
            "producer_id": producer_id,
            "producer_epoch": epoch,
            "cause": self.verdict.cause.value,
            "certainty": self.verdict.certainty.value,
            "because": self.verdict.sentence,
            "would_prove_more": self.verdict.prove,
            "client_probably_said": CLIENTS_SAY.get(self.verdict.cause),
            "notes": list(self.notes),
            "evidence": list(self.evidence),
        }


def explain(facts: IdFacts, identity: tuple[int, int] | None = None) -> Explanation:
    """The verdict on a producer of the id; without one, on the last that lost it."""
    changes = (
        facts.history.changes
        if facts.history is not None
        else infer_changes(facts.partitions, facts.view)
    )
    markers = [marker for each in facts.partitions for marker in each.markers]
    verdict = judge(changes, find_incidents(changes), identity)
    torn = None
    if facts.history is not None:
        torn = find_torn(changes, build_timeline(facts.history, facts.partitions).strays)
    if torn is not None and _is_about(torn[0], verdict, identity):
        return _explain_torn(facts, *torn)
    if facts.history is None:
        verdict = at_most_likely(verdict, _NEEDS_READ)
    elif not facts.history.is_whole:
        verdict = at_most_likely(verdict, _NEEDS_MORE)
    notes = _notes(facts)
    if not facts.names_administrators and _may_be_in_its_name(verdict, changes):
        notes.insert(0, IN_ITS_NAME)
        if verdict.cause is Cause.CLIENT_ABORT:
            verdict = at_most_likely(verdict, _NEEDS_REQUESTS)
    return Explanation(
        facts.transactional_id,
        identity or (verdict.incident.victim if verdict.incident else _current(changes)),
        verdict,
        _evidence(changes, verdict.incident, identity, markers, _source(facts)),
        notes,
    )


def _may_be_in_its_name(verdict: Verdict, changes: Sequence[StateChange]) -> bool:
    """Whether all that is known is that EndTxn came with the producer's identity."""
    if verdict.cause is Cause.CLIENT_ABORT:
        return verdict.incident is not None and not signs(verdict.incident).continued
    if verdict.cause is Cause.NOT_FENCED:
        return changes[-1].state.startswith(("Prepare", "Complete"))
    return verdict.cause is Cause.COMMITTED


def _is_about(opened: StateChange, verdict: Verdict, identity: tuple[int, int] | None) -> bool:
    """Whether a torn transaction is what the user asks for, or the last thing that happened."""
    if identity is not None:
        return opened.identity == identity
    return verdict.incident is None or verdict.incident.change.at_ms < opened.at_ms


def _explain_torn(facts: IdFacts, opened: StateChange, marker: SeenMarker) -> Explanation:
    verdict = Verdict(
        Cause.ADMINISTRATOR_MARKERS,
        Certainty.PROVEN if facts.history is not None else Certainty.LIKELY,
        f"{marker.partition} has an ABORT marker of this transaction, and the coordinator has not "
        "aborted it: an administrator's tool wrote the marker (WriteTxnMarkers). What the "
        "partition had before the marker is aborted; the rest of the transaction is not.",
        prove=None,
    )
    evidence = [_evidence_row(opened, _source(facts)), _marker_evidence(marker)]
    return Explanation(facts.transactional_id, opened.identity, verdict, evidence, _notes(facts))


def _current(changes: Sequence[StateChange]) -> tuple[int, int] | None:
    return changes[-1].identity if changes else None


def _notes(facts: IdFacts) -> list[str]:
    notes = list(facts.problems)
    if facts.history is not None and (lost := lost_in_words(facts.history)):
        notes.append(lost)
    notes += [f"{each.partition}: {each.problem}" for each in facts.partitions if each.problem]
    return notes


def _evidence(
    changes: Sequence[StateChange],
    incident: Incident | None,
    identity: tuple[int, int] | None,
    markers: Sequence[SeenMarker],
    source: str,
) -> list[dict[str, Any]]:
    if incident is None:
        shown = [each for each in changes if identity is None or each.identity == identity][-1:]
        return [_evidence_row(each, source) for each in shown]
    around = [incident.before, incident.change, incident.complete, *incident.after[:1]]
    rows = [_evidence_row(each, source) for each in around if each is not None]
    found = signs(incident)
    if found.duration_ms is not None:
        rows[0 if incident.before is None else 1]["open_for_ms"] = found.duration_ms
    if incident.change.identity is not None:
        rows += [
            _marker_evidence(marker)
            for marker in markers
            if (marker.producer_id, marker.end.producer_epoch) == incident.change.identity
            and marker.end.at_ms >= incident.change.at_ms - 1_000
        ][:10]
    return rows


def _source(facts: IdFacts) -> str:
    return NO_LOG if facts.history is None else str(facts.history.partition)


def _evidence_row(change: StateChange, source: str) -> dict[str, Any]:
    row = change_row(change)
    row["source"] = source
    return row


def _marker_evidence(marker: SeenMarker) -> dict[str, Any]:
    row = marker_row(marker)
    return {
        "offset": row["offset"],
        "decided_at_ms": row["at_ms"],
        "state": f"{row['outcome'].upper()} marker",
        "producer_id": row["producer_id"],
        "producer_epoch": row["producer_epoch"],
        "coordinator_epoch": row["coordinator_epoch"],
        "partitions": [row["partition"]],
        "source": row["partition"],
    }
