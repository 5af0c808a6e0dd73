"""One task of the data source's writer: writes what reaches it, and reports.

A task works only in a barrier stage, and only at its first attempt: Spark would accept the report
of a second attempt in place of the first one's, although the first may have written. Whether all
rows arrived is known only at their end (`trailer.py`), when most are in the transaction already. So
a task that fails aborts the transaction, with its own identity: nothing is visible, and no reader
has to wait.

A batch DataFrame that has no rows may have no trailer. Spark replaces the sorted, empty result of
the shuffle with a plan that has no partitions, without the hop, and runs one task outside of any
barrier stage. Such a task of a batch write may report that it got nothing. In a stream Spark plans
nothing away: there a missing trailer is always refused.

The report is Spark's commit message. It carries the transaction, because the process that commits
has nothing else.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql.datasource import WriterCommitMessage

from fencepost.base.failures import FencepostError
from fencepost.client.failures import ProducerFenced, UnknownTopicOrPartition
from fencepost.spark.connection import cluster_of
from fencepost.spark.doors.trailer import not_the_last, without_trailer
from fencepost.spark.engine.private_names import THREAD
from fencepost.spark.failures import BatchTooLarge, CountsDisagree, RowRefused, SinkRefused
from fencepost.spark.ledger.rule import Verdict
from fencepost.spark.transaction.identity import DriverProducer
from fencepost.spark.ways.delivery import Attempt
from fencepost.spark.ways.limits import TopicLimits
from fencepost.spark.ways.shuffled import DeliveryPlan, deliver
from fencepost.spark.ways.stage import this_attempt

if TYPE_CHECKING:
    import pyarrow as pa

    from fencepost.client.transactions import ProducerIdentity
    from fencepost.spark.settings import SinkSettings
    from fencepost.spark.transaction.transaction import Transaction

log = logging.getLogger(__name__)

OTHERS_SECONDS: Final = 3.0
"""How long a task that another one's abort has fenced waits, so that the other one can tell Spark
the reason."""


@dataclass(frozen=True, slots=True)
class TaskReport(WriterCommitMessage):
    """What one task did."""

    transaction: Transaction
    """As this task has left it."""
    task: int
    tasks: int
    """How many tasks the barrier stage has; 0 for the only task of a write without rows."""
    query_id: str = ""
    batch_id: int = -1
    is_drained: bool = False
    rows: list[Mapping[str, Any]] = field(default_factory=list)
    """As in `ways/accounts.py`."""


class Target(NamedTuple):
    """Where the rows go."""

    settings: SinkSettings
    cluster_id: str


@dataclass(frozen=True, slots=True)
class TaskPlace:
    """Where a task runs."""

    attempt: Attempt
    tasks: int
    """0 outside of a barrier stage."""
    query_id: str
    batch_id: int


def find_place() -> TaskPlace:
    """The running task."""
    from pyspark import BarrierTaskContext, TaskContext

    context = TaskContext.get()
    assert context is not None
    return TaskPlace(
        this_attempt(),
        len(context.getTaskInfos()) if isinstance(context, BarrierTaskContext) else 0,
        context.getLocalProperty(THREAD.query) or "",
        int(context.getLocalProperty(THREAD.batch) or -1),
    )


def write_task(
    transaction: Transaction,
    verdict: Verdict,
    place: TaskPlace,
    batches: Iterator[pa.RecordBatch],
    target: Target,
    *,
    may_be_empty: bool,
) -> TaskReport:
    """Writes the rows of this task in a transaction that is decided, and reports.

    `may_be_empty`: Spark may have planned the hop away, because there are no rows.
    """
    is_drained = verdict is Verdict.DRAIN
    identity = transaction.producer.identity if is_drained else transaction.lend()
    rows: list[Mapping[str, Any]] = []
    if not place.tasks:
        _require_nothing(batches, may_be_empty)
    if is_drained:
        # A stateful query must store its state in any case, so its plan runs.
        for _ in batches:
            pass
    elif place.tasks:
        with _aborting(identity, target.settings):
            rows = _write(identity, place, batches, target)
    return TaskReport(
        transaction,
        place.attempt.partition_id,
        place.tasks,
        place.query_id,
        place.batch_id,
        is_drained,
        rows,
    )


def _require_nothing(batches: Iterator[pa.RecordBatch], may_be_empty: bool) -> None:
    """SinkRefused if a task outside of a barrier stage got rows, or should have got a trailer."""
    if any(batch.num_rows for batch in batches):
        raise not_the_last("the write is not in its barrier stage")
    if not may_be_empty:
        raise not_the_last("the end of a task's rows did not reach its writer")


def _write(
    identity: ProducerIdentity,
    place: TaskPlace,
    batches: Iterator[pa.RecordBatch],
    target: Target,
) -> list[Mapping[str, Any]]:
    settings = target.settings
    delivery = DeliveryPlan(identity, place.tasks, settings.client)
    rows = without_trailer(batches, place.attempt, place.tasks)
    rows = _in_cluster(rows, target.cluster_id, settings)
    with _explained(identity, settings), explained_counts():
        return [deliver(delivery, place.attempt, rows)]


def _in_cluster(
    batches: Iterator[pa.RecordBatch], mine: str, settings: SinkSettings
) -> Iterator[pa.RecordBatch]:
    """The same batches; SinkRefused if `route` was given another cluster than the format."""
    for batch in batches:
        for theirs in batch.column("cluster").unique().to_pylist():
            if theirs == mine:
                continue
            # What was known here may be outdated.
            mine = cluster_of(settings.client).describe_cluster().cluster_id or ""
            if theirs != mine:
                raise SinkRefused(
                    f"route() was given brokers of cluster {theirs}, and the format those of "
                    f"{mine}: give both the same kafka.bootstrap.servers. Nothing was written"
                )
        yield batch


# What goes wrong.


@contextmanager
def _aborting(identity: ProducerIdentity, settings: SinkSettings) -> Iterator[None]:
    """Aborts the transaction if the block fails."""
    try:
        yield
    except Exception:
        try:
            cluster_of(settings.client).end_txn(identity, commit=False)
        except FencepostError as problem:
            # Nothing was open, or another task was faster.
            log.info("the transaction cannot be aborted: %s", problem)
        raise


@contextmanager
def _explained(identity: ProducerIdentity, settings: SinkSettings) -> Iterator[None]:
    """Says what a user can do about a batch that brokers refuse."""
    try:
        yield
    except BatchTooLarge as problem:
        raise _too_large(settings, problem) from problem
    except UnknownTopicOrPartition as problem:
        raise RowRefused(
            f"{problem}: it was deleted while the batch was written. Nothing of the batch was kept"
        ) from problem
    except ProducerFenced as problem:
        producer = DriverProducer(identity.transactional_id or "", settings)
        producer.resume(identity)
        if producer.has_timed_out():
            # More likely, another task has failed: then Spark ends this one.
            time.sleep(OTHERS_SECONDS)
        raise producer.fenced() from problem


def _too_large(settings: SinkSettings, problem: BatchTooLarge) -> RowRefused:
    if problem.records <= 1:
        return TopicLimits(settings).refusal(problem)
    return RowRefused(
        f"{problem}, and the format cannot repeat it with smaller ones: pass "
        f"options={{'kafka.batch.size': '{problem.size_bytes // 2}'}} to route(), or raise "
        "max.message.bytes of the topic. Nothing of the batch was kept"
    )


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
