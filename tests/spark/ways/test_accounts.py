from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the spark extra is not installed")

from fencepost.base.ids import TopicPartition
from fencepost.client.writer import Written
from fencepost.spark.failures import CountsDisagree
from fencepost.spark.ways.accounts import Report, manifest_of, reconcile_reports, report_of


def packed(number: int, rows: int = 0, *counts: int) -> Report:
    """A report with the manifest of a packing task: its rows, and what it packed per partition."""
    places = {TopicPartition("t", index): count for index, count in enumerate(counts)}
    return report_of(1, 0, {}, [manifest_of(number, rows, places)])


def wrote(partition: int, records: int, last_sequence: int | None = None) -> Report:
    last = records - 1 if last_sequence is None else last_sequence
    written = Written(records, 1, 100, 0, records - 1, last)
    return report_of(1, 5, {TopicPartition("t", partition): written}, [])


def test_packing_tasks_may_report_in_any_order() -> None:
    assert reconcile_reports([packed(1), packed(0)]).rows == 0


def test_a_missing_packing_task_is_noticed() -> None:
    """A lost shuffle block loses the manifest, and all rows of its task if they were in it."""
    with pytest.raises(CountsDisagree, match=r"only \[0, 2\] reported"):
        reconcile_reports([packed(0), packed(2)])


def test_packed_and_acknowledged_records_add_up() -> None:
    account = reconcile_reports([packed(0, 3, 2, 1), packed(1, 1, 1), wrote(0, 3), wrote(1, 1)])
    assert (account.rows, account.records) == (4, 4)


@pytest.mark.parametrize(
    ("reports", "reason"),
    [
        ([packed(0, 2, 2), wrote(0, 2), wrote(0, 2)], "two tasks wrote to t-0"),
        ([packed(0, 2, 2), packed(0, 2, 2), wrote(0, 4)], "counts twice"),
        ([packed(0, 3, 2), wrote(0, 2)], "3 rows came in"),
        ([packed(0, 2, 2), wrote(0, 1)], "acknowledged"),
        ([packed(0, 2, 2)], "acknowledged"),
        ([wrote(0, 3)], "acknowledged"),
        ([packed(0, 2, 2), wrote(0, 2, last_sequence=3)], "end at sequence 3"),
    ],
)
def test_reports_that_do_not_add_up_are_refused(reports: list[Any], reason: str) -> None:
    with pytest.raises(CountsDisagree, match=reason):
        reconcile_reports(reports)


def read(*runs: tuple[int, int]) -> Report:
    """A report with the runs of packing tasks that a writer has read."""
    return report_of(1, 0, {}, [], runs)


def test_writers_that_have_read_the_same_runs_agree() -> None:
    reports = [packed(0, 1, 1), packed(1, 1, 1), wrote(0, 2), read((0, 5), (1, 6)), read((1, 6))]
    assert reconcile_reports([*reports, read()]).rows == 2


@pytest.mark.parametrize("later", [((0, 5), (1, 9)), ((1, 9),)])
def test_writers_that_have_read_different_runs_of_a_packing_task_disagree(later: Any) -> None:
    """Rows that changed places between the runs: one is there twice, one is lost, counts match."""
    reports = [packed(0, 1, 1), packed(1, 1, 1), wrote(0, 2), read((0, 5), (1, 6))]
    with pytest.raises(CountsDisagree, match="task 1 of the packing stage ran as Spark's tasks 6"):
        reconcile_reports([*reports, read(*later)])
