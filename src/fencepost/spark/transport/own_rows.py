"""The route without a transaction: every task writes its own rows to the brokers.

    rows -> pack -> deliver

Without a transaction a partition may have any number of writers, so nothing is moved between tasks:
no shuffle, no sockets, no barrier. Each attempt of a task writes with an identity of its own
(`idempotent_ids.py`), which makes its retried requests harmless. A second attempt of the task
(a failure, a lost executor, speculation) writes all rows of the task again.

Rows of one task keep their order within a partition. The driver still compares what the tasks
packed with what was acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fencepost.spark.transport.delivery import Attempt, report
from fencepost.spark.transport.delivery_thread import DeliveryThread, QueuedBatch
from fencepost.spark.transport.idempotent_ids import lend_identity
from fencepost.spark.transport.packing.packer import PackedBatch, Packer, PackingPlan

if TYPE_CHECKING:
    import pyarrow as pa


def write_own_rows(
    plan: PackingPlan, attempt: Attempt, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The whole stage for one task."""
    packer = Packer(plan, attempt.partition_id)
    with (
        lend_identity(plan.options) as identity,
        DeliveryThread(plan.options, identity, 1, packer.give_up) as deliverer,
    ):
        for packed in _pack_all(packer, batches):
            deliverer.put(QueuedBatch(packed.place, packed.data, packed.done))
        deliverer.end()
        written = deliverer.finish()
    packer.end_task()
    yield report(attempt, deliverer.opened_ms, written, [packer.manifest()])


def _pack_all(packer: Packer, batches: Iterator[pa.RecordBatch]) -> Iterator[PackedBatch]:
    for batch in batches:
        yield from packer.pack(batch)
    yield from packer.finish()
