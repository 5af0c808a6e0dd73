"""Goal: a driver that dies before or after any effect of a batch loses and duplicates no row.

Method: one driver process with a query for each step; when every query has reached its step, the
driver is killed with SIGKILL. Then each query is started again from its checkpoint, and its table
must hold every row once. Before that, while the driver lives, a second driver runs two of the
queries from the same checkpoints, and then the first one goes on. Queries that write to a topic as
well are killed between the two commits: one has the batch alone, and in the end each has it once.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from fencepost.client.admin import NewTopic
from fencepost.client.blocking import Cluster
from fencepost.spark.sentences import reason_in
from tests.outside.postgres import PostgresServer
from tests.spark.conftest import environment, on_spark, read_values, require_spark
from tests.spark.pipeline import add_files
from tests.spark.postgres.stage import CREATION, Stage
from tests.spark.queries.cases import CASES
from tools.processes import ServerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = on_spark(300)


class Point(NamedTuple):
    """A step of a batch, and the query."""

    step: str
    batch: int
    case: str = "lines"
    first: str = ""
    """Where the batch is written first, the topic or the table; empty: into the table alone."""

    @property
    def name(self) -> str:
        words = f"{self.first} {self.case} {self.step} {self.batch}".replace(",", "").lstrip()
        return words.replace(" ", "_").lower()


DEATHS = [
    Point("staging", 0),
    Point("staged", 0),
    Point("copying", 1),
    Point("copied", 0),
    Point("locked", 0),
    Point("locked", 1),
    Point("merged", 1),
    Point("committing", 0),
    Point("committed", 0),
    Point("committed", 1),
    Point("dropped", 1),
    # Queries with state: what is in the table already is drained.
    Point("committed", 1, case="update, state ids"),
    Point("copied", 1, case="dropDuplicates"),
    Point("dropped", 1, case="append, windows"),
]
SUSPENDED = [Point("copied", 1, case="update"), Point("staged", 1)]
"""Two drivers: the first one goes on when the second has finished."""
BETWEEN = [
    Point("staging", 1, first="topic"),
    Point("committing", 0, first="topic"),
    Point("merged", 1, case="dropDuplicates", first="topic"),
    Point("writing", 1, first="table"),
    Point("ending", 0, first="table"),
    Point("written", 1, case="update, state ids", first="table"),
]
"""TransactionalSink and PostgresSink in one function: one has committed, the other has not."""
EVERYWHERE = (*SUSPENDED, *DEATHS, *BETWEEN)


class Drivers:
    """A driver process whose queries have stopped, and the test's own session."""

    def __init__(self, dsn: str, bootstrap: str, cluster: Cluster, folder: Path) -> None:
        self.dsn = dsn
        self.bootstrap = bootstrap
        self.folders = {point: folder / point.name for point in EVERYWHERE}
        self.topics = {point: f"{point.name}-{os.getpid()}" for point in BETWEEN}
        cluster.create_topics([NewTopic(topic, 3, 1) for topic in self.topics.values()])
        for point, place in self.folders.items():
            add_files(place, *CASES[point.case].files)
        orders = [
            {
                "name": point.name,
                "folder": str(place),
                "step": point.step,
                "batch": point.batch,
                "case": point.case,
                "creation": CREATION.replace("lines", point.name),
                "topic": self.topics.get(point, ""),
                "first": point.first,
            }
            for point, place in self.folders.items()
        ]
        plan = folder / "orders.json"
        plan.write_text(json.dumps({"dsn": dsn, "bootstrap": bootstrap, "orders": orders}))
        self.process = ServerProcess(
            [sys.executable, "-m", "tests.spark.postgres.driver_process", str(plan)],
            environment=environment(),
        )
        self.process.wait_for_line(
            lambda line: line if "all queries have stopped" in line else None, 240
        )
        for point, place in self.folders.items():
            assert (place / "marker.reached").exists(), (point, self.process.output)

    def stage(self, spark: SparkSession, point: Point) -> Stage:
        creation = CREATION.replace("lines", point.name)
        return Stage(spark, self.dsn, self.folders[point], point.name, creation)

    def run(self, spark: SparkSession, point: Point) -> Stage:
        """Runs the query to its end, from where its checkpoint is."""
        stage, case = self.stage(spark, point), CASES[point.case]
        topic = self.topics.get(point)
        sink = stage.both_sinks(self.bootstrap, topic, point.first) if topic else None
        with case.in_session(spark):
            assert stage.run(sink, case.shape, case.mode) is None
        return stage

    def release(self, point: Point) -> str | None:
        """Lets a query of the process go on; the reason if it failed."""
        (self.folders[point] / "marker.released").touch()
        beginning = f"ended {point.name}: "
        line = self.process.wait_for_line(
            lambda line: line if line.startswith(beginning) else None, 120
        )
        failure: str | None = json.loads(line.removeprefix(beginning))
        return failure


@pytest.fixture(scope="module")
def drivers(
    bootstrap: str, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Drivers]:
    require_spark()
    with PostgresServer() as server:
        found = Drivers(server.dsn(), bootstrap, cluster, tmp_path_factory.mktemp("drivers"))
        yield found
        found.process.kill()


def assert_whole(stage: Stage, point: Point) -> None:
    assert stage.values() == sorted(CASES[point.case].expected)


@pytest.mark.parametrize("point", SUSPENDED, ids=str)
def test_a_driver_that_another_one_has_overtaken_writes_nothing(
    spark: SparkSession, drivers: Drivers, point: Point
) -> None:
    stage = drivers.run(spark, point)
    assert_whole(stage, point)
    failure = drivers.release(point)
    # Its staging table is gone, or its batch is in the table; then Spark finds the checkpoint used.
    assert_whole(stage, point)
    assert failure is None or reason_in(failure)


@pytest.mark.parametrize("point", BETWEEN, ids=str)
def test_a_driver_killed_between_two_sinks_leaves_one_ahead_until_it_is_started_again(
    spark: SparkSession, cluster: Cluster, drivers: Drivers, point: Point
) -> None:
    drivers.process.kill()
    stage, topic = drivers.stage(spark, point), drivers.topics[point]
    in_topic, in_table = Counter(read_values(cluster, topic)), Counter(stage.values())
    ahead, behind = (in_topic, in_table) if point.first == "topic" else (in_table, in_topic)
    assert behind < ahead
    drivers.run(spark, point)
    assert_whole(stage, point)
    assert sorted(read_values(cluster, topic)) == sorted(CASES[point.case].expected)


def test_killed_drivers_lose_and_duplicate_nothing(spark: SparkSession, drivers: Drivers) -> None:
    drivers.process.kill()
    left: dict[Point, Any] = {}
    for point in (*DEATHS, *SUSPENDED, *BETWEEN):
        stage = drivers.run(spark, point)
        if stage.values() != sorted(CASES[point.case].expected):
            left[point] = stage.values()
    assert left == {}
    assert stage.stages() == 0
