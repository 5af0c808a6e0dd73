"""Goal: what a user does after `route()` means what it says, or is refused with nothing visible.

Method: each step runs after `route()` on real Spark, in a batch write of many rows to three
partitions, and then the same rows are written without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fencepost.client.blocking import Cluster
from fencepost.spark import route
from tests.spark.conftest import on_spark, read_values
from tests.spark.doors.routed import RoutedPipeline
from tests.spark.pipeline import numbered

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

pytestmark = on_spark()

VALUES = [f"{n:03}" for n in range(200)]


def without_trailer(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.filter(batch.column("attempt").is_null())


REFUSED: dict[str, Callable[[DataFrame], DataFrame]] = {
    "filter on a column": lambda df: df.where("topic IS NULL OR partition > 0"),
    "filter out all": lambda df: df.where("slot > 99"),
    "limit": lambda df: df.limit(1),
    "sort": lambda df: df.sort("ordinal"),
    "sort in partitions": lambda df: df.sortWithinPartitions("ordinal"),
    "repartition": lambda df: df.repartition(2),
    "repartition in a barrier": lambda df: df.repartition(2).mapInArrow(
        lambda batches: batches, df.schema, barrier=True
    ),
    "dropDuplicates": lambda df: df.dropDuplicates(),
    "fewer columns": lambda df: df.drop("payload"),
    "columns in another order": lambda df: df.select(*reversed(df.columns)),
    "without the trailer": lambda df: df.mapInArrow(without_trailer, df.schema),
}
"""`test_routed_task.py` has every change that a step could make to the rows."""

SAME: tuple[Callable[[DataFrame], DataFrame], ...] = (
    lambda df: df.where("slot >= 0 OR slot IS NULL"),
    lambda df: df.withColumn("more", df.slot).drop("more"),
    lambda df: df.alias("routed"),
)


class Table:
    """Writes the same rows to one topic."""

    def __init__(self, spark: SparkSession, bootstrap: str, topic: str) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.rows = spark.createDataFrame([(value, value) for value in VALUES], ["key", "value"])

    def routed(self, **more: Any) -> DataFrame:
        return route(self.rows, self.bootstrap, topic=self.topic, **more)

    def write(self, df: DataFrame, version: int = 1) -> None:
        writer = df.write.format("fencepost").mode("append")
        options = {"txnAppId": self.topic, "txnVersion": str(version)}
        writer.option("kafka.bootstrap.servers", self.bootstrap).options(**options).save()


@pytest.fixture
def table(spark: SparkSession, bootstrap: str, new_topic: Callable[..., str]) -> Table:
    return Table(spark, bootstrap, new_topic())


def test_a_step_that_changes_what_is_written_is_refused_and_the_next_write_works(
    table: Table, cluster: Cluster
) -> None:
    for step, change in REFUSED.items():
        with pytest.raises(Exception, match=r"route\(") as refused:
            table.write(change(table.routed()))
        assert "Nothing " in str(refused.value), step
        assert read_values(cluster, table.topic) == [], step
    table.write(table.routed())
    assert sorted(read_values(cluster, table.topic)) == VALUES


def test_a_step_that_changes_nothing_is_allowed(table: Table, cluster: Cluster) -> None:
    """All of them, one after the other."""
    changed = table.routed()
    for change in SAME:
        changed = change(changed)
    table.write(changed)
    assert sorted(read_values(cluster, table.topic)) == VALUES


def test_spark_itself_refuses_a_barrier_stage_with_other_tasks(
    table: Table, cluster: Cluster, new_topic: Callable[..., str]
) -> None:
    # One task each: two DataFrames with more would wait for slots that never come (SPARK-24819).
    one = table.routed(tasks=1)
    other = route(table.rows, table.bootstrap, topic=new_topic(), tasks=1)
    for changed in (one.union(one), one.union(other), table.routed(tasks=2).coalesce(1)):
        with pytest.raises(Exception, match="SPARK-24820"):
            table.write(changed)
        assert read_values(cluster, table.topic) == []
    table.write(table.routed())
    assert sorted(read_values(cluster, table.topic)) == VALUES


def test_a_cached_dataframe_is_written_once_or_refused(table: Table, cluster: Cluster) -> None:
    cached = table.routed().persist()
    try:
        cached.count()
        with pytest.raises(Exception, match=r"route\(\) must be the last step.*as from a cache"):
            table.write(cached)
        assert read_values(cluster, table.topic) == []
    finally:
        cached.unpersist()
    table.write(cached)
    assert sorted(read_values(cluster, table.topic)) == VALUES


def test_a_dataframe_that_says_no_rows_writes_none(table: Table, cluster: Cluster) -> None:
    for version, empty in enumerate((table.routed().limit(0), table.routed().where("false"))):
        table.write(empty, version)
        assert read_values(cluster, table.topic) == []


STREAM_STEPS: dict[str, Callable[[DataFrame], DataFrame]] = {
    "filter": lambda df: df.where("topic IS NULL OR partition > 0"),
    "limit(0)": lambda df: df.limit(0),
    "repartition": lambda df: df.repartition(2),
    "dropDuplicates": lambda df: df.dropDuplicates(),
}


def test_a_step_after_route_in_a_stream_is_refused_and_the_query_continues_without_it(
    spark: SparkSession,
    bootstrap: str,
    cluster: Cluster,
    tmp_path: Path,
    new_topic: Callable[..., str],
) -> None:
    routed = RoutedPipeline(spark, bootstrap, tmp_path, new_topic())
    routed.add(numbered(0))
    for step, change in STREAM_STEPS.items():
        # Steps with a state are part of a checkpoint.
        routed.checkpoint = tmp_path / step
        failure = routed.run_routed(routing=lambda rows, change=change: change(routed.route(rows)))
        assert failure is not None, step
        assert "route() must be the last step" in failure
        assert read_values(cluster, routed.topic) == [], step
    routed.checkpoint = tmp_path / "without"
    assert routed.run_routed() is None
    assert sorted(read_values(cluster, routed.topic)) == sorted(numbered(0))
