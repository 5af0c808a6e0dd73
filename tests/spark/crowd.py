"""The test's side of `driver_process.py`: many queries in one driver, all killed at once."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

from fencepost.client.admin import NewTopic
from fencepost.client.blocking import Cluster
from tests.spark.conftest import environment, read_values
from tests.spark.doors.routed import RoutedPipeline
from tests.spark.pipeline import add_files, finish
from tests.spark.queries.cases import CASES, Case
from tools.processes import ServerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PLAIN_USER = ("env", "-u", "PYSPARK_PYTHON")
"""As for a user who has neither activated the virtual environment nor set PYSPARK_PYTHON."""


class Point(NamedTuple):
    """A step of a batch, the protocol spoken, the query, and what writes its rows."""

    step: str
    batch: int
    version: int = 2
    case: str = "lines"
    """The query, by its name in `queries/cases.py`."""
    door: str = "sink"
    """The sink in foreachBatch, or the format, with the steps of `doors/faults.py`."""

    def __str__(self) -> str:
        kind = {"sink": "", "format": "format-"}[self.door]
        kind += "" if self.case == "lines" else f"{self.case}-"
        return re.sub(r"\W+", "-", f"{kind}{self.step}-{self.batch}-tv{self.version}")

    @property
    def query(self) -> Case:
        """What the query reads, its plan, and what it must have written in the end."""
        return CASES[self.case]


@dataclass(frozen=True)
class CrowdQuery:
    """A query of the crowd; its name is its transactional id."""

    name: str
    topic: str
    folder: str
    step: str
    batch: int
    case: str
    door: str


class Crowd:
    """A driver process in which every query has stopped at its step."""

    def __init__(
        self, bootstrap: str, cluster: Cluster, folder: Path, points: Sequence[Point]
    ) -> None:
        self.bootstrap = bootstrap
        self.cluster = cluster
        self.queries = {point: self._prepare(folder, point) for point in points}
        cluster.create_topics([NewTopic(query.topic, 3, 1) for query in self.queries.values()])
        orders = folder / "orders.json"
        plan = {
            "bootstrap": bootstrap,
            "orders": [asdict(query) for query in self.queries.values()],
        }
        orders.write_text(json.dumps(plan))
        self.process = ServerProcess(
            [*_PLAIN_USER, sys.executable, "-m", "tests.spark.driver_process", str(orders)],
            environment=environment() | {"PATH": _other_paths()},
        )

    def __enter__(self) -> Self:
        try:
            self.process.wait_for_line(
                lambda line: line if "all queries have stopped" in line else None, 240
            )
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        self.process.kill()

    def _prepare(self, folder: Path, point: Point) -> CrowdQuery:
        topic = f"{point}-{os.getpid()}-{folder.name}"
        # The name ends with the protocol: see `chaos.speak_by_name`.
        query = CrowdQuery(
            f"{topic}-tv{point.version}",
            topic,
            str(folder / str(point)),
            point.step,
            point.batch,
            point.case,
            point.door,
        )
        add_files(Path(query.folder), *point.query.files)
        return query

    def assert_stopped(self, point: Point) -> None:
        assert Path(self.queries[point].folder, "marker.reached").exists(), self.process.output

    def release(self, point: Point) -> str | None:
        """Lets a query continue; returns the reason if it failed."""
        query = self.queries[point]
        Path(query.folder, "marker.released").touch()
        beginning = f"ended {query.name}: "
        line = self.process.wait_for_line(
            lambda line: line if line.startswith(beginning) else None, 120
        )
        failure: str | None = json.loads(line.removeprefix(beginning))
        return failure

    def run_again(self, spark: SparkSession, point: Point) -> str | None:
        """Runs the query of a dead driver from where it was; returns the reason if it failed."""
        return self._run(spark, point, Path(self.queries[point].folder))

    def run_other(
        self, spark: SparkSession, point: Point, folder: Path, lines: list[str]
    ) -> str | None:
        """Runs a query with the same id on these lines; returns the reason if it failed."""
        add_files(folder, lines)
        return self._run(spark, point, folder)

    def _run(self, spark: SparkSession, point: Point, folder: Path) -> str | None:
        query, case = self.queries[point], point.query
        pipeline = RoutedPipeline(spark, self.bootstrap, folder, query.topic, query.name)
        if point.door == "format":
            return finish(pipeline.start_faulty())
        with case.in_session(spark):
            return pipeline.run(None, case.shape, case.mode)

    def assert_whole(self, point: Point) -> None:
        """Every row of every file is in the topic once."""
        expected = sorted(point.query.expected)
        found = sorted(read_values(self.cluster, self.queries[point].topic))
        missing = sorted(set(expected) - set(found))
        assert found == expected, (
            f"{len(found)} rows for {len(expected)}; missing: {missing[:5]}, {len(missing)}"
        )


def _other_paths() -> str:
    own = os.path.dirname(sys.executable)
    return os.pathsep.join(p for p in os.environ["PATH"].split(os.pathsep) if p != own)
