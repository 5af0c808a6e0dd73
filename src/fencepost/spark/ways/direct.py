"""The direct route, from task to task without Spark's shuffle: one stage packs, exchanges, writes.

    rows -> pack -> own partition?  yes -> deliver
                                    no  -> over a socket to the task that writes it -> deliver

All tasks must run at once, as a barrier stage. So the rows must have no more partitions than there
are slots. Compared with the shuffle this saves a stage, and two of the three times that every byte
passes between the JVM and Python. The rules are the same: one writer per topic-partition, and
counts that the driver compares.

Several threads share the work of a task. Spark's thread reads rows, packs them, and sends batches
to other tasks. The threads of `exchange.py` receive batches from other tasks. Only the delivery
thread (`delivery.py`) talks to the brokers. Waiting is never circular: sending waits for the peer's
delivery thread, and a delivery thread waits for brokers only.

The length of a partition's first batch depends on its writer (`delivery.py`). Any task's batch may
arrive first, so each task cuts its first batch for a partition to that length.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from fencepost.base.ids import TopicPartition
from fencepost.client.transactions import ProducerIdentity
from fencepost.spark.compiled import freeze_loaded_objects
from fencepost.spark.engine.hosts import exchange_hosts, meeting_place
from fencepost.spark.engine.session import concurrent_tasks
from fencepost.spark.ways.accounts import Report, report_of
from fencepost.spark.ways.delivery import (
    Attempt,
    DeliveryThread,
    explained_refusals,
    first_length,
)
from fencepost.spark.ways.exchange import MAX_TASKS, Exchange, Meeting
from fencepost.spark.ways.meeting import Rendezvous, make_secret
from fencepost.spark.ways.packing.by_record import PackingPlan, slot_of
from fencepost.spark.ways.packing.packer import Packer
from fencepost.spark.ways.stage import (
    REPORT_SCHEMA,
    as_row,
    choose_slots,
    collect_reports,
    stage_settings,
    this_attempt,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from fencepost.spark.ways.row_writer import WriteJob

_UNFIT_FOR_BARRIER: Final = (
    "Barrier execution mode does not allow the following pattern of RDD chain"
)


@dataclass(frozen=True, slots=True)
class DirectPlan:
    """What the driver passes to the tasks."""

    packing: PackingPlan
    identity: ProducerIdentity
    meeting: Meeting
    """How the tasks find each other."""


def run_direct(rows: DataFrame, job: WriteJob) -> list[Report] | None:
    """None if tasks must not connect to each other, or Spark cannot run them all at once."""
    session = rows.sparkSession
    hosts = exchange_hosts(session, job.settings)
    if hosts is None:
        return None
    packing = replace(job.packing, slots=choose_slots(session, job.packing.partition_counts))
    secret = make_secret()
    with Rendezvous(*meeting_place(session), secret) as rendezvous, stage_settings(session):
        plan = DirectPlan(packing, job.identity, Meeting(rendezvous.address, secret, hosts))
        written = rows.mapInArrow(_task(plan), REPORT_SCHEMA, barrier=True)
        # Spark would look for slots for ten minutes before it gives up.
        tasks = written.rdd.getNumPartitions()
        if tasks > min(concurrent_tasks(session), MAX_TASKS):
            return None
        try:
            return collect_reports(written, tasks)
        except Exception as problem:
            # Raised before any task was started: the last stage has a union, for example.
            if _UNFIT_FOR_BARRIER in str(problem):
                return None
            raise


def _task(plan: DirectPlan) -> Any:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import BarrierTaskContext

        tasks = len(BarrierTaskContext.get().getTaskInfos())
        yield as_row(write_directly(plan, this_attempt(), tasks, batches))

    return run


def write_directly(
    plan: DirectPlan, attempt: Attempt, tasks: int, batches: Iterator[pa.RecordBatch]
) -> Report:
    """The whole stage for one task."""
    attempt.refuse_second()
    slots = min(plan.packing.slots, tasks)
    me = attempt.partition_id

    def longest_first(place: TopicPartition) -> int:
        return first_length(exchange.attempts[slot_of(place, slots)])

    packer = Packer(plan.packing, me, longest_first)
    sources = tasks if me < slots else 1
    with (
        explained_refusals(),
        DeliveryThread(plan.packing.options, plan.identity, sources, packer.give_up) as deliverer,
        Exchange(plan.meeting, attempt, tasks, slots, deliverer) as exchange,
    ):
        for packed in packer.pack_all(batches):
            owner = slot_of(packed.place, slots)
            if owner == me:
                deliverer.put(packed.place, packed.data, packed.done)
            else:
                exchange.send(owner, packed)
        exchange.send_end()
        deliverer.end()
        written = deliverer.finish()
    freeze_loaded_objects()
    return report_of(attempt.task_attempt_id, deliverer.opened_ms, written, [packer.manifest()])
