from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the spark extra is not installed")

from fencepost.spark.failures import CountsDisagree
from fencepost.spark.transport.accounts import settle_accounts


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
