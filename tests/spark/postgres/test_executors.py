"""Goal: tasks that die after their copy add no row and lose none.

Method: executors in processes of their own. A task copies its rows, commits them to staging, and
dies before it has reported, alone or with its executor; Spark repeats it. So staging has rows of an
attempt that nobody reported, as of a speculative copy of a task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fencepost.spark.postgres import copying
from tests.spark import chaos
from tests.spark.conftest import on_spark
from tests.spark.pipeline import numbered
from tests.spark.postgres.stage import Stage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = on_spark(300)


@pytest.fixture
def stage(spark_with_executors: SparkSession, dsn: str, tmp_path: Path) -> Stage:
    return Stage(spark_with_executors, dsn, tmp_path)


def die(marker: str) -> None:
    if chaos.claim(marker):
        chaos.kill_worker(marker)


def die_with_the_executor(marker: str) -> None:
    if chaos.claim(marker):
        chaos.kill_executor(marker)
        chaos.kill_worker(marker)


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


@pytest.mark.parametrize("act", [die, die_with_the_executor])
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
