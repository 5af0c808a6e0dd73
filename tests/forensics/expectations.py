"""What `txn why` must say about each situation, on any broker."""

from __future__ import annotations

import json
from typing import Any

from fencepost.forensics.history.rules import Cause, Certainty
from tests.forensics import situations

PROVEN, LIKELY = Certainty.PROVEN, Certainty.LIKELY

EXPECTED: dict[tuple[str, int], tuple[Cause, Certainty]] = {
    ("timed_out", 1): (Cause.TIMEOUT, PROVEN),
    ("timed_out", 2): (Cause.TIMEOUT, LIKELY),
    ("newer_instance", 1): (Cause.NEWER_INSTANCE, LIKELY),
    ("newer_instance", 2): (Cause.NEWER_INSTANCE, LIKELY),
    ("newer_instance_that_works", 1): (Cause.NEWER_INSTANCE, PROVEN),
    ("newer_instance_that_works", 2): (Cause.NEWER_INSTANCE, LIKELY),
    ("newer_instance_between_transactions", 1): (Cause.NEWER_INSTANCE, LIKELY),
    ("newer_instance_between_transactions", 2): (Cause.NEWER_INSTANCE, LIKELY),
    ("fenced_by_administrator", 1): (Cause.ADMINISTRATOR, LIKELY),
    ("fenced_by_administrator", 2): (Cause.ADMINISTRATOR, LIKELY),
    ("aborted_by_client", 1): (Cause.CLIENT_ABORT, PROVEN),
    ("aborted_by_client", 2): (Cause.CLIENT_ABORT, PROVEN),
    ("aborted_by_markers", 1): (Cause.ADMINISTRATOR_MARKERS, PROVEN),
    ("aborted_by_markers", 2): (Cause.ADMINISTRATOR_MARKERS, PROVEN),
    ("committed_after_markers", 1): (Cause.ADMINISTRATOR_MARKERS, PROVEN),
    ("lost_answer", 1): (Cause.COMMITTED, PROVEN),
    ("lost_answer", 2): (Cause.COMMITTED, PROVEN),
    ("open_transaction", 2): (Cause.NOT_FENCED, PROVEN),
}
"""By situation and protocol."""


EXPECTED_ON_KAFKA = EXPECTED | {("aborted_by_client", 1): (Cause.CLIENT_ABORT, LIKELY)}
"""Apache Kafka's records do not say whether it was an administrator in the producer's name."""


def prepare(name: str, servers: str, protocol: int) -> situations.Situation:
    found: situations.Situation = getattr(situations, name)(servers, protocol)
    return found


def arguments_of(found: situations.Situation) -> list[str]:
    """The producer that complained, as options of `txn why`."""
    identity = found.identity
    return ["--producer-id", str(identity.producer_id), "--epoch", str(identity.producer_epoch)]


def check(said: str, found: situations.Situation, expected: tuple[Cause, Certainty]) -> None:
    """The answer of `txn why --json` is the expected one, and rests on evidence."""
    row: dict[str, Any] = json.loads(said)
    assert (row["cause"], row["certainty"]) == (expected[0].value, expected[1].value), row
    assert (row["producer_id"], row["producer_epoch"]) == (
        found.identity.producer_id,
        found.identity.producer_epoch,
    )
    assert row["evidence"], "a verdict without evidence"
    for each in row["evidence"]:
        assert each["offset"] is not None
        assert each["decided_at_ms"] > 0
