"""What the tasks of a batch do: each copies its rows into staging, and reports.

The reports are what the driver knows of the rows: one for each partition of the DataFrame, from the
attempt whose result Spark has passed on. An absent report is a failure, never a zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from fencepost.outside.table.staging import copy_rows
from fencepost.spark.failures import CountsDisagree
from fencepost.spark.ways.stage import stage_settings

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from fencepost.outside.connection import Database
    from fencepost.outside.table.staging import Staging

_REPORT_SCHEMA = "partition int, attempt bigint, rows bigint"


class CopyPlan(NamedTuple):
    """What the driver passes to the tasks."""

    database: Database
    staging: Staging


def copy_frame(df: DataFrame, plan: CopyPlan) -> dict[int, int]:
    """Runs the job; the rows of each attempt whose result counts."""
    with stage_settings(df.sparkSession):
        copied = df.mapInArrow(_task(plan), _REPORT_SCHEMA)
        # The plan is made once: `collect` runs the one that was counted.
        partitions = copied.rdd.getNumPartitions()
        reports = copied.collect()
    return checked_reports([(r["partition"], r["attempt"], r["rows"]) for r in reports], partitions)


def checked_reports(reports: list[tuple[int, int, int]], partitions: int) -> dict[int, int]:
    """The rows by attempt; CountsDisagree unless each partition has reported once."""
    if sorted(partition for partition, _, _ in reports) != list(range(partitions)):
        raise CountsDisagree(
            f"{partitions} tasks ran, and {len(reports)} have reported. Nothing was written"
        )
    return {attempt: rows for _, attempt, rows in reports}


def _task(plan: CopyPlan) -> Any:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        attempt = context.taskAttemptId()
        rows = copy_rows(plan.database, plan.staging, attempt, batches)
        yield pa.RecordBatch.from_pydict(
            {
                "partition": pa.array([context.partitionId()], pa.int32()),
                "attempt": pa.array([attempt], pa.int64()),
                "rows": pa.array([rows], pa.int64()),
            }
        )

    return run
