"""The reports of tasks: an absent one is a failure, never a zero."""

from __future__ import annotations

import pytest

from fencepost.spark.failures import CountsDisagree

copying = pytest.importorskip("fencepost.spark.postgres.copying")


def test_one_report_of_each_partition_is_accepted_in_any_order() -> None:
    assert copying.checked_reports([(1, 71, 5), (0, 70, 0)], 2) == {70: 0, 71: 5}
    assert copying.checked_reports([], 0) == {}


@pytest.mark.parametrize(
    "reports", [[], [(0, 70, 1)], [(0, 70, 1), (0, 71, 1)], [(0, 70, 1), (1, 71, 1), (2, 72, 1)]]
)
def test_a_missing_or_second_report_is_a_failure(reports: list[tuple[int, int, int]]) -> None:
    with pytest.raises(CountsDisagree, match="2 tasks ran"):
        copying.checked_reports(reports, 2)
