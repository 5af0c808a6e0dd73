"""What the Spark stages of both routes over executors have in common.

The stage whose tasks write must be a barrier stage that ends in `collect`: then Spark runs each of
its tasks once, or fails the job. With a count or an aggregate, Spark might run its tasks again.
Where Spark refuses barrier stages (dynamic allocation), tasks need permits (`permits.py`).

A shuffle brings every row to the task that writes its partition, its slot. Spark 4.1 has
`repartitionById`, which takes the number of the task from a column. Before, Spark only hashes
columns, so the column holds for each slot an integer that hashes to it; one query finds them. Both
shuffles have a fixed number of tasks, so adaptive execution does not change them. If a row came to
another task all the same, that task would notice: it checks the slot of each batch (`shuffled.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from fencepost.spark.engine.session import (
    allows_barrier,
    changed_setting,
    concurrent_tasks,
    most_tasks,
)
from fencepost.spark.engine.slots import announce_slots
from fencepost.spark.engine.versions import arrow_limit
from fencepost.spark.engine.workers_python import workers_python
from fencepost.spark.failures import CountsDisagree
from fencepost.spark.ways.accounts import Report
from fencepost.spark.ways.delivery import Attempt

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

REPORT_SCHEMA: Final = "report string"

_keys: Final[dict[int, tuple[int, ...]]] = {}
"""The integers for each number of slots: the same in all sessions."""

_TRIED_PER_SLOT: Final = 16
"""With this many, one of a thousand slots gets none once in ten thousand times."""


@contextmanager
def stage_settings(session: SparkSession) -> Iterator[None]:
    """The workers' Python; and rows from the JVM in pieces that fit the CPU cache."""
    conf = session.conf
    with changed_setting(conf, *arrow_limit(conf)), workers_python(session):
        yield


def choose_slots(session: SparkSession, partition_counts: Mapping[str, int]) -> int:
    """The number of writing tasks: all that can run at once, at most one per partition.

    Without barrier stages executors may not be there yet: as many as all of them could run at once;
    without a limit, as many as any other stage after a shuffle. Those that find no free core wait,
    and the transaction stays open.
    """
    if allows_barrier(session):
        slots = concurrent_tasks(session)
        announce_slots(session, slots)
    else:
        after_shuffle = session.conf.get("spark.sql.shuffle.partitions", "200")
        slots = most_tasks(session) or int(after_shuffle or 200)
    targets = sum(partition_counts.values())
    return max(1, min(slots, targets) if targets else slots)


def bring_to_slots(packed: DataFrame, slots: int) -> DataFrame:
    """The same rows, each in the partition that its column `slot` names."""
    if hasattr(packed, "repartitionById"):
        return packed.repartitionById(slots, "slot")
    from pyspark.sql import functions as f

    keys = f.array(*(f.lit(key) for key in keys_of_slots(packed.sparkSession, slots)))
    return packed.repartition(slots, f.get(keys, "slot"))


def keys_of_slots(session: SparkSession, slots: int) -> tuple[int, ...]:
    """For every slot, the smallest integer that Spark's hash partitioning brings there."""
    tried = _TRIED_PER_SLOT * slots
    while slots not in _keys:
        rows = session.range(0, tried, 1, 1).selectExpr(f"pmod(hash(CAST(id AS INT)), {slots})")
        found: dict[int, int] = {}
        for key, (slot,) in enumerate(rows.collect()):
            found.setdefault(slot, key)
        if len(found) == slots:
            _keys[slots] = tuple(found[slot] for slot in range(slots))
        tried *= 2
    return _keys[slots]


def this_attempt() -> Attempt:
    """The running task."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    return Attempt(context.partitionId(), context.attemptNumber(), context.taskAttemptId())


def as_row(report: Report) -> pa.RecordBatch:
    """What a writing task returns to Spark."""
    return pa.RecordBatch.from_pydict({"report": [json.dumps(report)]})


def collect_reports(written: DataFrame, tasks: int) -> list[Report]:
    """Runs the job; returns one report of each task, or CountsDisagree.

    None at all if Spark has planned the stage away: whether it may have, the caller checks.
    """
    reports = [json.loads(row["report"]) for row in written.collect()]
    if len(reports) not in (0, tasks):
        raise CountsDisagree(f"{tasks} tasks ran, and {len(reports)} have reported")
    return reports
