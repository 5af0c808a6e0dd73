"""The route through Spark's shuffle: for any plan, with any number of partitions.

    rows -> pack --repartitionById--> the task that writes this partition -> deliver

Each row between the two stages is one batch: `slot` is the task that will write it, `map_id` the
task that packed it, `ordinal` its number among those of the same two tasks. Every packing task ends
with its manifest, which goes to the first slot.

A writer sends the batches of one packing task in the order of their ordinals, and waits for one
that is missing. Spark's shuffle keeps that order, but does not promise it, and a stream cannot be
sorted. The order of packing tasks is a matter of the plan.

The second stage is a barrier stage, so that each of its tasks runs once; where Spark refuses those,
its tasks need permits of the driver (`permits.py`). Spark may then also run a packing task
again when some writers have read what its first run packed. The rows of the second run need not be
in the same partitions or order. So every batch has the run that packed it, and the writers report
which runs they have read: all must have read the same one of each packing task (`accounts.py`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from fencepost.base.ids import TopicPartition
from fencepost.base.seams import Buffer
from fencepost.client.options import ClientOptions
from fencepost.client.transactions import ProducerIdentity
from fencepost.records.batch import read_header
from fencepost.records.builder import build_batch
from fencepost.records.opened import Record, open_batch
from fencepost.spark.compiled import freeze_loaded_objects
from fencepost.spark.connection import cluster_of
from fencepost.spark.engine.hosts import meeting_place
from fencepost.spark.failures import CountsDisagree
from fencepost.spark.schemas import arrow_schema
from fencepost.spark.ways.accounts import Manifest, Report, report_of
from fencepost.spark.ways.delivery import (
    FIRST_LENGTHS,
    Attempt,
    Delivery,
    explained_refusals,
    first_length,
)
from fencepost.spark.ways.packing.by_record import PackedBatch, PackingPlan, slot_of
from fencepost.spark.ways.packing.packer import Packer
from fencepost.spark.ways.permits import PermitCall, granting_permits, permit_to_write
from fencepost.spark.ways.stage import (
    REPORT_SCHEMA,
    as_row,
    bring_to_slots,
    choose_slots,
    collect_reports,
    stage_settings,
    this_attempt,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from fencepost.spark.ways.row_writer import WriteJob

PACKED_SCHEMA: Final = (
    "slot int, map_id int, run long, ordinal int, topic string, partition int, payload binary"
)
PACKED_COLUMNS: Final = arrow_schema(PACKED_SCHEMA)

EMIT_BYTES: Final = 4 * 1024 * 1024
"""How much is passed to Spark at once."""


@dataclass(frozen=True, slots=True)
class DeliveryPlan:
    """What the driver passes to the tasks of the second stage."""

    identity: ProducerIdentity
    slots: int
    options: ClientOptions
    permits: PermitCall | None = None
    """How to ask for a permit; None in a barrier stage."""


def run_shuffled(rows: DataFrame, job: WriteJob) -> list[Report]:
    """Runs both stages; returns the reports of the second one."""
    session = rows.sparkSession
    slots = choose_slots(session, job.packing.partition_counts)
    packing = replace(job.packing, slots=slots)
    granting = (
        granting_permits(session, *meeting_place(session)) if job.by_permit else nullcontext()
    )
    with stage_settings(session), granting as permits:
        call = None if permits is None else permits.call
        delivery = DeliveryPlan(job.identity, slots, packing.options, call)
        packed = rows.mapInArrow(_packing_task(packing), PACKED_SCHEMA)
        routed = bring_to_slots(packed, slots).sortWithinPartitions("map_id", "ordinal")
        written = routed.mapInArrow(
            _delivering_task(delivery), REPORT_SCHEMA, barrier=not job.by_permit
        )
        reports = collect_reports(written, slots)
        if permits is not None:
            permits.book.check(reports)
        return reports


# The first stage.


def _packing_task(plan: PackingPlan) -> Any:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        attempt = this_attempt()
        return pack(plan, attempt.partition_id, batches, attempt.task_attempt_id)

    return run


def pack(
    plan: PackingPlan, map_id: int, batches: Iterator[pa.RecordBatch], run: int = 0
) -> Iterator[pa.RecordBatch]:
    """The whole stage for one task; no other run of any task has the same `run`."""
    # A writer splits the first batch of each partition, record by record.
    packer = Packer(plan, map_id, lambda _: FIRST_LENGTHS)
    waiting = _PackedRows(plan, map_id, run)
    for packed in packer.pack_all(batches):
        waiting.add(packed)
        if waiting.size_bytes >= EMIT_BYTES:
            yield waiting.emit()
    waiting.add_manifest(packer.manifest())
    yield waiting.emit()
    freeze_loaded_objects()


class _PackedRows:
    """Batches that wait to be passed to Spark."""

    def __init__(self, plan: PackingPlan, map_id: int, run: int) -> None:
        self._slots = plan.slots
        self._origin = (map_id, run)
        self._ordinals: Counter[int] = Counter()
        """The next ordinal of each slot."""
        self._rows: list[tuple[Any, ...]] = []
        self._done: list[Callable[[], None]] = []
        self.size_bytes = 0

    def add(self, packed: PackedBatch) -> None:
        self._add(slot_of(packed.place, self._slots), *packed.place, packed.data)
        self._done.append(packed.done)

    def add_manifest(self, manifest: Manifest) -> None:
        self._add(0, None, None, json.dumps(manifest).encode("ascii"))

    def _add(self, slot: int, topic: str | None, partition: int | None, payload: Buffer) -> None:
        self._rows.append((slot, *self._origin, self._ordinals[slot], topic, partition, payload))
        self._ordinals[slot] += 1
        self.size_bytes += len(payload)

    def emit(self) -> pa.RecordBatch:
        """All waiting batches; their bytes are copied, so their memory is free again."""
        columns = zip(*self._rows, strict=True)
        arrays = [
            pa.array(column, t) for column, t in zip(columns, PACKED_COLUMNS.types, strict=True)
        ]
        for done in self._done:
            done()
        self._rows, self._done, self.size_bytes = [], [], 0
        return pa.RecordBatch.from_arrays(arrays, schema=PACKED_COLUMNS)


# The second stage.


def _delivering_task(plan: DeliveryPlan) -> Any:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield as_row(deliver(plan, this_attempt(), batches))

    return run


def deliver(plan: DeliveryPlan, attempt: Attempt, batches: Iterator[pa.RecordBatch]) -> Report:
    """The whole stage for one task, once it is certain that no other try of it writes."""
    if plan.permits is None:
        attempt.refuse_second()
        return _deliver(plan, attempt, batches)
    # The first row arrives when all are sorted, so all shuffle files were there.
    first = list(islice(batches, 1))
    with permit_to_write(plan.permits, attempt):
        return _deliver(plan, attempt, chain(first, batches))


def _deliver(plan: DeliveryPlan, attempt: Attempt, batches: Iterator[pa.RecordBatch]) -> Report:
    manifests: list[Manifest] = []
    runs: set[tuple[int, int]] = set()
    with explained_refusals(), cluster_of(plan.options).writer(plan.identity) as writer:
        delivery = Delivery(writer)
        for row in _rows_in_order(batches):
            runs.add((row.map_id, row.run))
            if row.topic is None:
                manifests.append(json.loads(bytes(row.payload)))
                continue
            if row.slot % plan.slots != attempt.partition_id:
                raise CountsDisagree(
                    f"a batch for slot {row.slot} came to task {attempt.partition_id}"
                )
            place = TopicPartition(row.topic, row.partition)
            if writer.next_sequence(place):
                parts = [bytearray(row.payload)]
            else:
                parts = split_batch(row.payload, first_length(attempt.task_attempt_id))
            for part in parts:
                delivery.put(place, part)
                writer.poll()
        written = writer.flush()
    freeze_loaded_objects()
    # In a barrier stage all writers read the same runs.
    read = runs if plan.permits is not None else ()
    return report_of(attempt.task_attempt_id, delivery.opened_ms, written, manifests, read)


class _Row(NamedTuple):
    slot: int
    map_id: int
    run: int
    ordinal: int
    topic: str | None
    partition: int
    payload: memoryview


def _rows_in_order(batches: Iterator[pa.RecordBatch]) -> Iterator[_Row]:
    """The rows of each run of a packing task in the order of their ordinals.

    CountsDisagree at the end if rows wait for one that never came, or that came twice.
    """
    due: Counter[tuple[int, int]] = Counter()
    held: dict[tuple[tuple[int, int], int], _Row] = {}
    for row in chain.from_iterable(map(_rows, batches)):
        packer = (row.map_id, row.run)
        held[packer, row.ordinal] = row
        while (next_row := held.pop((packer, due[packer]), None)) is not None:
            due[packer] += 1
            yield next_row
    if held:
        packer, ordinal = min(held)
        raise CountsDisagree(
            f"batch {ordinal} of packing task {packer[0]} came, and batch {due[packer]} was due"
        )


def _rows(batch: pa.RecordBatch) -> Iterator[_Row]:
    """The rows of an Arrow batch; payloads are views, because they are large."""
    *names, payload = _Row._fields
    fields = (batch.column(name).to_pylist() for name in names)
    payloads = (memoryview(one.as_buffer()) for one in batch.column(payload))
    return map(_Row, *fields, payloads)


def split_batch(data: Buffer, length: int) -> list[bytearray]:
    """Splits a batch after `length` records, if it has more."""
    batch = read_header(data)
    if batch.record_count <= length:
        return [bytearray(data)]
    records = open_batch(batch)
    parts: list[list[Record]] = [records[:length], records[length:]]
    return [
        build_batch(part, timestamp_ms=batch.base_timestamp, codec=batch.codec, transactional=True)
        for part in parts
    ]
