"""Runs of the demo, by hand."""

from __future__ import annotations

from fencepost_examples.demo.plan import (
    Victim,
    sides_of,
)
from fencepost_examples.demo.run import DemoOptions, History
from fencepost_examples.refunds.spark.audit import QUESTIONS, Findings
from fencepost_examples.refunds.spark.settlements import AT_LEAST_ONCE, EXACTLY_ONCE

SIDES = sides_of(compare=True)


def a_history(*, doubled: int = 0, lost: int = 0) -> tuple[History, DemoOptions]:
    """Returns a run without violations on one side, and with these on the other."""
    fine = Findings(
        rows={"settlements": 100, "decisions": 100, "refunds": 60},
        wrong=dict.fromkeys(QUESTIONS, 0) | {"settlements behind the committed offsets": 0},
    )
    plain = Findings(
        rows={"settlements": 100, "decisions": 100 + doubled, "refunds": 60 + doubled},
        wrong=dict.fromkeys(QUESTIONS, 0) | {"refunds paid more than once": doubled},
        refunds_too_many=doubled,
        paid_too_much_paise=doubled * 105,
    )
    fine.wrong["settlements without a decision"] = lost
    history = History(
        samples=[(0.0, dict.fromkeys(SIDES, 0)), (50.0, dict.fromkeys(SIDES, 100))],
        kills=[(10.0, Victim.DRIVER), (10.5, Victim.BROKER), (55.0, Victim.LOADER)],
        findings={EXACTLY_ONCE: fine, AT_LEAST_ONCE: plain},
        queries_ended=50.0,
        seconds=61.2,
    )
    return history, DemoOptions(settlements=100, per_batch=10, kills=2, seed=4)
