"""Goal: under dynamic allocation, where Spark runs tasks of the write stage again, a batch is
written once.

Method: executors as processes that Spark starts as it needs them, one at a time, with two cores. It
is killed in mid-write, it loses its shuffle files, it is killed when some tasks are done
and others are not.
"""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fencepost.client.blocking import Cluster
from fencepost.spark.engine.session import changed_setting
from tests.spark import chaos
from tests.spark.chaos import Batches, Deliver
from tests.spark.conftest import Sessions, on_spark, read_values
from tests.spark.pipeline import Pipeline, finish, numbered

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = on_spark(300)

SETTINGS = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    # What is idle is not removed here, as in `standalone`: only what the tests kill is replaced.
    "spark.dynamicAllocation.minExecutors": "1",
    "spark.dynamicAllocation.maxExecutors": "1",
    "spark.executor.cores": "2",
}

CHECKSUM = "spark.sql.shuffle.orderIndependentChecksum"


@pytest.fixture
def spark(sessions: Sessions) -> SparkSession:
    from pyspark import SparkContext

    if SparkContext._gateway is None:
        # The settings of the first session apply to the JVM, and so to all later sessions.
        sessions.session("local[2]")
    return sessions.session("local-cluster[1,2,1024]", SETTINGS)


class Steps:
    """The steps of a sink: how often each batch was tried."""

    def __init__(self) -> None:
        self.attempts: list[int] = []
        self.second_attempt = threading.Event()

    def __call__(self, step: str, batch_id: int) -> None:
        if step == "writing":
            self.attempts.append(batch_id)
            if self.attempts.count(batch_id) > 1:
                self.second_attempt.set()


@pytest.fixture
def steps() -> Steps:
    return Steps()


@dataclass(frozen=True)
class KillInMidWrite:
    """The executor is killed when the first rows are in the log, and no task has reported."""

    bootstrap: str
    marker: str

    def __call__(self, deliver: Deliver, batches: Batches) -> Batches:
        is_again = os.path.exists(self.marker)
        kill = chaos.AfterFirstWrite(self.bootstrap, self.marker, chaos.kill_executor)
        reports = list(kill(deliver, batches))
        if not is_again:
            signal.pause()
        return iter(reports)


