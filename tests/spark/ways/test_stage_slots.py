"""The shuffle brings every row to its slot, also without `repartitionById`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fencepost.spark.ways import stage as slots_module
from fencepost.spark.ways.stage import bring_to_slots, keys_of_slots
from tests.spark.conftest import on_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = on_spark()


class WithoutId:
    """A DataFrame of Spark 4.0."""

    def __init__(self, df: Any) -> None:
        self._df = df
        self.sparkSession = df.sparkSession

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


@pytest.mark.parametrize("tried", [16, 1], ids=["enough", "too few at first"])
def test_each_of_many_slots_has_a_key_of_its_own(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tried: int
) -> None:
    monkeypatch.setattr(slots_module, "_keys", {})
    monkeypatch.setattr(slots_module, "_TRIED_PER_SLOT", tried)
    keys = keys_of_slots(spark, 500)
    assert len(set(keys)) == 500
    assert min(keys) == 0
    rows = spark.createDataFrame([(key,) for key in keys], "key INT")
    assert [slot for (slot,) in rows.selectExpr("pmod(hash(key), 500)").collect()] == [*range(500)]


def test_spark_is_asked_once_for_each_number_of_slots(spark: SparkSession) -> None:
    keys = keys_of_slots(spark, 11)
    nobody: Any = None
    assert keys_of_slots(nobody, 11) == keys
