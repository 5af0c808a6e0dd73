"""Four copiers under ten faults; `make chaos` runs hundreds."""

from __future__ import annotations

import pytest

from tests.cluster.chaos.run import run_chaos

SEED = 13


@pytest.mark.timeout(300)
def test_case_87_every_record_is_copied_once_while_brokers_die_pause_move_and_roll() -> None:
    lines: list[str] = []
    report = run_chaos(SEED, 10, say=lines.append)
    assert report.problems == [], "\n".join([*lines, str(report)])
    assert report.faults == 10
    assert report.copied > 0