def test_rows_that_another_try_sends_elsewhere_are_written_once(
    pipeline: Pipeline,
    cluster: Cluster,
    steps: Steps,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A plan that is not deterministic: each run of it chooses another partition.

    Spark reads the rows again, and sends them to another task. The one that has written some of
    them has nothing to write in its second try, and all counts add up.
    """
    chaos.through_the_shuffle(monkeypatch)
    marker = str(pipeline.folder / "marker")
    chaos.in_tasks(monkeypatch, KillInMidWrite(pipeline.bootstrap, marker))
    pipeline.add(numbered(0))
    assert pipeline.run(pipeline.sink(on_step=steps), _elsewhere(marker)) is None
    assert Path(marker).exists()
    assert sorted(read_values(cluster, pipeline.topic)) == sorted(numbered(0))
    assert steps.attempts == [0, 0]
    assert "which may have written, and runs again as" in caplog.text


def _elsewhere(marker: str) -> Callable[[DataFrame], DataFrame]:
    """Rows go to partition 0 before the marker is there, and to partition 1 after that."""

    def shape(lines: DataFrame) -> DataFrame:
        from pyspark.sql.functions import udf

        @udf("int")
        def partition(_: str) -> int:
            return int(os.path.exists(marker))

        return lines.select("value", partition("value").alias("partition"))

    return shape


@dataclass(frozen=True)
class LoseFiles:
    """Task 0 writes and waits. Task 1 then deletes all shuffle files, which task 2 needs."""

    bootstrap: str
    marker: str
    folder: str

    def __call__(self, deliver: Deliver, batches: Batches) -> Batches:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        if context.partitionId() == 0:
            act = chaos.wait_to_be_released
            return chaos.AfterFirstWrite(self.bootstrap, self.marker, act)(deliver, batches)
        if context.partitionId() == 1 and chaos.claim(f"{self.marker}.deleted"):
            chaos.await_file(f"{self.marker}.reached")
            assert chaos.delete_shuffle_files(Path(self.folder)) > 0
        return deliver(batches)


def test_a_stage_that_is_tried_again_while_a_task_writes_fails_the_attempt(
    pipeline: Pipeline,
    cluster: Cluster,
    steps: Steps,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Task 0 of the first try still writes when Spark runs it again, as attempt 0 again."""
    _in_three_tasks(monkeypatch)
    marker = str(pipeline.folder / "marker")
    folder = str(chaos.executors_folder(pipeline.spark))
    chaos.in_tasks(monkeypatch, LoseFiles(pipeline.bootstrap, marker, folder))
    pipeline.add(numbered(0))
    query = pipeline.start(pipeline.sink(on_step=steps))
    try:
        chaos.await_truth(lambda: steps.second_attempt.is_set() or not query.isActive, 120)
        assert steps.second_attempt.is_set(), f"the query ended: {query.exception()}"
    except AssertionError:
        print(_state_of_jobs(pipeline.spark), sorted(os.listdir(pipeline.folder)))
        raise
    finally:
        # Also if it fails: no task of this query waits for the rest of the session.
        Path(f"{marker}.released").touch()
    assert finish(query) is None
    assert steps.attempts == [0, 0]
    assert sorted(read_values(cluster, pipeline.topic)) == sorted(numbered(0))


@dataclass(frozen=True)
class LoseExecutor:
    """Task 0 writes everything. When Spark has its report, the others lose their executor."""

    marker: str

    def __call__(self, deliver: Deliver, batches: Batches) -> Batches:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        with open(f"{self.marker}.runs", "a") as runs:
            runs.write(f"{context.stageId()}:{context.partitionId()} ")
        if context.partitionId() and chaos.claim(self.marker):
            chaos.await_file(f"{self.marker}.reported")
            chaos.kill_executor(self.marker)
            signal.pause()
        return deliver(batches)


def test_rows_that_are_packed_again_after_some_were_written_fail_the_attempt(
    pipeline: Pipeline,
    cluster: Cluster,
    steps: Steps,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Spark does not run tasks again that are done: they have read what was packed before."""
    _in_three_tasks(monkeypatch)
    marker = str(pipeline.folder / "marker")
    chaos.in_tasks(monkeypatch, LoseExecutor(marker))
    pipeline.add(numbered(0))
    conf = pipeline.spark.conf
    # Spark would notice it too, by checksums of the shuffle files (since 4.2).
    with (
        changed_setting(conf, f"{CHECKSUM}.enabled", "false"),
        changed_setting(conf, f"{CHECKSUM}.enableFullRetryOnMismatch", "false"),
    ):
        query = pipeline.start(pipeline.sink(on_step=steps))
    chaos.await_truth(lambda: _done_in_last_stage(pipeline.spark) > 0, 120)
    Path(f"{marker}.reported").touch()
    assert finish(query) is None
    # Which of the two is noticed first depends on what the executor was at when it was lost.
    assert re.search("of the (packing|write) stage ran as Spark's task", caplog.text), caplog.text
    first, *others = Path(f"{marker}.runs").read_text().split()
    stage = first.partition(":")[0]
    runs = [run for run in (first, *others) if run.startswith(f"{stage}:")]
    assert runs.count(f"{stage}:0") == 1
    assert len(runs) > 3
    assert steps.attempts == [0, 0]
    assert sorted(read_values(cluster, pipeline.topic)) == sorted(numbered(0))


def _in_three_tasks(patch: pytest.MonkeyPatch) -> None:
    """A write stage of three tasks, one after the other on two cores."""
    from fencepost.spark.ways import shuffled

    chaos.through_the_shuffle(patch)
    patch.setattr(shuffled, "choose_slots", lambda *_: 3)


def _done_in_last_stage(spark: SparkSession) -> int:
    """How many tasks of the write stage, the only active one of three tasks, are done."""
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
    return max((one.numCompletedTasks for one in stages if one and one.numTasks == 3), default=0)


def _state_of_jobs(spark: SparkSession) -> str:
    """What runs, for a test that waits in vain."""
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
    context: Any = spark.sparkContext._jsc.sc()
    tasks = [
        str(task.errorMessage())
        for number in tracker.getActiveStageIds()
        for task in _java_list(context.statusStore().taskList(number, 0, 100))
    ]
    return f"jobs {tracker.getActiveJobsIds()}, stages {stages}, failures {tasks}"


def _java_list(found: Any) -> list[Any]:
    return [found.apply(index) for index in range(found.size())]
