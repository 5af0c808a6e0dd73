"""One task of the data source's writer: refuses what Spark should not do, and reports.

The rows are written by the step before it in the same task (`steps.py`), with the identity that
this one hands over. A task works only in a barrier stage, and only at its first attempt. Spark
would accept the report of a second attempt in place of the first one's, although the first may have
written. If Spark knows beforehand that there are no rows, it leaves the plan out, and the barrier
with it: a task in another stage may report that it got nothing.

Its report is Spark's commit message. It carries the plan, because the process that commits has
nothing else: the identity of the transaction, the ledger before the batch, and what the checkpoint
says about the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructField, StructType

from fencepost.spark.compiled import freeze_loaded_objects
from fencepost.spark.failures import CountsDisagree, SinkRefused
from fencepost.spark.sink.ledger.decision import Verdict
from fencepost.spark.transport.delivery import REPORT_COLUMNS, Attempt
from fencepost.spark.transport.meeting.hand_over import Orders, handing_over

if TYPE_CHECKING:
    import pyarrow as pa

    from fencepost.client.transactions import ProducerIdentity

CALL_ROUTE: Final = (
    "the DataFrame must end in fencepost.spark.route(df, bootstrap_servers, topic=...), with no "
    "step after it: it brings every row to the one task that writes its partition. Nothing was "
    "written"
)

_METADATA: Final = "fencepost.route"
"""Where the first column of a routed DataFrame has its token (`transport/meeting/hand_over.py`)."""

_QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
"""The local properties that name a query and its micro-batch."""


@dataclass(frozen=True, slots=True)
class TaskReport(WriterCommitMessage):
    """What one task did."""

    plan: Any
    """The plan that it got: of a stream's batch, or of a batch write."""
    identity: ProducerIdentity
    task: int
    tasks: int
    """How many tasks the barrier stage has; 0 for a task without rows in another stage."""
    query_id: str = ""
    batch_id: int = -1
    is_drained: bool = False
    rows: list[Mapping[str, Any]] = field(default_factory=list)
    """As in `transport/delivery.py`."""


@dataclass(frozen=True, slots=True)
class TaskPlace:
    """Where a task runs."""

    attempt: Attempt
    tasks: int
    """0 outside of a barrier stage."""
    query_id: str
    batch_id: int
    stage: int


def routed_columns(token: str, metadata: Mapping[str, str] | None = None) -> StructType:
    """The columns of a routed DataFrame: a report, with the token in the first one's metadata."""
    first, *others = from_arrow_schema(REPORT_COLUMNS).fields
    known = {_METADATA: token, **(metadata or {})}
    named = StructField(first.name, first.dataType, first.nullable, known)
    return StructType([named, *others])


def check_routed(schema: StructType) -> str:
    """Refuses a DataFrame that does not end in `route`; returns the token of one that does."""
    token = schema.fields[0].metadata.get(_METADATA) if schema.fields else None
    if token is None or schema.fieldNames() != REPORT_COLUMNS.names:
        found = ", ".join(schema.fieldNames()) or "none"
        raise SinkRefused(f"the rows are not packed (the columns are {found}): {CALL_ROUTE}")
    return str(token)


def find_place() -> TaskPlace:
    """The running task."""
    from pyspark import BarrierTaskContext, TaskContext

    context = TaskContext.get()
    assert context is not None
    return TaskPlace(
        Attempt(context.partitionId(), context.attemptNumber(), context.taskAttemptId()),
        len(context.getTaskInfos()) if isinstance(context, BarrierTaskContext) else 0,
        context.getLocalProperty(_QUERY_ID) or "",
        int(context.getLocalProperty(BATCH_ID) or -1),
        context.stageId(),
    )


def run_task(
    plan: Any,
    decide: Callable[[], Verdict],
    place: TaskPlace,
    batches: Iterator[pa.RecordBatch],
    token: str,
) -> TaskReport:
    """Has the step before write the rows of this task, and reports.

    `decide` may raise SinkRefused.
    """
    try:
        is_drained = decide() is Verdict.DRAIN
    except SinkRefused as problem:
        refusal = Orders(plan.identity, drains=True, refusal=str(problem))
        _rows_written(refusal, place, batches, token)
        raise
    orders = Orders(plan.identity, is_drained, plan.cluster_id)
    rows = _rows_written(orders, place, batches, token)
    freeze_loaded_objects()
    return TaskReport(
        plan,
        plan.identity,
        place.attempt.partition_id,
        place.tasks,
        place.query_id,
        place.batch_id,
        is_drained,
        rows,
    )


def _rows_written(
    orders: Orders, place: TaskPlace, batches: Iterator[pa.RecordBatch], token: str
) -> list[Mapping[str, Any]]:
    """Hands over the identity, and returns the report of the step.

    SinkRefused if there is one and the task may run more than once.
    """
    if not place.tasks:
        if any(batch.num_rows for batch in batches):
            raise SinkRefused(f"the write is not in a barrier stage: {CALL_ROUTE}")
        return []
    place.attempt.refuse_second()
    with handing_over(token, place.attempt, orders):
        rows = [row for batch in batches for row in batch.to_pylist()]
    with explained_counts():
        if others := {row["task_attempt_id"] for row in rows} - {place.attempt.task_attempt_id}:
            raise CountsDisagree(f"a report of another task ({min(others)}) came")
    return rows


@contextmanager
def explained_counts() -> Iterator[None]:
    """Says what a user can do about counts that disagree."""
    try:
        yield
    except CountsDisagree as problem:
        raise CountsDisagree(
            f"{problem}. Nothing of the batch is visible. If a step follows route(), remove it: "
            "every batch must reach its writer, once"
        ) from problem
