"""Goal: whatever happens to executors and their files, a batch is written once.

Method: Spark with executors as processes. They are killed in mid-write, their shuffle files are
deleted between the two stages, and one is cut off and wakes up when the next batch is being
written. A kill meets both routes and both protocols; each lost executor costs a JVM. What was cut
off is refused by its epoch, on any route (`test_a_late_executor_cannot_write` shows it for TV2).
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fencepost.client.blocking import Cluster
from tests.spark import chaos
from tests.spark.conftest import on_spark, read_values
from tests.spark.doors.routed import RoutedPipeline
from tests.spark.pipeline import Pipeline, finish, numbered

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = on_spark(300)


@pytest.fixture
def pipeline(
    spark_with_executors: SparkSession,
    bootstrap: str,
    tmp_path: Path,
    new_topic: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> Pipeline:
    """Eight partitions for two executors, so that each has something left when it has written."""
    chaos.speak_by_name(monkeypatch)
    return Pipeline(spark_with_executors, bootstrap, tmp_path, new_topic(8))


def in_two_tasks(lines: DataFrame) -> DataFrame:
    """Rows for both executors, so that each writes what the other has packed."""
    return lines.selectExpr("value AS key", "value").repartition(2)


def prepare(
    pipeline: Pipeline, patch: pytest.MonkeyPatch, way: str, version: int, act: Callable[..., None]
) -> str:
    """Runs two batches with this protocol, route and fault in one writer; returns its marker."""
    pipeline.add(numbered(0), numbered(1))
    pipeline.transactional_id += f"-tv{version}"
    if way == "shuffled":
        chaos.through_the_shuffle(patch)
    marker = str(pipeline.folder / "marker")
    chaos.in_tasks(patch, chaos.AfterFirstWrite(pipeline.bootstrap, marker, act))
    return marker


@pytest.mark.parametrize(("way", "version"), [("direct", 2), ("shuffled", 1)])
def test_a_batch_is_written_once_if_an_executor_is_killed_in_mid_write(
    pipeline: Pipeline, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, way: str, version: int
) -> None:
    marker = prepare(pipeline, monkeypatch, way, version, chaos.kill_executor)
    assert pipeline.run(shape=in_two_tasks) is None
    assert Path(marker).exists()
    assert sorted(read_values(cluster, pipeline.topic)) == sorted(numbered(0) + numbered(1))


def test_a_query_of_the_format_fails_with_its_executor_and_its_restart_writes_the_batch_once(
    spark_with_executors: SparkSession,
    bootstrap: str,
    cluster: Cluster,
    tmp_path: Path,
    new_topic: Callable[..., str],
) -> None:
    from tests.spark.doors import faults  # Not on Spark 3.5, which has no such data sources.

    faults.register(spark_with_executors)
    routed = RoutedPipeline(spark_with_executors, bootstrap, tmp_path, new_topic(8))
    routed.add(numbered(0), numbered(1))
    failure = routed.run_routed(
        format=faults.FORMAT, faultStep="kill", faultBatch=1, faultMarker=tmp_path / "marker"
    )
    assert failure is not None
    assert (tmp_path / "marker.aborted").exists()
    assert sorted(read_values(cluster, routed.topic)) == sorted(numbered(0))
    assert routed.run_routed() is None
    assert sorted(read_values(cluster, routed.topic)) == sorted(numbered(0) + numbered(1))


@pytest.mark.parametrize(("way", "version"), [("direct", 1)])
def test_an_executor_that_resumes_during_the_next_batch_cannot_write(
    pipeline: Pipeline, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, way: str, version: int
) -> None:
    marker = prepare(pipeline, monkeypatch, way, version, chaos.fall_asleep)

    def wake_up(step: str, batch_id: int) -> None:
        if (step, batch_id) == ("written", 1):
            os.kill(worker, signal.SIGCONT)
            chaos.await_file(f"{marker}.words")

    query = pipeline.start(pipeline.sink(on_step=wake_up), in_two_tasks)
    chaos.await_file(f"{marker}.pids")
    worker, executor = map(int, Path(f"{marker}.pids").read_text().split())
    chaos.await_truth(lambda: chaos.is_stopped(worker))
    os.kill(executor, signal.SIGKILL)
    assert finish(query) is None
    assert Path(f"{marker}.words").read_text().startswith("ProducerFenced: ")
    assert sorted(read_values(cluster, pipeline.topic)) == sorted(numbered(0) + numbered(1))


def test_deleted_shuffle_files_are_recomputed(
    pipeline: Pipeline, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    chaos.through_the_shuffle(monkeypatch)
    pipeline.add(numbered(0))
    attempts: list[int] = []

    def count(step: str, batch_id: int) -> None:
        if step == "writing":
            attempts.append(batch_id)

    folder = chaos.executors_folder(pipeline.spark)
    occupied, released = pipeline.folder / "occupied", pipeline.folder / "released"
    occupant = threading.Thread(
        target=_occupy_a_slot, args=(pipeline.spark, str(occupied), str(released))
    )
    occupant.start()
    chaos.await_file(occupied)
    # Files of earlier tests are no longer needed.
    chaos.delete_shuffle_files(folder)
    # The write stage needs both slots at once, so the packed rows now wait in their files.
    query = pipeline.start(pipeline.sink(on_step=count))
    chaos.await_truth(lambda: any(folder.rglob("shuffle_*.data")))
    assert chaos.delete_shuffle_files(folder) > 0
    released.touch()
    assert finish(query) is None
    occupant.join()
    assert attempts == [0, 0]
    assert sorted(read_values(cluster, pipeline.topic)) == sorted(numbered(0))


def test_deleted_shuffle_files_fail_a_query_of_the_format_and_its_restart_writes_the_batch_once(
    spark_with_executors: SparkSession,
    bootstrap: str,
    cluster: Cluster,
    tmp_path: Path,
    new_topic: Callable[..., str],
) -> None:
    """Without the barrier Spark would run the stage again, and both tries would write."""
    routed = RoutedPipeline(spark_with_executors, bootstrap, tmp_path, new_topic(8))
    routed.add(numbered(0))
    folder = chaos.executors_folder(spark_with_executors)
    occupied, released = tmp_path / "occupied", tmp_path / "released"
    occupant = threading.Thread(
        target=_occupy_a_slot, args=(routed.spark, str(occupied), str(released))
    )
    occupant.start()
    chaos.await_file(occupied)
    chaos.delete_shuffle_files(folder)
    query = routed.start_routed()
    chaos.await_truth(lambda: any(folder.rglob("shuffle_*.data")))
    assert chaos.delete_shuffle_files(folder) > 0
    released.touch()
    failure = finish(query)
    occupant.join()
    assert failure is not None
    assert read_values(cluster, routed.topic) == []
    assert routed.run_routed() is None
    assert sorted(read_values(cluster, routed.topic)) == sorted(numbered(0))


def _occupy_a_slot(spark: SparkSession, occupied: str, released: str) -> None:
    def wait(_: int) -> None:
        import pathlib
        import time

        pathlib.Path(occupied).touch()
        while not pathlib.Path(released).exists():
            time.sleep(0.01)

    spark.sparkContext.parallelize([0], 1).foreach(wait)
