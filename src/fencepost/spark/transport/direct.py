"""The way of batches from task to task, without Spark's shuffle: one stage that packs, exchanges and writes.

    rows -> pack -> own partition?  yes -> deliver
                                    no  -> over a socket, or lent, to the task that writes it -> deliver

It needs all tasks to run at once, which is what a barrier stage is: so the rows must come in no
more partitions than there are slots. Against the shuffle it saves a stage, and two of three times
that every byte passes between the JVM and Python. What must hold is the same: one writer per
topic-partition, and counts that the driver compares.

Threads share the work of a task. The one that Spark calls reads rows, packs, and sends to other
tasks. Others (`exchange.py`) take in what other tasks send, and hear what they are done with. One
(`delivery_thread.py`) alone speaks with the brokers. Nobody waits in a circle: sending waits for a
neighbour's deliverer, so does the memory that a neighbour of the same machine was lent
(`arena.py`), and a deliverer waits for brokers only.

The first batch of a partition has a length that is its writer's own (`delivery.py`). Since any task
may be the one whose batch comes first, each one cuts its first batch for a partition to that
length.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fencepost.base.ids import TopicPartition
from fencepost.client.transactions import ProducerIdentity
from fencepost.spark.transport.delivery import Attempt, first_length, report
from fencepost.spark.transport.delivery_thread import Deliverer, Parcel
from fencepost.spark.transport.exchange import Exchange
from fencepost.spark.transport.packing import PackedBatch, Packer, PackingPlan, slot_of

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class DirectPlan:
    """What the driver tells the tasks."""

    packing: PackingPlan
    identity: ProducerIdentity
    rendezvous: tuple[str, int]
    """Where the driver introduces the tasks to each other."""
    secret: bytes
    """Known to the tasks of this attempt only: whoever connects must say it."""


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
        Deliverer(plan.packing.options, plan.identity, sources, packer.give_up) as deliverer,
        Exchange(plan.rendezvous, plan.secret, attempt, tasks, slots, deliverer) as exchange,
    ):
        for batch in batches:
            for packed in packer.pack(batch):
                _route(packed, slots, me, deliverer, exchange)
        for packed in packer.finish():
            _route(packed, slots, me, deliverer, exchange)
        exchange.say_end()
        deliverer.end()
        written = deliverer.finish()
        exchange.await_lent()
    packer.leave()
    yield report(attempt, deliverer.opened_ms, written, [packer.manifest()])


def _route(
    packed: PackedBatch, slots: int, me: int, deliverer: Deliverer, exchange: Exchange
) -> None:
    owner = slot_of(packed.place, slots)
    if owner == me:
        deliverer.put(Parcel(packed.place, packed.data, packed.done))
    else:
        exchange.send(owner, packed)
