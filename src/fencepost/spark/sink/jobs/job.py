"""The Spark job of one attempt: pack, bring to the writer, deliver, collect.

Rows have four routes to the one writer of their partition, with the same guarantee:

    collected  the driver collects them and writes them itself (`transport/collected.py`)
    preserved  the task that has read them writes them, if the user says so
               (`transport/preserved.py`)
    direct     from task to task, where all tasks can run at once (`transport/direct.py`), and on
               one host unless the user allows plain connections between hosts (`hosts.py`)
    shuffled   through Spark's shuffle: for every other plan, and after a failed attempt of the
               batch (`transport/shuffled.py`)

A barrier stage does not allow a plan that changes the number of partitions without a shuffle
(union, coalesce): such a plan uses the shuffle from the start.

The stage whose tasks write must be a barrier stage that ends in `collect`: then Spark runs each of
its tasks once, or fails the job. With a count or an aggregate, Spark might run its tasks again.

Under dynamic allocation Spark refuses barrier stages. Batches that the driver does not collect go
through the shuffle then, and the tasks need permits (`permitted.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from fencepost.base.errors import ErrorCode
from fencepost.client.failures import BatchRefusedForSize, Refused
from fencepost.spark.connection import begin_partition_count
from fencepost.spark.failures import BatchTooLarge, RowRefused
from fencepost.spark.session import (
    allows_barrier,
    changed_setting,
    concurrent_tasks,
)
from fencepost.spark.sink.jobs.counts import is_observed
from fencepost.spark.sink.jobs.hosts import check_secrets, exchange_hosts, meeting_place
from fencepost.spark.sink.jobs.permitted import granting_permits, planned_tasks
from fencepost.spark.sink.jobs.preserving import (
    PARTITIONS_CHANGED,
    SHUFFLE,
    check_lineage,
    check_target,
)
from fencepost.spark.sink.jobs.workers_python import workers_python
from fencepost.spark.sink.settings import SinkSettings
from fencepost.spark.slots import announce_slots
from fencepost.spark.transport.accounts import Account, settle_accounts
from fencepost.spark.transport.collected import AttachedRecord, RowCollector, write_collected
from fencepost.spark.transport.delivery import REPORT_SCHEMA, Attempt
from fencepost.spark.transport.direct import DirectPlan, write_directly
from fencepost.spark.transport.exchange import MAX_TASKS, Meeting
from fencepost.spark.transport.meeting.claims import Claims
from fencepost.spark.transport.meeting.handshake import make_secret
from fencepost.spark.transport.meeting.permits import Permit
from fencepost.spark.transport.meeting.rendezvous import Rendezvous
from fencepost.spark.transport.own_rows import write_own_rows
from fencepost.spark.transport.packing.packer import PackingPlan
from fencepost.spark.transport.packing.rows import select_rows
from fencepost.spark.transport.preserved import PreservedPlan, write_preserved
from fencepost.spark.transport.shuffled import PACKED_SCHEMA, DeliveryPlan, deliver, pack
from fencepost.spark.transport.slots import bring_to_slots

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from fencepost.client.transactions import ProducerIdentity
    from fencepost.spark.transport.meeting.permits import PermitServer

log = logging.getLogger(__name__)

_ABOUT_ROWS: Final[Mapping[int, str]] = {
    ErrorCode.INVALID_RECORD: "the topic does not accept these rows (a compacted topic needs a key "
    "in every row)",
    ErrorCode.INVALID_TIMESTAMP: "the topic does not accept the timestamps of these rows "
    "(message.timestamp.before.max.ms, message.timestamp.after.max.ms)",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "this user may not write to the topic: grant WRITE on it",
}
"""Errors about the rows themselves, which another attempt would not fix."""


_UNFIT_FOR_BARRIER: Final = (
    "Barrier execution mode does not allow the following pattern of RDD chain"
)

ARROW_BYTES: Final = 1024 * 1024
_ARROW_BYTES: Final = "spark.sql.execution.arrow.maxBytesPerBatch"

Report = Mapping[str, Any]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class JobPlan:
    """One attempt to write one batch."""

    settings: SinkSettings
    identity: ProducerIdentity
    batch_id: int
    topic: str | None
    batch_bytes: int
    """The maximum bytes of records per batch for these topics."""
    reserved: Mapping[str, str]
    """Topics that rows must not name, with the reason."""
    collector: RowCollector
    """Collects the rows of small batches."""
    direct: bool
    """Whether batches may go from task to task."""
    by_permit: bool = False
    """Whether to do without barrier stages: tasks ask for permits, and rows are shuffled."""
    attached: AttachedRecord | None = None
    """Goes in the same request as the rows if the driver writes them itself."""
    before_run: Callable[[DataFrame], None] = lambda _: None
    """Called before anything runs the plan of the rows."""
    source_partitions: int | None = None
    """With `preserve_partitioning`: how many partitions the source has."""


def run_job(df: DataFrame, plan: JobPlan) -> Account:
    """Writes the rows and returns what was acknowledged; raises if the counts do not add up."""
    if plan.source_partitions is not None:
        target = sum(_begin_counts(plan)().values())
        check_target(plan.topic, df.columns, plan.source_partitions, target)
    reports = _run_collected(df, plan) if plan.collector.limit else None
    if reports is None:
        # From here on executors write, and so need the brokers' passwords.
        check_secrets(df.sparkSession, plan.settings)
        rows = _selected(df, plan)
        run_at_once = _run_direct if plan.source_partitions is None else _run_preserved
        may_run_at_once = plan.direct and not plan.by_permit
        reports = run_at_once(rows, plan) if may_run_at_once else None
        if reports is None:
            reports = _run_shuffled(rows, plan)
    return settle_accounts(reports)


def run_unfenced_job(df: DataFrame, plan: JobPlan) -> Account:
    """The same without a transaction: every task writes its own rows, and Spark may repeat it."""
    reports = _run_collected(df, plan) if plan.collector.limit else None
    if reports is None:
        reports = _run_own_rows(_selected(df, plan), plan)
    return settle_accounts(reports, one_writer=False)


def _selected(df: DataFrame, plan: JobPlan) -> DataFrame:
    return select_rows(df, plan.topic, with_times=plan.settings.write_timestamps)


def _packing_plan(plan: JobPlan, slots: int, partition_counts: Mapping[str, int]) -> PackingPlan:
    return PackingPlan(
        batch_id=plan.batch_id,
        slots=slots,
        topic=plan.topic,
        partition_counts=partition_counts,
        codec=plan.settings.codec,
        batch_bytes=plan.batch_bytes,
        max_record_bytes=plan.settings.client.max_request_bytes,
        options=plan.settings.client,
        reserved=plan.reserved,
        by_column_only=plan.source_partitions is not None,
    )


def _begin_counts(plan: JobPlan) -> Callable[[], Mapping[str, int]]:
    """Requests the partition count of the sink's topic; the returned function waits for it."""
    topic = plan.topic
    if topic is None:
        return dict
    hear = begin_partition_count(plan.settings.client, topic)
    return lambda: {topic: hear()}


