"""The direct route, from task to task without Spark's shuffle: one stage packs, exchanges, writes.

    rows -> pack -> own partition?  yes -> deliver
                                    no  -> over a socket to the task that writes it -> deliver

All tasks must run at once, as a barrier stage. So the rows must have no more partitions than there
are slots. Compared with the shuffle this saves a stage, and two of the three times that every byte
passes between the JVM and Python. The rules are the same: one writer per topic-partition, and
counts that the driver compares.

Several threads share the work of a task. Spark's thread reads rows, packs them, and sends batches
to other tasks. The threads of `exchange.py` receive batches from other tasks. Only the thread of
`delivery_thread.py` talks to the brokers. Waiting is never circular: sending waits for the peer's
delivery thread, and a delivery thread waits for brokers only.

The length of a partition's first batch depends on its writer (`delivery.py`). Any task's batch may
arrive first, so each task cuts its first batch for a partition to that length.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fencepost.base.ids import TopicPartition
from fencepost.client.transactions import ProducerIdentity
from fencepost.spark.transport.delivery import Attempt, first_length, report
from fencepost.spark.transport.delivery_thread import DeliveryThread, QueuedBatch
from fencepost.spark.transport.exchange import Exchange, Meeting
from fencepost.spark.transport.packing.packer import PackedBatch, Packer, PackingPlan, slot_of

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class DirectPlan:
    """What the driver passes to the tasks."""

    packing: PackingPlan
    identity: ProducerIdentity
    meeting: Meeting
    """How the tasks find each other."""


def write_directly(
    plan: DirectPlan, attempt: Attempt, tasks: int, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The whole stage for one task."""
    attempt.refuse_second()
    slots = min(plan.packing.slots, tasks)
    me = attempt.partition_id

    def longest_first(place: TopicPartition) -> int:
        return first_length(exchange.attempts[slot_of(place, slots)])

    packer = Packer(plan.packing, me, longest_first)
    sources = tasks if me < slots else 1
    with (
        DeliveryThread(plan.packing.options, plan.identity, sources, packer.give_up) as deliverer,
        Exchange(plan.meeting, attempt, tasks, slots, deliverer) as exchange,
    ):
        for batch in batches:
            for packed in packer.pack(batch):
                _route(packed, slots, me, deliverer, exchange)
        for packed in packer.finish():
            _route(packed, slots, me, deliverer, exchange)
        exchange.send_end()
        deliverer.end()
        written = deliverer.finish()
    packer.end_task()
    yield report(attempt, deliverer.opened_ms, written, [packer.manifest()])


def _route(
    packed: PackedBatch, slots: int, me: int, deliverer: DeliveryThread, exchange: Exchange
) -> None:
    owner = slot_of(packed.place, slots)
    if owner == me:
        deliverer.put(QueuedBatch(packed.place, packed.data, packed.done))
    else:
        exchange.send(owner, packed)
