"""Goal: KIP-664's rule, applied only to what is proven to be absent."""

from __future__ import annotations

import pytest

from fencepost.client.survey.asking import Missing
from fencepost.forensics.hanging import GRACE_MS, Verdict, judge_hanging
from fencepost.forensics.visibility import Visibility
from tests.forensics.facts import NOW_MS, SEES_ALL, SEES_SOME, look, producer, transaction, view

MAX_MS = 900_000
OLD = NOW_MS - MAX_MS - GRACE_MS - 1
YOUNG = OLD + 1


@pytest.mark.parametrize(
    ("written_ms", "visibility", "verdict"),
    [
        (OLD, SEES_ALL, Verdict.HANGING),
        (YOUNG, SEES_ALL, Verdict.SUSPECT),
        (OLD, SEES_SOME, Verdict.CANNOT_TELL),
        (YOUNG, SEES_SOME, None),
        (-1, SEES_ALL, Verdict.HANGING),
    ],
)
def test_the_verdict_depends_on_age_and_sight(
    written_ms: int, visibility: Visibility, verdict: Verdict | None
) -> None:
    seen = look([producer(last_timestamp_ms=written_ms)], visibility=visibility)
    found = judge_hanging(seen, MAX_MS).found
    assert [each.verdict for each in found] == ([] if verdict is None else [verdict])
    assert all((each.command is not None) == (verdict is Verdict.HANGING) for each in found)


@pytest.mark.parametrize("state", ["Ongoing", "PrepareAbort"])
def test_what_a_coordinator_has_does_not_hang_however_old_it_is(state: str) -> None:
    seen = look([producer(last_timestamp_ms=OLD)], {7: transaction(view(state))})
    assert judge_hanging(seen, MAX_MS).found == []


def test_partitions_that_do_not_show_their_producers_are_counted() -> None:
    assert judge_hanging(look(Missing("TOPIC_AUTHORIZATION_FAILED", 29)), MAX_MS).unreadable == 1
