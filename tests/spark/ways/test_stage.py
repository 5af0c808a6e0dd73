"""The reports of the tasks of a write stage."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the spark extra is not installed")

from fencepost.spark.failures import CountsDisagree
from fencepost.spark.ways.stage import collect_reports


def returning(*reports: dict[str, Any]) -> Any:
    """A DataFrame whose job returns these reports."""
    rows = [{"report": json.dumps(report)} for report in reports]
    return SimpleNamespace(collect=lambda: rows)


@pytest.mark.parametrize("tasks", [1, 3])
def test_a_task_without_a_report_or_with_two_fails_the_attempt(tasks: int) -> None:
    with pytest.raises(CountsDisagree, match=f"{tasks} tasks ran, and 2 have reported"):
        collect_reports(returning({}, {}), tasks)


def test_every_task_reports_or_there_was_none() -> None:
    assert collect_reports(returning({"runs": []}, {"runs": []}), 2) == [{"runs": []}] * 2
    assert collect_reports(returning(), 2) == []
