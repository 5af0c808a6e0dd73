"""Spark's own count of a batch's rows, which users compare with the output."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencepost.client.blocking import Cluster
from tests.spark.conftest import on_spark, read_values
from tests.spark.pipeline import Pipeline, finish, numbered

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = on_spark()


def test_an_observation_in_the_function_sees_all_rows_of_its_batch(
    pipeline: Pipeline, cluster: Cluster
) -> None:
    from pyspark.sql import Observation, functions

    pipeline.add(numbered(0), numbered(1, 60), numbered(2, 90))
    sink, seen = pipeline.sink(), []

    def write(df: DataFrame, batch_id: int) -> None:
        observation = Observation()
        count = functions.count(functions.lit(1)).alias("n")
        sink(df.observe(observation, count), batch_id)
        seen.append(observation.get["n"])

    query = pipeline.start(write)
    assert finish(query) is None
    assert seen == [40, 60, 90]
    counted = [p["numInputRows"] for p in query.recentProgress if p["numInputRows"]]
    assert counted == [40, 60, 90], "each plan ran once"
    assert len(read_values(cluster, pipeline.topic)) == 190
