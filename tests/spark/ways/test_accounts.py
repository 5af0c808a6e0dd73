from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the spark extra is not installed")

from fencepost.spark.failures import CountsDisagree
from fencepost.spark.ways.accounts import settle_accounts


def manifest(number: int) -> dict[str, str]:
    return {"manifest": f'{{"map": {number}, "rows": 0, "partitions": []}}'}


def test_packing_tasks_may_report_in_any_order() -> None:
    assert settle_accounts([manifest(1), manifest(0)]).rows == 0


def test_a_missing_packing_task_is_noticed() -> None:
    """A lost shuffle block loses the manifest, and all rows of its task if they were in it."""
    with pytest.raises(CountsDisagree, match=r"only \[0, 2\] reported"):
        settle_accounts([manifest(0), manifest(2)])


def packed(number: int, rows: int, *counts: int) -> dict[str, Any]:
    """The manifest of a packing task: its rows, and what it packed per partition."""
    partitions = [["t", index, count] for index, count in enumerate(counts)]
    return {"manifest": json.dumps({"map": number, "rows": rows, "partitions": partitions})}


def wrote(partition: int, records: int, last_sequence: int | None = None) -> dict[str, Any]:
    return {
        "manifest": None,
        "topic": "t",
        "partition": partition,
        "records": records,
        "batches": 1,
        "size_bytes": 100,
        "base_offset": 0,
        "last_offset": records - 1,
        "last_sequence": records - 1 if last_sequence is None else last_sequence,
        "opened_ms": 5,
    }


def test_packed_and_acknowledged_records_add_up() -> None:
    account = settle_accounts([packed(0, 3, 2, 1), packed(1, 1, 1), wrote(0, 3), wrote(1, 1)])
    assert (account.rows, account.records) == (4, 4)


@pytest.mark.parametrize(
    ("reports", "reason"),
    [
        ([packed(0, 2, 2), wrote(0, 2), wrote(0, 2)], "two tasks wrote to t-0"),
        ([packed(0, 2, 2), packed(0, 2, 2), wrote(0, 4)], "counts twice"),
        ([packed(0, 3, 2), wrote(0, 2)], "3 rows came in"),
        ([packed(0, 2, 2), wrote(0, 1)], "acknowledged"),
        ([packed(0, 2, 2)], "acknowledged"),
        ([packed(0, 2, 2), wrote(0, 2, last_sequence=3)], "end at sequence 3"),
    ],
)
def test_reports_that_do_not_add_up_are_refused(reports: list[Any], reason: str) -> None:
    with pytest.raises(CountsDisagree, match=reason):
        settle_accounts(reports)


def read(*runs: tuple[int, int]) -> dict[str, Any]:
    """Which runs of packing tasks a writer has read."""
    return {"manifest": json.dumps({"runs": runs})}


def test_writers_that_have_read_the_same_runs_agree() -> None:
    reports = [packed(0, 1, 1), packed(1, 1, 1), wrote(0, 2), read((0, 5), (1, 6)), read((1, 6))]
    assert settle_accounts([*reports, read()]).rows == 2


@pytest.mark.parametrize("later", [((0, 5), (1, 9)), ((1, 9),)])
def test_writers_that_have_read_different_runs_of_a_packing_task_disagree(later: Any) -> None:
    """Rows that changed places between the runs: one is there twice, one is lost, counts match."""
    reports = [packed(0, 1, 1), packed(1, 1, 1), wrote(0, 2), read((0, 5), (1, 6))]
    with pytest.raises(CountsDisagree, match="task 1 of the packing stage ran as Spark's tasks 6"):
        settle_accounts([*reports, read(*later)])
