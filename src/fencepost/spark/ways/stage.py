"""What the Spark stages of both ways over executors have in common.

The stage whose tasks write must be a barrier stage that ends in `collect`: then Spark runs each of
its tasks once, or fails the job. With a count or an aggregate, Spark might run its tasks again.
Where Spark refuses barrier stages (dynamic allocation), tasks need permits (`meeting/permits.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fencepost.spark.engine.session import (
    allows_barrier,
    changed_setting,
    concurrent_tasks,
    most_tasks,
)
from fencepost.spark.engine.slots import announce_slots
from fencepost.spark.engine.versions import arrow_limit
from fencepost.spark.engine.workers_python import workers_python
from fencepost.spark.ways.delivery import Attempt

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@contextmanager
def stage_settings(session: SparkSession) -> Iterator[None]:
    """The workers' Python; and rows from the JVM in pieces that fit the CPU cache."""
    conf = session.conf
    with changed_setting(conf, *arrow_limit(conf)), workers_python(session):
        yield


def collect_reports(written: DataFrame) -> list[Mapping[str, Any]]:
    """Runs the job."""
    return [row.asDict() for row in written.collect()]


def choose_slots(session: SparkSession, partition_counts: Mapping[str, int]) -> int:
    """The number of writing tasks: all that can run at once, at most one per partition."""
    if allows_barrier(session):
        slots = concurrent_tasks(session)
        announce_slots(session, slots)
    else:
        slots = _planned_tasks(session)
    targets = sum(partition_counts.values())
    return max(1, min(slots, targets) if targets else slots)


def _planned_tasks(session: SparkSession) -> int:
    """How many tasks the write stage may have, though executors may not be there yet.

    As many as all executors could run at once; without a limit, as many as any other stage after
    a shuffle. Those that find no free core wait, and the transaction stays open.
    """
    found = most_tasks(session)
    if found is None:
        partitions = session.conf.get("spark.sql.shuffle.partitions", "200")
        found = int(partitions or 200)
    return found


def this_attempt() -> Attempt:
    """The running task."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    return Attempt(context.partitionId(), context.attemptNumber(), context.taskAttemptId())