def _run_collected(df: DataFrame, plan: JobPlan) -> list[Report] | None:
    """None if there are more rows than the driver collects, or if an `observe` would miss some."""
    if is_observed(df):
        return None
    hear_counts = _begin_counts(plan)
    try:
        plan.before_run(df)
        taken = plan.collector.collect(df)
    finally:
        counts = hear_counts()
    if taken is None:
        return None
    packing = _packing_plan(plan, 1, counts)
    return list(explain(write_collected(packing, plan.identity, taken, plan.attached)))


def _run_direct(rows: DataFrame, plan: JobPlan) -> list[Report] | None:
    """None if tasks must not connect to each other, or Spark cannot run them all at once."""
    session = rows.sparkSession
    hosts = exchange_hosts(session, plan.settings)
    if hosts is None:
        return None
    counts = _begin_counts(plan)()
    packing = _packing_plan(plan, choose_slots(session, counts), counts)
    secret = make_secret()
    with (
        Rendezvous(*meeting_place(session), secret) as rendezvous,
        _small_arrow_batches(session),
        workers_python(session),
    ):
        meeting = Meeting(rendezvous.address, secret, hosts)
        direct = DirectPlan(packing, plan.identity, meeting)
        written = rows.mapInArrow(_direct_task(direct), REPORT_SCHEMA, barrier=True)
        # Adaptive execution runs all stages but the last to learn its partitions.
        plan.before_run(rows)
        if not _fits_barrier(written, min(concurrent_tasks(session), MAX_TASKS)):
            return None
        try:
            return _collect(written)
        except Exception as problem:
            # Raised before any task was started.
            if _UNFIT_FOR_BARRIER in str(problem):
                return None
            raise


def _run_preserved(rows: DataFrame, plan: JobPlan) -> list[Report] | None:
    """None if there are more tasks than slots; SinkRefused for a plan that moves rows."""
    session = rows.sparkSession
    counts = _begin_counts(plan)()
    packing = _packing_plan(plan, choose_slots(session, counts), counts)
    secret = make_secret()
    with (
        Claims(*meeting_place(session), secret) as claims,
        _small_arrow_batches(session),
        workers_python(session),
    ):
        preserved = PreservedPlan(packing, plan.identity, claims.address, secret)
        written = rows.mapInArrow(_preserving_task(preserved), REPORT_SCHEMA, barrier=True)
        plan.before_run(rows)
        rdd = written._jdf.queryExecution().toRdd()  # noqa: SLF001
        check_lineage(str(rdd.toDebugString()))
        tasks, slots = int(rdd.getNumPartitions()), concurrent_tasks(session)
        if tasks > slots:
            log.warning(
                "batch %d goes through the shuffle: %d tasks have to write at once to preserve "
                "partitions, and %d can run. Spark's own source needs a slot for each partition; "
                "format fencepost packs partitions into maxTasks tasks",
                plan.batch_id,
                tasks,
                slots,
            )
            return None
        return _collect(written)


