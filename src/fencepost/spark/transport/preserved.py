"""The preserved route: rows stay in the task that has read them, and go to the same partition.

    rows -> pack -> claim the partition -> deliver

Without a shuffle and without an exchange between tasks. It is for queries whose source has one
topic with as many partitions as the target: the source reads each partition in one task, so each
target partition has one writer. That is checked for every partition, not assumed
(`meeting/claims.py`).

The rest is as on the direct route: all tasks are one barrier stage, Spark's thread packs, and the
thread of `delivery_thread.py` talks to the brokers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fencepost.client.transactions import ProducerIdentity
from fencepost.spark.transport.delivery import Attempt, first_length, report
from fencepost.spark.transport.delivery_thread import DeliveryThread, QueuedBatch
from fencepost.spark.transport.meeting.claims import ClaimCall
from fencepost.spark.transport.packing.packer import PackedBatch, Packer, PackingPlan

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class PreservedPlan:
    """What the driver passes to the tasks."""

    packing: PackingPlan
    identity: ProducerIdentity
    claims: tuple[str, int]
    """The address at which tasks claim partitions."""
    secret: bytes
    """Only the tasks of this attempt have it."""


def write_preserved(
    plan: PreservedPlan, attempt: Attempt, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The whole stage for one task."""
    attempt.refuse_second()
    longest_first = first_length(attempt.task_attempt_id)
    packer = Packer(plan.packing, attempt.partition_id, lambda _: longest_first)
    with (
        DeliveryThread(plan.packing.options, plan.identity, 1, packer.give_up) as deliverer,
        ClaimCall(plan.claims, plan.secret, attempt) as claims,
    ):
        for packed in _packed(packer, batches):
            claims.claim(packed.place)
            deliverer.put(QueuedBatch(packed.place, packed.data, packed.done))
        deliverer.end()
        written = deliverer.finish()
    packer.end_task()
    yield report(attempt, deliverer.opened_ms, written, [packer.manifest()])


def _packed(packer: Packer, batches: Iterator[pa.RecordBatch]) -> Iterator[PackedBatch]:
    for batch in batches:
        yield from packer.pack(batch)
    yield from packer.finish()
