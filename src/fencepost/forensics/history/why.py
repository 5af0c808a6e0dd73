"""Why was a producer fenced, or its transaction aborted?

The verdict on one producer, or on the last that lost the id: which incident it was
(`incidents.py`), and which row of the table fits (`rules.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fencepost.forensics.history.incidents import ABORT, COMMIT, INIT, Incident, signs
from fencepost.forensics.history.rules import RULES, Cause, Certainty
from fencepost.forensics.history.state_changes import (
    COMPLETE_COMMIT,
    ONGOING,
    PREPARE_COMMIT,
    StateChange,
)

P, L, C = Certainty.PROVEN, Certainty.LIKELY, Certainty.CANNOT_TELL


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer, with the records that it rests on."""

    cause: Cause
    certainty: Certainty
    sentence: str
    incident: Incident | None = None
    prove: str | None = None
    """What would prove more; None if nothing is open."""


def judge_incident(incident: Incident) -> Verdict:
    """The verdict on one incident: the first rule that fits."""
    found = signs(incident)
    for rule in RULES:
        if rule.kind == incident.kind and rule.fits(found):
            because = rule.because.format(administrator=incident.administrator)
            return Verdict(rule.cause, rule.certainty, because, incident, rule.prove)
    raise AssertionError(f"no rule for {incident.kind}")


def judge(
    changes: Sequence[StateChange],
    incidents: Sequence[Incident],
    identity: tuple[int, int] | None = None,
) -> Verdict:
    """The verdict on a producer; without one, on the last producer that lost the id."""
    if identity is not None:
        return _judge_identity(changes, incidents, identity)
    taken = [each for each in incidents if each.kind != COMMIT or each.administrator]
    if not taken:
        return _judge_current(changes)
    last = taken[-1]
    if len(taken) > 1 and last.kind == INIT and _had_no_victim(taken[-2], last):
        last = taken[-2]
    return judge_incident(last)


def _had_no_victim(ended: Incident, initialised: Incident) -> bool:
    """Whether no producer owned the epoch that an InitProducerId replaced.

    The end before it raised the epoch without telling any producer: it made room for this
    InitProducerId, or the timeout or an administrator did it, and the producer restarted later.
    """
    if not ended.after or ended.after[0] is not initialised.change:
        return False
    if ended.administrator:
        return signs(ended).epoch_raised is not False
    return ended.kind == ABORT and judge_incident(ended).cause is not Cause.CLIENT_ABORT


def _judge_identity(
    changes: Sequence[StateChange],
    incidents: Sequence[Incident],
    identity: tuple[int, int],
) -> Verdict:
    hits = [each for each in incidents if each.victim == identity]
    # A TV1 producer survives its own ends: what counts is who took the id from it, if anyone did.
    taken = [
        each
        for each in hits
        if each.administrator or (each.kind != COMMIT and signs(each).epoch_raised is not False)
    ]
    for candidate in (taken, hits):
        if candidate:
            return judge_incident(candidate[-1])
    last = changes[-1] if changes else None
    if last is not None and last.identity == identity:
        return _judge_current(changes)
    known = [each.identity for each in changes if each.identity is not None]
    return _judge_stranger(identity, known)


def _judge_current(changes: Sequence[StateChange]) -> Verdict:
    last = changes[-1] if changes else None
    if last is None or last.metadata is None:
        return Verdict(Cause.UNKNOWN, C, "No record of the id is left.")
    producer_id, epoch = last.metadata.producer_id, last.metadata.producer_epoch
    state = "has a transaction open" if last.metadata.state == ONGOING else f"is in {last.state}"
    if last.metadata.state in (PREPARE_COMMIT, COMPLETE_COMMIT):
        state += ": if its commit ended with an error, the reply was lost and it took effect"
    return Verdict(
        Cause.NOT_FENCED,
        P,
        f"Producer {producer_id} with epoch {epoch} is the current owner of the id and {state}.",
    )


def _judge_stranger(identity: tuple[int, int], known: Sequence[tuple[int, int]]) -> Verdict:
    producer_id, epoch = identity
    epochs = [each[1] for each in known if each[0] == producer_id]
    if not known:
        return Verdict(Cause.UNKNOWN, C, "No record of the id is left.")
    if not epochs:
        return Verdict(
            Cause.EXPIRED,
            L,
            f"No record names producer id {producer_id}: the id has had producer id {known[-1][0]} "
            "since then. An id that expires and is used again gets a new one. A producer id of "
            "another transactional id looks the same.",
            prove="The log of the producer says which transactional id it used.",
        )
    if epoch > max(epochs):
        return Verdict(
            Cause.UNKNOWN,
            C,
            f"Producer {producer_id} never had epoch {epoch}: the highest one is {max(epochs)}.",
        )
    return Verdict(
        Cause.UNKNOWN,
        C,
        f"The records of producer {producer_id} with epoch {epoch} are gone; the oldest one left "
        f"has epoch {min(epochs)}.",
        prove="The log of the producer, or of the coordinator, at that time.",
    )