def _run_shuffled(rows: DataFrame, plan: JobPlan) -> list[Report]:
    session = rows.sparkSession
    counts = _begin_counts(plan)()
    slots = choose_slots(session, counts)
    with (
        _small_arrow_batches(session),
        workers_python(session),
        _permits(session, plan) as permits,
    ):
        call = None if permits is None else permits.call
        delivery = DeliveryPlan(plan.identity, slots, plan.settings.client, call)
        packed = rows.mapInArrow(_packing_task(_packing_plan(plan, slots, counts)), PACKED_SCHEMA)
        routed = bring_to_slots(packed, slots).sortWithinPartitions("map_id", "ordinal")
        written = routed.mapInArrow(
            _delivering_task(delivery), REPORT_SCHEMA, barrier=not plan.by_permit
        )
        plan.before_run(rows)
        reports = _collect(written)
        if permits is not None:
            permits.book.check(reports)
        return reports


def _permits(
    session: SparkSession, plan: JobPlan
) -> AbstractContextManager[PermitServer] | AbstractContextManager[None]:
    return granting_permits(session, *meeting_place(session)) if plan.by_permit else nullcontext()


def _run_own_rows(rows: DataFrame, plan: JobPlan) -> list[Report]:
    packing = _packing_plan(plan, 1, _begin_counts(plan)())
    with _small_arrow_batches(rows.sparkSession), workers_python(rows.sparkSession):
        written = rows.mapInArrow(_own_rows_task(packing), REPORT_SCHEMA)
        plan.before_run(rows)
        return _collect(written)


def _small_arrow_batches(session: SparkSession) -> AbstractContextManager[None]:
    """Makes the JVM send rows in pieces that fit the CPU cache, and continue while Python packs."""
    return changed_setting(session.conf, _ARROW_BYTES, str(ARROW_BYTES))


def _collect(written: DataFrame) -> list[Report]:
    return [row.asDict() for row in written.collect()]


def _fits_barrier(df: DataFrame, slots: int) -> bool:
    """Whether Spark can run the last stage of this plan as a barrier stage."""
    rdd = df._jdf.queryExecution().toRdd()  # noqa: SLF001
    if int(rdd.getNumPartitions()) > slots:
        return False
    last_stage = str(rdd.toDebugString()).partition(SHUFFLE)[0]
    return not any(name in last_stage for name in PARTITIONS_CHANGED)


def choose_slots(session: SparkSession, partition_counts: Mapping[str, int]) -> int:
    """The number of writing tasks: all that can run at once, at most one per partition."""
    if allows_barrier(session):
        slots = concurrent_tasks(session)
        announce_slots(session, slots)
    else:
        slots = planned_tasks(session)
    targets = sum(partition_counts.values())
    return max(1, min(slots, targets) if targets else slots)


def _direct_task(plan: DirectPlan) -> Any:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import BarrierTaskContext

        context = BarrierTaskContext.get()
        attempt = Attempt(context.partitionId(), context.attemptNumber(), context.taskAttemptId())
        return explain(write_directly(plan, attempt, len(context.getTaskInfos()), batches))

    return run


def _preserving_task(plan: PreservedPlan) -> Any:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        attempt = Attempt(context.partitionId(), context.attemptNumber(), context.taskAttemptId())
        return explain(write_preserved(plan, attempt, batches))

    return run


def _packing_task(plan: PackingPlan) -> Any:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        return pack(plan, context.partitionId(), batches, context.taskAttemptId())

    return run


def _delivering_task(plan: DeliveryPlan) -> Any:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        attempt = Attempt(context.partitionId(), context.attemptNumber(), context.taskAttemptId())
        if plan.permits is None:
            return explain(deliver(plan, attempt, batches))
        permit = Permit(plan.permits, attempt)
        return permit.guard(explain(deliver(plan, attempt, batches, permit)))

    return run


def _own_rows_task(plan: PackingPlan) -> Any:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        attempt = Attempt(context.partitionId(), context.attemptNumber(), context.taskAttemptId())
        return explain(write_own_rows(plan, attempt, batches))

    return run


def explain(reports: Iterator[T]) -> Iterator[T]:
    """Passes the reports on; turns a broker's refusal of the rows into RowRefused."""
    with explained_refusals():
        yield from reports


@contextmanager
def explained_refusals() -> Iterator[None]:
    """Turns a broker's refusal of the rows into RowRefused, or BatchTooLarge."""
    try:
        yield
    except BatchRefusedForSize as problem:
        raise _too_large(problem) from problem
    except Refused as problem:
        if (advice := _ABOUT_ROWS.get(problem.code)) is None:
            raise
        raise RowRefused(f"{problem.partition}: {advice}") from problem


def _too_large(problem: BatchRefusedForSize) -> BatchTooLarge:
    assert problem.partition is not None, "a writer names the partition"
    return BatchTooLarge(problem.partition.topic, problem.records, problem.size_bytes)
