"""Verdicts from partitions alone: likely at best."""

from __future__ import annotations

import pytest

from fencepost.base.ids import TopicPartition
from fencepost.client.admin import TransactionView
from fencepost.forensics.history.explaining import Explanation, explain
from fencepost.forensics.history.facts import IdFacts
from fencepost.forensics.history.markers import PartitionFacts, SeenTransaction
from fencepost.forensics.history.rules import Cause, Certainty
from fencepost.records.fates import End, Transaction

ORDERS = TopicPartition("orders", 0)
PRODUCER = 40
TIMEOUT = 60_000


def transaction(
    start_ms: int, end_ms: int | None, *, epoch: int = 0, raised: bool = True, commit: bool = False
) -> SeenTransaction:
    end = None if end_ms is None else End(commit, 9, end_ms, 0, epoch + raised)
    return SeenTransaction(Transaction(PRODUCER, epoch, 0, True, end), start_ms)


def view(state: str, epoch: int, producer_id: int = PRODUCER) -> TransactionView:
    return TransactionView("refunds", state, producer_id, epoch, TIMEOUT, -1, ())


def explained(
    seen: list[SeenTransaction],
    now: TransactionView | None,
    identity: tuple[int, int] | None = (PRODUCER, 0),
) -> Explanation:
    facts = IdFacts("refunds", None, now, ["may not read"], [PartitionFacts(ORDERS, seen)])
    return explain(facts, identity)


LATE = 1_000 + TIMEOUT + 3_000

CASES = {
    "past the timeout": ([transaction(1_000, LATE)], view("CompleteAbort", 1), Cause.TIMEOUT),
    "taken over in time": ([transaction(1_000, 5_000)], view("Empty", 2), Cause.NEWER_INSTANCE),
    "aborted at its own epoch": (
        [transaction(1_000, 5_000, raised=False)],
        view("CompleteAbort", 0),
        Cause.CLIENT_ABORT,
    ),
    "committed": (
        [transaction(1_000, 5_000, commit=True)],
        view("CompleteCommit", 1),
        Cause.COMMITTED,
    ),
    "open": ([transaction(1_000, None)], view("Ongoing", 0), Cause.NOT_FENCED),
    "another producer id since": ([], view("Empty", 0, PRODUCER + 9), Cause.EXPIRED),
}


@pytest.mark.parametrize("name", CASES)
def test_the_cause_is_found_and_never_called_proven(name: str) -> None:
    seen, now, cause = CASES[name]
    found = explained(seen, now)
    assert found.verdict.cause is cause, found.verdict
    assert found.verdict.certainty is not Certainty.PROVEN
    assert "may not read" in found.notes


def test_nothing_at_all_is_no_verdict() -> None:
    found = explained([], None, None)
    assert found.verdict.certainty is Certainty.CANNOT_TELL
    assert found.row()["evidence"] == []
