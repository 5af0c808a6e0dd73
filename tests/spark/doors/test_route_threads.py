"""Goal: `format("fencepost")` can be written from any thread that calls `route()`."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest

from fencepost.client.blocking import Cluster
from fencepost.spark import route
from tests.spark.conftest import on_spark, read_values
from tests.spark.pipeline import add_files, finish

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = on_spark()

T = TypeVar("T")


def in_new_thread(call: Callable[[], T]) -> T:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


def one_row(spark: SparkSession, value: str) -> DataFrame:
    # Not createDataFrame, which would make the session the thread's active one.
    return spark.sql(f"SELECT '{value}' AS value")


def save(rows: DataFrame, bootstrap: str) -> None:
    writer = rows.write.format("fencepost").mode("append")
    writer.option("kafka.bootstrap.servers", bootstrap).save()


def test_several_threads_write_at_the_same_time(
    spark: SparkSession, bootstrap: str, cluster: Cluster, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()

    def write(number: int) -> None:
        save(route(one_row(spark, f"{number}"), bootstrap, topic=topic), bootstrap)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(write, range(6)))
    assert sorted(read_values(cluster, topic)) == [f"{number}" for number in range(6)]


def test_a_thread_that_has_not_called_route_does_not_find_the_format(
    spark: SparkSession, bootstrap: str, cluster: Cluster, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    rows = route(one_row(spark, "a"), bootstrap, topic=topic)
    with pytest.raises(Exception, match="DATA_SOURCE_NOT_FOUND"):
        in_new_thread(lambda: save(rows, bootstrap))
    assert read_values(cluster, topic) == []
    save(rows, bootstrap)
    assert read_values(cluster, topic) == ["a"]


def test_a_stream_can_be_routed_and_started_in_another_thread(
    spark: SparkSession,
    bootstrap: str,
    cluster: Cluster,
    tmp_path: Path,
    new_topic: Callable[..., str],
) -> None:
    topic = new_topic()
    add_files(tmp_path, ["a"])
    lines = spark.readStream.text(str(tmp_path / "in"))

    def run(name: str, routed: DataFrame) -> str | None:
        writer = routed.writeStream.format("fencepost").trigger(availableNow=True)
        writer.option("kafka.bootstrap.servers", bootstrap).option("transactionalId", name)
        return finish(writer.option("checkpointLocation", str(tmp_path / name)).start())

    def route_and_run() -> str | None:
        return run(f"{topic}-1", route(lines, bootstrap, topic=topic))

    assert in_new_thread(route_and_run) is None
    assert read_values(cluster, topic) == ["a"]


def test_a_thread_with_an_active_session_keeps_it(
    spark: SparkSession, bootstrap: str, new_topic: Callable[..., str]
) -> None:
    from pyspark.sql import SparkSession as Session

    topic, other = new_topic(), spark.newSession()

    def write() -> tuple[object, ...]:
        other.createDataFrame([("x",)], "value string")  # As Spark does, it makes this one active.
        before = Session.getActiveSession()
        save(route(one_row(spark, "a"), bootstrap, topic=topic), bootstrap)
        return before, Session.getActiveSession()

    try:
        before, after = in_new_thread(write)
        assert before is after
    finally:
        spark.createDataFrame([("x",)], "value string")
