"""A write job whose tasks need permits: how it fails, and that only it is cancelled.

The executors are threads here, where Spark would run barrier stages; the sink is made to believe
that it does not. test_dynamic_allocation.py has the real case.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fencepost.client.admin import NewTopic
from fencepost.client.blocking import Cluster
from fencepost.spark.failures import PeerLost
from tests.spark import chaos
from tests.spark.chaos import Batches, Deliver
from tests.spark.conftest import on_spark, read_values
from tests.spark.pipeline import Pipeline, failed, numbered

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = on_spark()


@pytest.fixture(autouse=True)
def without_barrier(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fencepost.spark.doors.run.allows_barrier", lambda _: False)


@pytest.fixture
def attempts() -> list[int]:
    """The batch of each attempt, for a sink with `on_step=count_in(attempts)`."""
    return []


def count_in(attempts: list[int]) -> Callable[[str, int], None]:
    return lambda step, batch: attempts.append(batch) if step == "writing" else None


def test_batches_are_written_without_a_barrier_stage_and_small_ones_by_the_driver(
    pipeline: Pipeline, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

    genuine, barriers = ClassicDataFrame.mapInArrow, []

    def map_in_arrow(df: Any, function: Any, schema: Any, barrier: bool = False) -> Any:
        barriers.append(barrier)
        return genuine(df, function, schema, barrier)

    monkeypatch.setattr(ClassicDataFrame, "mapInArrow", map_in_arrow)
    pipeline.add(numbered(0), numbered(1))
    assert pipeline.run() is None
    assert barriers == [False, False], "batch 0 is packed and delivered, batch 1 is collected"
    assert sorted(read_values(cluster, pipeline.topic)) == sorted(numbered(0) + numbered(1))


@dataclass(frozen=True)
class FailBesideAJob:
    """A task fails with everything written, while another job of the application runs."""

    marker: str

    def __call__(self, deliver: Deliver, batches: Batches) -> Batches:
        reports = list(deliver(batches))
        if chaos.claim(self.marker):
            chaos.await_file(f"{self.marker}.other")
            raise PeerLost("it fails with everything written")
        return iter(reports)


def test_a_task_that_fails_with_its_permit_ends_the_attempt_and_no_other_job(
    pipeline: Pipeline,
    cluster: Cluster,
    attempts: list[int],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    marker = str(pipeline.folder / "marker")
    chaos.in_tasks(monkeypatch, FailBesideAJob(marker))
    pipeline.add(numbered(0))
    sink = pipeline.sink(on_step=count_in(attempts))
    others: list[int] = []

    def run_other(df: DataFrame) -> None:
        def wait(_: int) -> int:
            Path(f"{marker}.other").touch()
            chaos.await_file(f"{marker}.again")
            return 1

        others.append(df.sparkSession.sparkContext.parallelize([0], 1).map(wait).sum())

    def write(df: DataFrame, batch_id: int) -> None:
        other = threading.Thread(target=run_other, args=(df,))
        other.start()
        sink(df, batch_id)
        Path(f"{marker}.again").touch()
        other.join()

    assert pipeline.run(write) is None
    assert others == [1]
    assert attempts == [0, 0]
    assert "it fails with everything written" in caplog.text
    assert sorted(read_values(cluster, pipeline.topic)) == sorted(numbered(0))


def test_rows_that_the_topic_refuses_are_reported_and_not_tried_again(
    pipeline: Pipeline, cluster: Cluster, attempts: list[int]
) -> None:
    topic = f"{pipeline.topic}-compacted"
    cluster.create_topics([NewTopic(topic, 1, 1, configs={"cleanup.policy": "compact"})])
    pipeline.add(numbered(0))
    sink = pipeline.sink(topic=topic, on_step=count_in(attempts))
    failure = failed(pipeline.run(sink, lambda lines: lines.select("value")))
    assert "a compacted topic needs a key in every row" in failure
    assert attempts == [0]


def test_a_batch_that_is_too_large_for_its_topic_is_written_in_smaller_ones(
    pipeline: Pipeline, cluster: Cluster, attempts: list[int]
) -> None:
    topic = f"{pipeline.topic}-small"
    cluster.create_topics([NewTopic(topic, 1, 1, configs={"max.message.bytes": "600"})])
    pipeline.add(numbered(0, 200))
    # The rows name their topic, so the sink learns its limit from the refusal.
    sink = pipeline.sink(topic=None, on_step=count_in(attempts), max_attempts=1)
    assert pipeline.run(sink, lambda df: df.selectExpr("value", f"'{topic}' AS topic")) is None
    assert attempts == [0, 0]
    assert sorted(read_values(cluster, topic)) == sorted(numbered(0, 200))


def test_tasks_that_cannot_reach_the_driver_write_nothing_and_say_so(
    pipeline: Pipeline, cluster: Cluster, attempts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fencepost.spark.ways import permits
    from fencepost.spark.ways.permits import PermitCall, PermitServer

    def unreachable(*arguments: Any) -> PermitServer:
        server = PermitServer(*arguments)
        server.call = PermitCall(("127.0.0.1", 1), server.call.secret)
        return server

    monkeypatch.setattr(permits, "PermitServer", unreachable)
    pipeline.add(numbered(0))
    failure = failed(pipeline.run(pipeline.sink(on_step=count_in(attempts), max_attempts=2)))
    assert "no answer of the driver at 127.0.0.1:1" in failure
    assert "executors can connect to any port of the driver at this address" in failure
    assert attempts == [0, 0]
    assert read_values(cluster, pipeline.topic) == []


def test_a_query_that_is_stopped_in_mid_write_makes_no_second_attempt(
    pipeline: Pipeline, cluster: Cluster, attempts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = str(pipeline.folder / "marker")
    act = chaos.AfterFirstWrite(pipeline.bootstrap, marker, chaos.wait_to_be_released)
    chaos.in_tasks(monkeypatch, act)
    pipeline.add(numbered(0))
    query = pipeline.start(pipeline.sink(on_step=count_in(attempts)))
    chaos.await_file(f"{marker}.reached")
    query.stop()
    Path(f"{marker}.released").touch()
    assert attempts == [0]
    assert read_values(cluster, pipeline.topic) == []
    assert pipeline.run() is None
    assert sorted(read_values(cluster, pipeline.topic)) == sorted(numbered(0))
