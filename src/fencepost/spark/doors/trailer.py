"""What the last step of `route` adds to the rows, so that the writer can tell whether all came.

Theory of operation. The last step of a routed plan is a barrier step: the *hop*. It passes the
packed batches on and ends with one more row, the trailer, also if it got none. The data source's
writer of the same task checks the trailer against what it received:

    cluster   in every row: the cluster whose partitions `route` has counted
    attempt   the attempt of the task, whose id no other one has in this application
    task      its number, and `tasks`: how many tasks the barrier stage has
    count     how many rows passed, and `digest`: a CRC over them, in their order

A step that a user adds after `route` drops, doubles, changes or reorders rows, or moves them to
another task. Each of them changes one of these, or loses the trailer.

The hop exists because a Python task cannot see the attempt of its stage. After a lost shuffle file
Spark would run a stage again, and two tries of one task would both write as the first attempt. A
barrier stage is never run again: it fails.

The digest covers the payloads. CRC-32C runs at gigabytes per second, so it costs less than copying
the bytes, and a changed payload cannot pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from crc32c import crc32c
from pyspark.sql.types import StructField, StructType

from fencepost.spark.engine.frames import spark_columns
from fencepost.spark.failures import SinkRefused
from fencepost.spark.ways.shuffled import PACKED_COLUMNS

if TYPE_CHECKING:
    from fencepost.spark.ways.delivery import Attempt

CALL_ROUTE: Final = (
    "the DataFrame must end in fencepost.spark.route(df, bootstrap_servers, topic=...), with no "
    "step after it: it brings every row to the one task that writes its partition. Nothing was "
    "written"
)
REMOVE_STEPS: Final = (
    "route() must be the last step before the write, and {found}: remove what follows it, or do it "
    "before route(). Nothing of the batch is visible"
)

_TRAILER: Final = (
    ("cluster", pa.string()),
    ("attempt", pa.int64()),
    ("task", pa.int32()),
    ("tasks", pa.int32()),
    ("count", pa.int64()),
    ("digest", pa.int64()),
)
ROUTED_COLUMNS: Final = pa.schema([*PACKED_COLUMNS, *(pa.field(*one) for one in _TRAILER)])

_NEVER_NULL: Final = ("slot", "map_id", "run", "ordinal", "payload")
_METADATA: Final = "fencepost.route"
"""Marks the first column of a routed DataFrame."""


def routed_columns(metadata: Mapping[str, str] | None = None) -> StructType:
    """The columns of a routed DataFrame, with a mark in the first one's metadata."""
    first, *others = spark_columns(ROUTED_COLUMNS).fields
    known = {_METADATA: "last", **(metadata or {})}
    return StructType([StructField(first.name, first.dataType, first.nullable, known), *others])


def check_routed(schema: StructType) -> None:
    """SinkRefused if a DataFrame does not have the columns that `route` returns."""
    mark = schema.fields[0].metadata.get(_METADATA) if schema.fields else None
    if mark is None or schema.simpleString() != routed_columns().simpleString():
        found = ", ".join(schema.fieldNames()) or "none"
        raise SinkRefused(f"the rows are not packed (the columns are {found}): {CALL_ROUTE}")


def not_the_last(found: str) -> SinkRefused:
    """The error for rows that are not those which the hop has passed on."""
    return SinkRefused(REMOVE_STEPS.format(found=found))


class Tally:
    """Counts rows, and digests them in their order."""

    def __init__(self) -> None:
        self.count = 0
        self.digest = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Adds all rows of an Arrow batch."""
        payloads = rows.column("payload")
        fields = [
            rows.column(name).to_pylist() for name in PACKED_COLUMNS.names if name != "payload"
        ]
        for values, payload in zip(zip(*fields, strict=True), payloads, strict=True):
            content = payload.as_buffer()
            head = repr((values, content.size)).encode("utf-8")
            self.digest = crc32c(content, crc32c(head, self.digest))
        self.count += rows.num_rows


# The hop.


def with_trailer(
    batches: Iterator[pa.RecordBatch], attempt: Attempt, tasks: int, cluster_id: str
) -> Iterator[pa.RecordBatch]:
    """The same batches, and a trailer."""
    tally = Tally()
    for batch in batches:
        tally.add(batch)
        missing = [pa.nulls(batch.num_rows, kind) for _, kind in _TRAILER[1:]]
        cluster = pa.repeat(pa.scalar(cluster_id, pa.string()), batch.num_rows)
        packed = (batch.column(name) for name in PACKED_COLUMNS.names)
        yield pa.RecordBatch.from_arrays([*packed, cluster, *missing], schema=ROUTED_COLUMNS)
    trailer = {
        "cluster": cluster_id,
        "attempt": attempt.task_attempt_id,
        "task": attempt.partition_id,
        "tasks": tasks,
        "count": tally.count,
        "digest": tally.digest,
    }
    yield pa.RecordBatch.from_pylist([trailer], schema=ROUTED_COLUMNS)


# The writer.


def without_trailer(
    batches: Iterator[pa.RecordBatch], attempt: Attempt, tasks: int
) -> Iterator[pa.RecordBatch]:
    """The rows without the trailer; SinkRefused at their end if it does not belong to them."""
    tally = Tally()
    trailer: Mapping[str, Any] | None = None
    for batch in batches:
        rows = batch
        if batch.num_rows and trailer is not None:
            raise not_the_last("rows came after the end of a task")
        if batch.column("attempt").null_count < batch.num_rows:
            rows, trailer = _split(batch)
        if any(rows.column(name).null_count for name in _NEVER_NULL):
            raise not_the_last("rows came that it did not make")
        tally.add(rows)
        if rows.num_rows:
            yield rows
    _check_trailer(trailer, tally, attempt, tasks)


def _split(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Mapping[str, Any]]:
    """Rows and trailer of a batch that has one; SinkRefused unless it is the last row."""
    last = batch.num_rows - 1
    rows = batch.slice(0, last)
    if rows.column("attempt").null_count < last:
        raise not_the_last("rows came after the end of a task")
    return rows, batch.slice(last).to_pylist()[0]


def _check_trailer(
    trailer: Mapping[str, Any] | None, tally: Tally, attempt: Attempt, tasks: int
) -> None:
    if trailer is None:
        raise not_the_last("the end of a task's rows did not reach its writer")
    if (trailer["task"], trailer["tasks"]) != (attempt.partition_id, tasks):
        raise not_the_last("rows came from another task")
    if trailer["attempt"] != attempt.task_attempt_id:
        raise not_the_last("rows came from another run of the task, as from a cache")
    if trailer["count"] != tally.count:
        raise not_the_last(f"{tally.count} packed batches came, of {trailer['count']}")
    if trailer["digest"] != tally.digest:
        raise not_the_last("rows came in another order, or with other content")
