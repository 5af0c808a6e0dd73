"""Goal: a driver that dies before or after any effect of a batch loses and duplicates no row.

Method: one driver process with a query for each step; when every query has reached its step, the
driver is killed with SIGKILL. Then each query is started again from its checkpoint, and its table
must hold every row once. Before that, while the driver lives, a second driver runs two of the
queries from the same checkpoints, and then the first one goes on.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from fencepost.spark.sentences import reason_in
from tests.outside.postgres import PostgresServer
from tests.spark.conftest import environment, on_spark, require_spark
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

    @property
    def name(self) -> str:
        words = f"{self.case} {self.step} {self.batch}".replace(",", "")
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


class Drivers:
    """A driver process whose queries have stopped, and the test's own session."""

    def __init__(self, dsn: str, folder: Path) -> None:
        self.dsn = dsn
        self.folders = {point: folder / point.name for point in (*DEATHS, *SUSPENDED)}
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
            }
            for point, place in self.folders.items()
        ]
        plan = folder / "orders.json"
        plan.write_text(json.dumps({"dsn": dsn, "orders": orders}))
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
        with case.in_session(spark):
            assert stage.run(None, case.shape, case.mode) is None
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
def drivers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drivers]:
    require_spark()
    with PostgresServer() as server:
        found = Drivers(server.dsn(), tmp_path_factory.mktemp("drivers"))
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


def test_killed_drivers_lose_and_duplicate_nothing(spark: SparkSession, drivers: Drivers) -> None:
    drivers.process.kill()
    left: dict[Point, Any] = {}
    for point in (*DEATHS, *SUSPENDED):
        stage = drivers.run(spark, point)
        if stage.values() != sorted(CASES[point.case].expected):
            left[point] = stage.values()
    assert left == {}
    assert stage.stages() == 0
