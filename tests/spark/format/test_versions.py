"""Goal: every row of the table in `versions.py`."""

from __future__ import annotations

import pytest

from fencepost.spark.format.versions import decide_version
from fencepost.spark.sink.ledger.decision import NO_OVERRIDES, Overrides, Verdict
from fencepost.spark.sink.ledger.entry import LedgerEntry

LAST = LedgerEntry("daily", 7)
ADOPT = Overrides(adopt=True)


@pytest.mark.parametrize(
    ("entry", "app_id", "version", "overrides", "verdict"),
    [
        (None, "daily", 3, NO_OVERRIDES, Verdict.WRITE),
        (LAST, "daily", 7, NO_OVERRIDES, Verdict.DRAIN),
        (LAST, "daily", 7, ADOPT, Verdict.DRAIN),
        (LAST, "daily", 8, NO_OVERRIDES, Verdict.WRITE),
        (LAST, "daily", 20, NO_OVERRIDES, Verdict.WRITE),
        (LAST, "daily", 6, NO_OVERRIDES, Verdict.REFUSE),
        (LAST, "daily", 6, ADOPT, Verdict.WRITE),
        (LAST, "other", 7, NO_OVERRIDES, Verdict.REFUSE),
        (LAST, "other", 8, Overrides(take_over="another"), Verdict.REFUSE),
        (LAST, "other", 0, Overrides(take_over="daily"), Verdict.TAKE_OVER),
        (LAST, "other", 0, ADOPT, Verdict.WRITE),
    ],
)
def test_the_ledger_decides_about_a_version(
    entry: LedgerEntry | None, app_id: str, version: int, overrides: Overrides, verdict: Verdict
) -> None:
    decision = decide_version(entry, app_id, version, overrides)
    assert decision.verdict is verdict, decision.reason
