"""A new checkpoint continues where the output ends, or is refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="the spark extra is not installed")

from fencepost.base.ids import TopicPartition
from fencepost.client.blocking import Cluster
from fencepost.records.opened import Record
from fencepost.spark.doors.foreach_batch import TransactionalSink
from fencepost.spark.ledger.entry import group_of, starting_offsets
from fencepost.spark.ledger.reader import read_ledger_view
from tests.spark.conftest import on_spark, read_values
from tests.spark.pipeline import failed, finish

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = on_spark()


class TakenOverQuery:
    """A query from one topic to another, whose checkpoint may be lost."""

    def __init__(
        self, spark: SparkSession, cluster: Cluster, folder: Path, source: str, target: str
    ) -> None:
        self.spark, self.cluster, self.folder = spark, cluster, folder
        self.source, self.target = source, target
        self.bootstrap = str(cluster.options.bootstrap[0])

    def add(self, *values: str, partition: int = 0) -> None:
        with self.cluster.writer(self.cluster.init_producer_id(None)) as writer:
            records = [Record(key=b"k", value=value.encode()) for value in values]
            writer.write_records(TopicPartition(self.source, partition), records)
            writer.flush()

    def lose_checkpoint(self) -> None:
        shutil.rmtree(self.folder / "checkpoint")

    def run(
        self,
        start: str = "earliest",
        shape: Callable[[DataFrame], DataFrame] | None = None,
        format_name: str = "fencepost",
        **changes: Any,
    ) -> str | None:
        sink = TransactionalSink(
            self.bootstrap, transactional_id=self.target, topic=self.target, **changes
        )
        options = {
            "kafka.bootstrap.servers": self.bootstrap,
            "subscribe": self.source,
            "startingOffsets": start,
            "kafka.group.id": group_of(self.target),
        }
        rows = self.spark.readStream.format(format_name).options(**options).load()
        shaped = shape(rows) if shape else rows.select("key", "value")
        return finish(
            shaped.writeStream.foreachBatch(sink)
            .outputMode("update")
            .option("checkpointLocation", str(self.folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )

    @property
    def output(self) -> list[str]:
        return sorted(read_values(self.cluster, self.target))


@pytest.fixture
def copy(
    spark: SparkSession, cluster: Cluster, tmp_path: Path, new_topic: Callable[..., str]
) -> TakenOverQuery:
    return TakenOverQuery(spark, cluster, tmp_path, new_topic(1, "in"), new_topic(1, "out"))


def test_stale_group_offsets_are_not_trusted(copy: TakenOverQuery) -> None:
    copy.add("a")
    assert copy.run() is None
    copy.add("b")
    assert copy.run(commit_source_offsets=False) is None
    old = read_ledger_view(copy.cluster, copy.target).entry
    assert old is not None
    copy.lose_checkpoint()
    copy.add("c")
    failure = failed(copy.run("committed"))
    assert f"belongs to query {old.query_id}" in failure
    assert copy.output == ["a", "b"]
    # The refusal says where to start, and which query to name.
    copy.lose_checkpoint()
    assert f"startingOffsets='{starting_offsets(old)}'" in failure
    assert f'take_over="{old.query_id}"' in failure
    assert copy.run(starting_offsets(old), take_over=old.query_id) is None
    assert copy.output == ["a", "b", "c"]


def counted(rows: DataFrame) -> DataFrame:
    return (
        rows.groupBy("value")
        .count()
        .selectExpr("value AS key", "concat(cast(value AS string), '=', count) AS value")
    )


def test_a_stateful_query_continues_with_empty_state_only_if_allowed(copy: TakenOverQuery) -> None:
    copy.add("x", "x")
    assert copy.run(shape=counted) is None
    assert copy.output == ["x=2"]
    entry = read_ledger_view(copy.cluster, copy.target).entry
    assert entry is not None
    assert entry.is_stateful
    copy.add("x")
    copy.lose_checkpoint()
    failure = failed(copy.run("committed", counted, take_over=entry.query_id))
    assert "with empty state" in failure
    assert "allow_empty_state=True" in failure
    assert copy.output == ["x=2"]
    copy.lose_checkpoint()
    assert copy.run("committed", counted, allow_empty_state=True) is None
    assert copy.output == ["x=1", "x=2"]


STATEFUL: dict[str, Callable[[DataFrame], DataFrame]] = {
    "an aggregation": lambda rows: rows.groupBy("value").count(),
    "a window": lambda rows: rows.groupBy("timestamp").count().select("count"),
    "distinct": lambda rows: rows.select("value").distinct(),
    "duplicates": lambda rows: rows.dropDuplicates(["value"]).select("value"),
    "duplicates within a watermark": lambda rows: rows.withWatermark(
        "timestamp", "1 second"
    ).dropDuplicatesWithinWatermark(["value"]),
    "two streams": lambda rows: rows.alias("a").join(rows.alias("b"), "value").select("value"),
    "a limit": lambda rows: rows.limit(5),
    "a state below": lambda rows: rows.groupBy("value").count().where("count > 1"),
}
STATELESS: dict[str, Callable[[DataFrame], DataFrame]] = {
    "a filter": lambda rows: rows.where("value IS NOT NULL").select("value"),
    "a watermark": lambda rows: rows.withWatermark("timestamp", "1 second"),
    "a static table": lambda rows: rows.join(
        rows.sparkSession.range(1).groupBy("id").count().limit(3), rows["value"] >= 0
    ),
    "a union": lambda rows: rows.union(rows),
}


@pytest.mark.parametrize("name", [*STATEFUL, *STATELESS])
def test_the_plan_shows_whether_a_query_is_stateful(spark: SparkSession, name: str) -> None:
    from fencepost.spark.engine.micro_batch import MicroBatch

    rows = spark.readStream.format("rate").load()
    plan: Any = (STATEFUL | STATELESS)[name](rows)._jdf
    analyzed = plan.queryExecution().analyzed()
    engine = SimpleNamespace(logicalPlan=lambda: analyzed)
    assert MicroBatch("q", "r", 0, engine).is_stateful is (name in STATEFUL)


def test_without_a_plan_it_is_unknown_whether_a_query_is_stateful() -> None:
    from fencepost.spark.engine.micro_batch import MicroBatch

    assert MicroBatch("q", "r", 0).is_stateful is None
    assert MicroBatch("q", "r", 0, SimpleNamespace()).is_stateful is None
