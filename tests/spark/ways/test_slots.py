"""The shuffle brings every row to its slot, also without `repartitionById`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fencepost.spark.ways.slots import bring_to_slots, keys_of_slots, spark_hash
from tests.spark.conftest import on_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = on_spark()


class WithoutId:
    """A DataFrame of Spark 4.0."""

    def __init__(self, df: Any) -> None:
        self._df = df

    def repartition(self, *given: Any) -> Any:
        return self._df.repartition(*given)


@pytest.mark.parametrize("is_old", [False, True], ids=["as it is", "as on 4.0"])
@pytest.mark.parametrize("slots", [1, 3, 7])
def test_every_row_comes_to_its_slot(spark: SparkSession, slots: int, is_old: bool) -> None:
    rows: Any = spark.range(50).selectExpr(f"CAST(id % {slots} AS INT) AS slot")
    routed = bring_to_slots(WithoutId(rows) if is_old else rows, slots)  # type: ignore[arg-type]
    found = routed.selectExpr("slot", "spark_partition_id() AS task").collect()
    assert len(found) == 50
    assert all(row["slot"] == row["task"] for row in found)


def test_the_hash_is_sparks(spark: SparkSession) -> None:
    numbers = [0, 1, 41, 2**31 - 1, 123_456_789]
    asked = ", ".join(f"hash(CAST({number} AS INT))" for number in numbers)
    assert list(spark.sql(f"SELECT {asked}").first() or ()) == [spark_hash(n) for n in numbers]


def test_each_of_many_slots_has_a_key_of_its_own() -> None:
    keys = keys_of_slots(500)
    assert len(set(keys)) == 500
    assert [spark_hash(key) % 500 for key in keys] == list(range(500))
