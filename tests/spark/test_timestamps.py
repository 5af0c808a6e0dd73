"""Goal: the column `timestamp` becomes the time of the records where the user asks for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fencepost.base.ids import TopicPartition
from fencepost.client.blocking import Cluster
from fencepost.records.opened import Record
from fencepost.spark.failures import SinkRefused
from tests.spark.conftest import on_spark
from tests.spark.pipeline import finish

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = on_spark()

HOUR_MS = 3_600_000
THEN_MS = int(time.time() * 1000) - 5 * HOUR_MS
"""Long enough ago to be told from now, and too recent for retention."""


def times_of(cluster: Cluster, topic: str) -> dict[str, int]:
    return {
        (record.value or b"").decode(): record.timestamp_ms
        for record in cluster.records(TopicPartition(topic, 0))
    }


def fill(cluster: Cluster, topic: str, first: int, count: int) -> dict[str, int]:
    """Writes records whose times do not follow their order."""
    times = {f"{n}": THEN_MS + (n * 7 % 10) * 1_000 + n % 3 for n in range(first, first + count)}
    with cluster.writer(cluster.init_producer_id(None)) as writer:
        records = [Record(timestamp_ms=at, value=value.encode()) for value, at in times.items()]
        writer.write_records(TopicPartition(topic, 0), records)
        writer.flush()
    return times


class Copies:
    """Copies one topic to another, in several ways."""

    def __init__(
        self, spark: SparkSession, bootstrap: str, folder: Path, topics: tuple[str, str]
    ) -> None:
        self.spark, self.bootstrap, self.folder = spark, bootstrap, folder
        self.source, self.target = topics

    def options(self) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": self.bootstrap,
            "subscribe": self.source,
            "startingOffsets": "earliest",
        }

    def rows(self) -> DataFrame:
        reader = self.spark.readStream.format("fencepost").options(**self.options())
        return reader.load().select("value", "timestamp")

    def run_sink(self, **given: Any) -> str | None:
        from fencepost.spark import TransactionalSink

        name = None if "guarantee" in given else self.target
        fields = {"transactional_id": name, "topic": self.target, "write_timestamps": True}
        sink = TransactionalSink(self.bootstrap, **fields | given)
        writer = self.rows().writeStream.foreachBatch(sink).trigger(availableNow=True)
        return finish(writer.option("checkpointLocation", str(self.folder / "sink")).start())

    def run_format(self, **given: Any) -> str | None:
        from fencepost.spark import route

        routed = route(
            self.rows(), self.bootstrap, topic=self.target, write_timestamps=True, **given
        )
        writer = routed.writeStream.format("fencepost").trigger(availableNow=True)
        writer.option("kafka.bootstrap.servers", self.bootstrap)
        writer.option("transactionalId", f"{self.target}-format")
        return finish(writer.option("checkpointLocation", str(self.folder / "format")).start())

    def write(self, rows: DataFrame, **given: Any) -> None:
        from fencepost.spark import route

        routed = route(rows, self.bootstrap, topic=self.target, **given)
        writer = routed.write.format("fencepost").mode("append")
        writer.option("kafka.bootstrap.servers", self.bootstrap).save()


@pytest.fixture
def copies(
    spark: SparkSession, bootstrap: str, tmp_path: Path, new_topic: Callable[..., str]
) -> Copies:
    return Copies(spark, bootstrap, tmp_path, (new_topic(1, "in"), new_topic(1, "out")))


def test_the_sink_writes_the_times_of_the_rows(copies: Copies, cluster: Cluster) -> None:
    expected = fill(cluster, copies.source, 0, 30)
    assert copies.run_sink() is None
    # The second batch of a small query is written by the driver.
    expected |= fill(cluster, copies.source, 30, 5)
    assert copies.run_sink() is None
    assert times_of(cluster, copies.target) == expected


def test_the_stream_format_writes_the_times_of_the_rows(copies: Copies, cluster: Cluster) -> None:
    expected = fill(cluster, copies.source, 0, 30)
    assert copies.run_format() is None
    assert times_of(cluster, copies.target) == expected


def test_without_the_option_the_column_is_ignored_and_null_is_the_time_of_the_write(
    copies: Copies, cluster: Cluster
) -> None:
    rows = copies.spark.sql(
        f"SELECT 'past' AS value, timestamp_micros({THEN_MS}999) AS timestamp "
        "UNION ALL SELECT 'now', NULL"
    )
    copies.write(rows)
    assert min(times_of(cluster, copies.target).values()) > THEN_MS + HOUR_MS
    copies.write(rows, write_timestamps=True)
    found = times_of(cluster, copies.target)
    assert found["past"] == THEN_MS
    assert found["now"] > THEN_MS + HOUR_MS


def test_a_time_that_a_record_cannot_have_is_refused(copies: Copies, cluster: Cluster) -> None:
    rows = copies.spark.sql("SELECT 'x' AS key, 'x' AS value, timestamp_millis(-1) AS timestamp")
    with pytest.raises(Exception, match="has a timestamp before 1970"):
        copies.write(rows, write_timestamps=True)
    text = copies.spark.sql("SELECT 'x' AS value, 'noon' AS timestamp")
    with pytest.raises(SinkRefused, match="'timestamp' is string, and must be timestamp"):
        copies.write(text, write_timestamps=True)
    assert times_of(cluster, copies.target) == {}
    copies.write(text)
    assert list(times_of(cluster, copies.target)) == ["x"]
