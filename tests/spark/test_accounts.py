from __future__ import annotations

import pytest

pytest.importorskip("pyarrow", reason="the spark extra is not installed")

from fencepost.spark.accounts import settle_accounts
from fencepost.spark.failures import CountsDisagree


def manifest(number: int) -> dict[str, str]:
    return {"manifest": f'{{"map": {number}, "rows": 0, "lanes": []}}'}


def test_packing_tasks_are_heard_in_any_order() -> None:
    assert settle_accounts([manifest(1), manifest(0)]).rows == 0


def test_a_packing_task_that_nobody_heard_of_is_missed() -> None:
    """A shuffle block that is lost takes the manifest with it, and all rows of its task if they were in it."""
    with pytest.raises(CountsDisagree, match=r"only \[0, 2\] were heard of"):
        settle_accounts([manifest(0), manifest(2)])
