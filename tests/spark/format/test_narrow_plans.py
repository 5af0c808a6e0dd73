"""Goal: a stream does without a shuffle only if each of its tasks is certain to have a slot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from fencepost.base.failures import ConfigError
from fencepost.base.ids import TopicPartition
from fencepost.client.blocking import Cluster
from fencepost.records.opened import Record
from fencepost.spark import route, slots
from fencepost.spark.failures import SinkRefused
from fencepost.spark.format import route as route_module
from fencepost.spark.format.narrow_plans import has_slots
from tests.spark.conftest import on_spark, read_values
from tests.spark.format.routed import RoutedPipeline
from tests.spark.pipeline import finish

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    Shape = Callable[[DataFrame], DataFrame]

pytestmark = on_spark()

ROWS = 300


@pytest.fixture
def source(cluster: Cluster, new_topic: Callable[..., str]) -> str:
    """A topic of seven partitions, each with its rows in order."""
    topic = new_topic(7, "source")
    identity = cluster.init_producer_id(topic)
    with cluster.writer(identity) as writer:
        for partition in range(7):
            values = [b"%d-%03d" % (partition, number) for number in range(ROWS)]
            records = [Record(value=value, key=value[:1]) for value in values]
            writer.write_records(TopicPartition(topic, partition), records)
        writer.flush()
    cluster.end_txn(identity, commit=True)
    return topic


def stream(spark: SparkSession, bootstrap: str, topic: str, **options: object) -> DataFrame:
    return (
        spark.readStream.format("fencepost")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .options(**{name: str(value) for name, value in options.items()})
        .load()
    )


NARROW: dict[str, Shape] = {
    "unchanged": lambda df: df,
    "columns and rows": lambda df: df.where("offset > 5").selectExpr("key", "upper(value) value"),
    "a watermark": lambda df: df.withWatermark("timestamp", "1 minute"),
    "observed": lambda df: _observed(df),
    "exploded": lambda df: df.selectExpr("key", "explode(split(value, '-')) AS value"),
    "Arrow": lambda df: df.mapInArrow(lambda batches: batches, df.schema),
    "a view": lambda df: _viewed(df),
}
WIDE: dict[str, Shape] = {
    "repartitioned": lambda df: df.repartition(8),
    "without duplicates": lambda df: df.dropDuplicates(["value"]),
    "counted": lambda df: df.groupBy("value").count(),
    "two streams": lambda df: df.union(df),
    "joined": lambda df: df.join(df.sparkSession.range(3), df.partition == 1),
    "a subquery": lambda df: df.where("offset IN (SELECT id FROM range(9))"),
    "coalesced": lambda df: df.coalesce(1),
}


def _observed(df: DataFrame) -> DataFrame:
    from pyspark.sql.functions import count

    return df.observe("counted", count("*"))


def _viewed(df: DataFrame) -> DataFrame:
    df.createOrReplaceTempView("narrow")
    return df.sparkSession.sql("SELECT key, value FROM narrow WHERE key IS NOT NULL")


@pytest.mark.parametrize("name", NARROW)
def test_steps_that_keep_rows_in_their_tasks_need_no_shuffle(
    spark: SparkSession, bootstrap: str, source: str, name: str
) -> None:
    assert has_slots(NARROW[name](stream(spark, bootstrap, source)), 2)


@pytest.mark.parametrize("name", WIDE)
def test_all_other_steps_need_one(
    spark: SparkSession, bootstrap: str, source: str, name: str
) -> None:
    assert not has_slots(WIDE[name](stream(spark, bootstrap, source)), 2)


@pytest.mark.parametrize(
    ("options", "narrow"),
    [
        ({}, True),
        ({"maxTasks": 2}, True),
        ({"maxtasks": 3}, False),
        ({"minPartitions": 2}, False),
        ({"maxRecordsPerPartition": 10}, False),
    ],
)
def test_a_source_with_more_tasks_than_slots_needs_one(
    spark: SparkSession, bootstrap: str, source: str, options: dict[str, int], narrow: bool
) -> None:
    assert has_slots(stream(spark, bootstrap, source, **options), 2) == narrow


def test_a_source_of_another_package_needs_one(spark: SparkSession) -> None:
    assert not has_slots(spark.readStream.format("rate").load(), 2)


def note_steps(patch: pytest.MonkeyPatch) -> list[str]:
    """The names of the steps that are planned from now on."""
    steps: list[str] = []

    def noted(name: str) -> Callable[..., Any]:
        genuine = getattr(route_module, name)

        def step(*plan: Any) -> Any:
            steps.append(name)
            return genuine(*plan)

        return step

    for name in ("direct_step", "shuffled_step"):
        patch.setattr(route_module, name, noted(name))
    return steps


@pytest.mark.parametrize("shuffle", [None, True])
def test_seven_partitions_are_copied_once_and_in_order_by_two_tasks(
    spark: SparkSession,
    bootstrap: str,
    cluster: Cluster,
    source: str,
    tmp_path: Path,
    new_topic: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    shuffle: bool | None,
) -> None:
    steps = note_steps(monkeypatch)
    target = new_topic(5)
    copy = RoutedPipeline(spark, bootstrap, tmp_path, target)
    # Several batches, of which the first are of less than a thousand records.
    rows = stream(spark, bootstrap, source, maxOffsetsPerTrigger=700).select("key", "value")
    query = copy.start_routed(
        lambda _: rows, lambda df: route(df, bootstrap, topic=target, shuffle=shuffle)
    )
    assert finish(query) is None
    assert len(query.recentProgress) > 2
    assert steps == ["shuffled_step" if shuffle else "direct_step"]
    found = read_values(cluster, target)
    for partition in "0123456":
        mine = [value for value in found if value.startswith(partition)]
        assert mine == [f"{partition}-{number:03d}" for number in range(ROWS)]


def test_a_session_that_encrypts_is_not_bypassed(
    spark: SparkSession, bootstrap: str, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What this returns for such a session is a matter of its own tests.
    monkeypatch.setattr(route_module, "exchange_hosts", lambda *_: None)
    steps = note_steps(monkeypatch)
    rows = stream(spark, bootstrap, source).select("key", "value")
    with pytest.raises(SinkRefused, match="shuffle=False sends rows from task to task"):
        route(rows, bootstrap, topic=source, shuffle=False)
    route(rows, bootstrap, topic=source)
    assert steps == ["shuffled_step"]


def test_on_spark_connect_a_shuffle_cannot_be_left_out(bootstrap: str) -> None:
    remote: Any = SimpleNamespace(sparkSession=object())
    with pytest.raises(ConfigError, match="shuffle=False is not possible on Spark Connect"):
        route(remote, bootstrap, topic="refunds", shuffle=False)


def test_if_the_source_cannot_be_told_the_slots_there_is_a_shuffle(
    spark: SparkSession, bootstrap: str, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(slots, "_announced", {})
    monkeypatch.setattr(slots, "_write", fail)
    steps = note_steps(monkeypatch)
    route(stream(spark, bootstrap, source).select("key", "value"), bootstrap, topic=source)
    assert steps == ["shuffled_step"]
