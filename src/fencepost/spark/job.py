"""The Spark job of one attempt: pack, route, deliver, collect.

The last stage must be a barrier stage that ends in `collect`: then Spark runs each of its tasks once, or fails the
job. A count or an aggregate would make it a stage whose tasks Spark may run again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fencepost.spark.accounts import Account, settle_accounts
from fencepost.spark.delivering import REPORT_SCHEMA, Attempt, DeliveryPlan, deliver
from fencepost.spark.packing import PACKED_SCHEMA, PackingPlan, pack
from fencepost.spark.rows import select_rows
from fencepost.spark.settings import SinkSettings

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from fencepost.client.transactions import ProducerIdentity


@dataclass(frozen=True, slots=True)
class JobPlan:
    """One attempt to write one batch."""

    settings: SinkSettings
    identity: ProducerIdentity
    batch_id: int
    topic: str | None
    partition_counts: Mapping[str, int]


def run_job(df: DataFrame, plan: JobPlan) -> Account:
    """Writes the rows and returns what was acknowledged; raises when anything does not add up."""
    rows = select_rows(df, plan.topic)
    slots = choose_slots(df.sparkSession, plan.partition_counts if plan.topic else {})
    packing = PackingPlan(
        batch_id=plan.batch_id,
        slots=slots,
        topic=plan.topic,
        partition_counts=plan.partition_counts,
        codec=plan.settings.codec,
        batch_bytes=plan.settings.batch_bytes,
        max_record_bytes=plan.settings.client.max_request_bytes,
        options=plan.settings.client,
    )
    delivery = DeliveryPlan(plan.identity, slots, plan.settings.client)
    packed = rows.mapInArrow(_packing_task(packing), PACKED_SCHEMA)
    routed = packed.repartitionById(slots, "slot").sortWithinPartitions("map_id", "ordinal")
    written = routed.mapInArrow(_delivering_task(delivery), REPORT_SCHEMA, barrier=True)
    return settle_accounts(row.asDict() for row in written.collect())


def choose_slots(session: SparkSession, partition_counts: Mapping[str, int]) -> int:
    """How many tasks write: as many as can run at once, and no more than there are partitions."""
    slots = concurrent_tasks(session)
    targets = sum(partition_counts.values())
    return max(1, min(slots, targets) if targets else slots)


def concurrent_tasks(session: SparkSession) -> int:
    """How many tasks can run at the same time: what a barrier stage may need at most."""
    context: Any = session.sparkContext._jsc.sc()  # noqa: SLF001
    profile = context.resourceProfileManager().defaultResourceProfile()
    return int(context.maxNumConcurrentTasks(profile))


def _packing_task(plan: PackingPlan) -> Any:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        return pack(plan, context.partitionId(), batches)

    return run


def _delivering_task(plan: DeliveryPlan) -> Any:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        attempt = Attempt(context.partitionId(), context.attemptNumber(), context.taskAttemptId())
        return deliver(plan, attempt, batches)

    return run
