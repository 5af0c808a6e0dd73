"""One writing task: refuses what Spark should not do, drains or delivers, and reports.

A task writes only in a barrier stage, and only at its first attempt. Spark would accept the report
of a second attempt in place of the first one's, although the first may have written. If Spark knows
beforehand that there are no rows, it leaves the plan out, and the barrier with it: a task in
another stage may report that it got nothing.

Its report is Spark's commit message. It carries the plan, because the process that commits has
nothing else: the identity of the transaction, the ledger before the batch, and what the checkpoint
says about the batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import WriterCommitMessage

from fencepost.client.failures import ProducerFenced, UnknownTopicOrPartition
from fencepost.spark.failures import BatchTooLarge, CountsDisagree, RowRefused, SinkRefused
from fencepost.spark.sink.jobs.job import explain
from fencepost.spark.sink.ledger.decision import Verdict
from fencepost.spark.sink.limits import TopicLimits
from fencepost.spark.sink.producer import DriverProducer
from fencepost.spark.transport.delivery import Attempt
from fencepost.spark.transport.shuffled import PACKED_COLUMNS, DeliveryPlan, deliver

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from fencepost.client.transactions import ProducerIdentity
    from fencepost.spark.sink.settings import SinkSettings

CALL_ROUTE: Final = (
    "the DataFrame must end in fencepost.spark.route(df, bootstrap_servers, topic=...), with no "
    "step after it: it brings every row to the one task that writes its partition. Nothing was "
    "written"
)

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


def check_routed(schema: StructType) -> None:
    """Refuses a DataFrame that `route` has not packed."""
    if schema.fieldNames() != PACKED_COLUMNS.names:
        found = ", ".join(schema.fieldNames()) or "none"
        raise SinkRefused(f"the rows are not packed (the columns are {found}): {CALL_ROUTE}")


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
    )


def run_task(
    plan: Any,
    verdict: Verdict,
    settings: SinkSettings,
    place: TaskPlace,
    batches: Iterator[pa.RecordBatch],
) -> TaskReport:
    """Drains or delivers the batches of a task, and reports."""
    is_drained, rows = verdict is Verdict.DRAIN, []
    if is_drained:
        # A stateful query must store its state in any case, so its plan runs.
        for _ in batches:
            pass
    else:
        rows = _deliver_batches(plan.identity, settings, place, batches)
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


def _deliver_batches(
    identity: ProducerIdentity,
    settings: SinkSettings,
    place: TaskPlace,
    batches: Iterator[pa.RecordBatch],
) -> list[Mapping[str, Any]]:
    """Writes the batches, and returns what was acknowledged.

    SinkRefused if there are rows and the task may run more than once.
    """
    if not place.tasks:
        if any(batch.num_rows for batch in batches):
            raise SinkRefused(f"the write is not in a barrier stage: {CALL_ROUTE}")
        return []
    plan = DeliveryPlan(identity, place.tasks, settings.client)
    try:
        with explained_counts():
            reports = list(explain(deliver(plan, place.attempt, batches)))
    except BatchTooLarge as problem:
        raise _too_large(settings, problem) from problem
    except UnknownTopicOrPartition as problem:
        raise RowRefused(
            f"{problem}: it was deleted while the batch was written, or route() was given other "
            "brokers than the format. Nothing of the batch was kept"
        ) from problem
    except ProducerFenced as problem:
        producer = DriverProducer(identity.transactional_id or "", settings)
        producer.resume(identity)
        raise producer.fenced() from problem
    return [row for report in reports for row in report.to_pylist()]


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


def _too_large(settings: SinkSettings, problem: BatchTooLarge) -> RowRefused:
    if problem.records <= 1:
        return TopicLimits(settings).refusal(problem)
    return RowRefused(
        f"{problem}, and this route cannot repeat it with smaller ones: pass "
        f"options={{'kafka.batch.size': '{problem.size_bytes // 2}'}} to route(), or raise "
        "max.message.bytes of the topic. Nothing of the batch was kept"
    )
