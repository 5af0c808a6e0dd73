"""Rows that keep their partition: no shuffle, no exchange, and no second writer."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from fencepost.base.ids import TopicPartition
from fencepost.client.blocking import Cluster
from fencepost.records.opened import Record
from fencepost.spark.sink.sink import TransactionalSink
from tests.spark.conftest import on_spark, read_values
from tests.spark.pipeline import Pipeline, finish, numbered
from tests.spark.transport.test_routes import routes  # noqa: F401 - a fixture.

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [*on_spark(), pytest.mark.usefixtures("routes")]

Shape = Callable[["DataFrame"], "DataFrame"]


def kept(rows: DataFrame) -> DataFrame:
    return rows.select("key", "value", "partition")


class CopyQuery:
    """A query from one topic to another with `preserve_partitioning`."""

    def __init__(
        self, spark: SparkSession, bootstrap: str, folder: Path, source: str, target: str
    ) -> None:
        self.spark, self.bootstrap, self.folder = spark, bootstrap, folder
        self.source, self.target = source, target

    def run(self, shape: Shape = kept, sink: Any = None, **options: Any) -> str | None:
        mine = sink or self.sink()
        reader = self.spark.readStream.format("fencepost").options(
            **{
                "kafka.bootstrap.servers": self.bootstrap,
                "subscribe": self.source,
                "startingOffsets": "earliest",
            }
            | options
        )
        query = (
            reader.load()
            .writeStream.foreachBatch(lambda df, batch_id: mine(shape(df), batch_id))
            .option("checkpointLocation", str(self.folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        return finish(query)

    def sink(self, **changes: Any) -> TransactionalSink:
        fields: dict[str, Any] = {"topic": self.target, "preserve_partitioning": True}
        return TransactionalSink(self.bootstrap, transactional_id=self.target, **(fields | changes))


@pytest.fixture
def copy(
    spark: SparkSession, bootstrap: str, tmp_path: Path, new_topic: Callable[..., str]
) -> CopyQuery:
    return CopyQuery(spark, bootstrap, tmp_path, new_topic(5, "in"), new_topic(5, "out"))


def fill(cluster: Cluster, topic: str, partitions: int = 5, count: int = 600) -> None:
    """Values that say where they are, with keys that Kafka would place elsewhere."""
    identity = cluster.init_producer_id(f"fill-{topic}")
    with cluster.writer(identity) as writer:
        for partition in range(partitions):
            records = [Record(key=b"same", value=b"%d:%06d" % (partition, n)) for n in range(count)]
            writer.write_records(TopicPartition(topic, partition), records)
        writer.flush()
    cluster.end_txn(identity, commit=True)


def contents(cluster: Cluster, topic: str, partitions: int = 5) -> dict[int, list[bytes | None]]:
    return {
        number: [record.value for record in cluster.records(TopicPartition(topic, number))]
        for number in range(partitions)
    }


def test_every_row_goes_to_the_partition_it_was_read_from_in_the_same_order(
    copy: CopyQuery,
    cluster: Cluster,
    routes: list[str],  # noqa: F811
) -> None:
    """Five partitions and two slots: the source packs them into two tasks."""
    fill(cluster, copy.source)
    assert copy.run() is None
    assert routes == ["preserved"]
    assert contents(cluster, copy.target) == contents(cluster, copy.source)
    # A small batch after it is collected, and placed by the same column.
    fill(cluster, copy.source, count=3)
    assert copy.run(maxOffsetsPerTrigger="8") is None
    assert "collected" in routes
    assert contents(cluster, copy.target) == contents(cluster, copy.source)


def test_after_a_failed_attempt_rows_keep_their_partition_through_the_shuffle(
    copy: CopyQuery,
    cluster: Cluster,
    routes: list[str],  # noqa: F811
) -> None:
    fill(cluster, copy.source)
    failures: list[int] = []

    def fail_once(step: str, batch_id: int) -> None:
        if step == "written" and not failures:
            failures.append(batch_id)
            from fencepost.spark.failures import PeerLost

            raise PeerLost("planned")

    assert copy.run(sink=copy.sink(on_step=fail_once)) is None
    assert routes == ["preserved", "shuffled"]
    assert contents(cluster, copy.target) == contents(cluster, copy.source)


@pytest.mark.parametrize("option", ["minPartitions", "maxRecordsPerPartition"])
def test_a_partition_that_several_tasks_read_is_refused(
    copy: CopyQuery, cluster: Cluster, new_topic: Callable[..., str], option: str
) -> None:
    copy.source, copy.target = new_topic(1, "in"), new_topic(1, "out")
    fill(cluster, copy.source, 1)
    options: dict[str, Any] = {option: 2 if option == "minPartitions" else 301}
    failure = copy.run(**options)
    assert failure is not None
    assert "tasks 0 and 1 both have rows for partition 0" in failure
    assert read_values(cluster, copy.target) == []


REFUSED: dict[str, tuple[Shape, str]] = {
    "shuffle": (lambda df: kept(df).repartition(2), "this plan shuffles its rows"),
    "aggregation": (
        lambda df: (
            df.groupBy("partition").count().selectExpr("partition", "cast(count AS string) value")
        ),
        "this plan shuffles its rows",
    ),
    "union": (lambda df: kept(df).union(kept(df)), "changes its number of partitions"),
    "coalesce": (lambda df: kept(df).coalesce(1), "changes its number of partitions"),
    "no column": (lambda df: df.select("key", "value"), "needs the source's column partition"),
    "no partition": (
        lambda df: df.selectExpr("key", "value", "CAST(NULL AS INT) AS partition"),
        "a row for topic .* has no partition",
    ),
    "one partition for all": (
        lambda df: df.selectExpr("key", "value", "0 AS partition"),
        "tasks 0 and 1 both have rows for partition 0",
    ),
    "no such partition": (
        lambda df: df.selectExpr("key", "value", "partition + 1 AS partition"),
        "wants partition 5 of topic",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_plan_that_does_not_keep_rows_where_they_were_read_is_refused(
    copy: CopyQuery, cluster: Cluster, name: str
) -> None:
    shape, reason = REFUSED[name]
    fill(cluster, copy.source, count=250)
    failure = copy.run(shape)
    assert failure is not None
    assert re.search(reason, failure)
    assert read_values(cluster, copy.target) == []


def test_topics_with_different_numbers_of_partitions_are_refused_also_while_it_runs(
    copy: CopyQuery, cluster: Cluster, bootstrap: str
) -> None:
    fill(cluster, copy.source, count=10)
    assert copy.run() is None
    grow(bootstrap, copy.source)
    fill(cluster, copy.source, 6, count=10)
    failure = copy.run()
    assert failure is not None
    assert f"the query reads 6 partitions, and topic {copy.target!r} has 5" in failure
    assert len(read_values(cluster, copy.target)) == 50
    grow(bootstrap, copy.target)
    assert copy.run() is None
    assert contents(cluster, copy.target, 6) == contents(cluster, copy.source, 6)


def grow(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for done in admin.create_partitions([NewPartitions(topic, 6)]).values():
        done.result()


def test_a_query_of_several_topics_or_of_files_is_refused(
    copy: CopyQuery, cluster: Cluster, new_topic: Callable[..., str], pipeline: Pipeline
) -> None:
    other = new_topic(5, "other")
    fill(cluster, copy.source, count=5)
    failure = copy.run(subscribe=f"{copy.source},{other}")
    assert failure is not None
    assert f"needs a query that reads one topic, and this one reads {copy.source}, {other}" in (
        failure
    )
    pipeline.add(numbered(0))
    pipeline.checkpoint = pipeline.folder / "checkpoint-of-files"
    failure = pipeline.run(pipeline.sink(preserve_partitioning=True))
    assert failure is not None
    assert "this one does not read a topic" in failure


def test_more_tasks_than_slots_go_through_the_shuffle_with_a_warning(
    copy: CopyQuery,
    cluster: Cluster,
    routes: list[str],  # noqa: F811
    caplog: pytest.LogCaptureFixture,
) -> None:
    fill(cluster, copy.source)
    assert copy.run(maxTasks="5") is None
    assert routes == ["shuffled"]
    assert "5 tasks have to write at once to preserve partitions, and 2 can run" in caplog.text
    assert contents(cluster, copy.target) == contents(cluster, copy.source)
