"""Spark's own counts of a batch, which users compare with the output."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from fencepost.client.blocking import Cluster
from tests.spark import chaos
from tests.spark.conftest import on_spark, read_values
from tests.spark.pipeline import Pipeline, Sink, finish, numbered

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = on_spark()


def observed(lines: DataFrame) -> DataFrame:
    from pyspark.sql import functions

    rows = lines.selectExpr("value AS key", "value")
    return rows.observe("rows", functions.count(functions.lit(1)).alias("n"))


def counts(pipeline: Pipeline, sink: Sink) -> list[tuple[int, int]]:
    """Spark's counts of each batch: source rows, and rows of an `observe`."""
    query = pipeline.start(sink, observed)
    assert finish(query) is None
    return [
        (progress["numInputRows"], progress["observedMetrics"]["rows"]["n"])
        for progress in query.recentProgress
        if progress["numInputRows"]
    ]


def test_a_small_batch_followed_by_a_larger_one_is_counted_once(
    pipeline: Pipeline, cluster: Cluster
) -> None:
    pipeline.add(numbered(0), numbered(1, 3_000), numbered(2), numbered(3))
    sink = pipeline.sink()

    def look_first(df: DataFrame, batch_id: int) -> None:
        assert not df.isEmpty()
        sink(df, batch_id)

    assert counts(pipeline, look_first) == [(40, 40), (3_000, 3_000), (40, 40), (40, 40)]
    assert len(read_values(cluster, pipeline.topic)) == 3_120


def test_rows_of_a_failed_attempt_are_counted_once(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    chaos.in_tasks(monkeypatch, chaos.FailOnce(str(pipeline.folder / "failed-once")))
    pipeline.add(numbered(0), numbered(1))
    assert counts(pipeline, pipeline.sink()) == [(40, 40), (40, 40)]


def test_rows_read_from_a_cache_stay_counted(
    pipeline: Pipeline, cluster: Cluster, new_topic: Callable[..., str]
) -> None:
    other = new_topic(1)
    pipeline.add(numbered(0), numbered(1, 3_000))
    sink = pipeline.sink()

    def persist(df: DataFrame, batch_id: int) -> None:
        df.persist()
        assert not df.isEmpty()
        sink.write({pipeline.topic: df, other: df.where("value LIKE '%7'")}, batch_id)
        df.unpersist()

    assert counts(pipeline, persist) == [(40, 40), (3_000, 3_000)]
    assert len(read_values(cluster, pipeline.topic)) == 3_040
    assert len(read_values(cluster, other)) == 4 + 300


def test_an_unrelated_cache_does_not_make_rows_count_twice(pipeline: Pipeline) -> None:
    prices = pipeline.spark.createDataFrame([("a", 1)], "name string, price int").persist()
    assert prices.count() == 1
    pipeline.add(numbered(0), numbered(1), numbered(2, 3_000))
    sink = pipeline.sink()

    def join(df: DataFrame, batch_id: int) -> None:
        sink(df.crossJoin(prices).select("key", "value"), batch_id)

    assert counts(pipeline, join) == [(40, 40), (40, 40), (3_000, 3_000)]
    prices.unpersist()


@pytest.mark.parametrize("is_looked_at", [False, True])
def test_rows_stay_counted_if_the_result_of_a_shuffle_is_reused(
    pipeline: Pipeline, is_looked_at: bool
) -> None:
    pipeline.add(numbered(0), numbered(1), numbered(2, 1_500))
    sink = pipeline.sink()

    def count_words(lines: DataFrame) -> DataFrame:
        words = lines.groupBy("value").count()
        return words.selectExpr("value AS key", "CAST(count AS STRING) AS value")

    def write(df: DataFrame, batch_id: int) -> None:
        assert not (is_looked_at and df.isEmpty())
        sink(df, batch_id)

    query = pipeline.start(write, count_words, "update")
    assert finish(query) is None
    found = [
        (progress["numInputRows"], progress["stateOperators"][0]["numRowsUpdated"])
        for progress in query.recentProgress
        if progress["stateOperators"][0]["numRowsUpdated"]
    ]
    assert found == [(40, 40), (40, 40), (1_500, 1_500)]


def collected(df: DataFrame) -> DataFrame:
    return df.sparkSession.createDataFrame(df.collect(), df.schema)


def checkpointed(df: DataFrame) -> DataFrame:
    return df.localCheckpoint()


def persisted(df: DataFrame) -> DataFrame:
    df.persist()
    assert df.count()
    return df


def persisted_as_an_rdd(df: DataFrame) -> DataFrame:
    again = df.rdd.persist().toDF(df.schema)
    assert again.count()
    return again


def looked_at_as_an_rdd(df: DataFrame) -> DataFrame:
    again = df.rdd.toDF(df.schema)
    assert again.count()
    return again


@pytest.mark.parametrize(
    "taken",
    [collected, checkpointed, persisted, persisted_as_an_rdd, looked_at_as_an_rdd],
)
def test_rows_that_the_function_materialized_are_counted_once(
    pipeline: Pipeline, taken: Callable[[DataFrame], DataFrame]
) -> None:
    pipeline.add(numbered(0), numbered(1), numbered(2, 1_500))
    sink = pipeline.sink()
    found = counts(pipeline, lambda df, batch_id: sink(taken(df), batch_id))
    assert found == [(40, 40), (40, 40), (1_500, 1_500)]


def test_a_source_read_by_several_parts_is_counted_once(
    pipeline: Pipeline, cluster: Cluster, new_topic: Callable[..., str]
) -> None:
    other, fixed = new_topic(1), new_topic(1)
    pipeline.add(numbered(0), numbered(1, 3_000), numbered(2))
    sink = pipeline.sink()

    def write(df: DataFrame, batch_id: int) -> None:
        constant: Any = pipeline.spark.createDataFrame([("x",)], "value string")
        parts = {pipeline.topic: df, other: df.limit(5), fixed: constant}
        sink.write(parts, batch_id)

    found = counts(pipeline, write)
    assert [rows for rows, _ in found] == [40, 3_000, 40]
    for topic, count in [(pipeline.topic, 3_080), (other, 15), (fixed, 3)]:
        assert len(read_values(cluster, topic)) == count


@pytest.mark.parametrize("first", [0, 1])
def test_an_observation_in_the_function_sees_all_rows_of_its_batch(
    pipeline: Pipeline, first: int
) -> None:
    from pyspark.sql import Observation, functions

    pipeline.add(numbered(0), numbered(1), numbered(2, 3_000))
    sink, seen = pipeline.sink(), []

    def observe(df: DataFrame, batch_id: int) -> None:
        if batch_id < first:
            return sink(df, batch_id)
        observation = Observation()
        sink(df.observe(observation, functions.count(functions.lit(1)).alias("n")), batch_id)
        seen.append(observation.get["n"])
        return None

    assert pipeline.run(observe) is None
    assert seen == [40, 40, 3_000][first:]
