"""Goal: tasks that die after their copy, and second copies of tasks, add no row and lose none.

Method: executors in processes of their own, with speculation. A task copies its rows, commits them
to staging, and then dies or waits for a second copy of itself to be faster; so staging has rows
of attempts that nobody reported.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fencepost.spark.postgres import copying
from tests.spark import chaos
from tests.spark.conftest import Sessions, on_spark
from tests.spark.pipeline import numbered
from tests.spark.postgres.stage import Stage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = on_spark(300)

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "100ms",
}


@pytest.fixture
def stage(sessions: Sessions, dsn: str, tmp_path: Path) -> Stage:
    return Stage(sessions.session("local-cluster[2,1,1024]", SPECULATION), dsn, tmp_path)


def die(marker: str) -> None:
    if chaos.claim(marker):
        os.kill(os.getpid(), signal.SIGKILL)


def wait_for_a_faster_copy(marker: str) -> None:
    if chaos.claim(marker):
        chaos.await_file(f"{marker}.faster", 120)
    else:
        Path(f"{marker}.faster").touch()


def after_the_copy(act: Callable[[str], None], marker: str) -> Callable[[Any], Any]:
    """Tasks of partition 0 act when their rows are committed and not reported."""
    genuine = copying._task

    def task(plan: Any) -> Any:
        copy = genuine(plan)

        def run(batches: Iterator[Any]) -> Iterator[Any]:
            from pyspark import TaskContext

            for report in copy(batches):
                if TaskContext.get().partitionId() == 0:  # type: ignore[union-attr]
                    act(marker)
                yield report

        return run

    return task


def in_two_partitions(lines: DataFrame) -> DataFrame:
    return lines.selectExpr("value AS key", "value").repartition(2)


@pytest.mark.parametrize("act", [die, wait_for_a_faster_copy])
def test_rows_of_attempts_that_nobody_reported_are_not_merged(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, act: Callable[[str], None]
) -> None:
    marker = str(stage.folder / "marker")
    monkeypatch.setattr(copying, "_task", after_the_copy(act, marker))
    stage.add(numbered(0))
    attempts: list[int] = []

    def look(step: str, _: int) -> None:
        if step == "copied":
            (name,) = stage.query(
                "SELECT relname FROM pg_class WHERE relname LIKE 'fencepost\\_stage\\_%%'"
            )
            attempts.extend(stage.query(f"SELECT DISTINCT fencepost_attempt FROM {name}"))

    assert stage.run(stage.sink(on_step=look), in_two_partitions) is None
    assert len(attempts) == 3, "one of them was not reported"
    assert stage.values() == sorted(numbered(0))
