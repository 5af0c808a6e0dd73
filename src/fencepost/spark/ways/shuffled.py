"""The route through Spark's shuffle: for any plan, with any number of partitions.

    rows -> pack --repartitionById--> the task that writes this partition -> deliver

Each row between the two stages is one batch: `slot` is the task that will write it, `map_id` the
task that packed it, `ordinal` its number among those of the same two tasks. Every packing task ends
with its manifest, which goes to the first slot.

A writer sends the batches of one packing task in the order of their ordinals, and waits for one
that is missing (`_Order`). Spark's shuffle keeps that order, but does not promise it, and a stream
cannot be sorted. The order of packing tasks is a matter of the plan.

The second stage is a barrier stage, so that each of its tasks runs once; where Spark refuses those,
its tasks need permits of the driver (`meeting/permits.py`). Spark may then also run a packing task
again when some writers have read what its first run packed. The rows of the second run need not be
in the same partitions or order. So every batch has the run that packed it, and the writers report
which runs they have read: all must have read the same one of each packing task (`accounts.py`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
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
from fencepost.spark.ways.delivery import (
    FIRST_LENGTHS,
    REPORT_SCHEMA,
    Attempt,
    Delivery,
    explained,
    first_length,
    report,
)
from fencepost.spark.ways.meeting.permits import Permit, PermitCall, granting_permits
from fencepost.spark.ways.packing.packer import PackedBatch, Packer, PackingPlan, slot_of
from fencepost.spark.ways.slots import bring_to_slots
from fencepost.spark.ways.stage import (
    choose_slots,
    collect_reports,
    stage_settings,
    this_attempt,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from fencepost.spark.ways.row_writer import WriteJob

PACKED_SCHEMA: Final = (
    "slot int, map_id int, run long, ordinal int, topic string, partition int, "
    "records int, payload binary"
)
PACKED_COLUMNS: Final = pa.schema(
    [
        ("slot", pa.int32()),
        ("map_id", pa.int32()),
        ("run", pa.int64()),
        ("ordinal", pa.int32()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("records", pa.int32()),
        ("payload", pa.binary()),
    ]
)

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


def run_shuffled(rows: DataFrame, job: WriteJob) -> list[Mapping[str, Any]]:
    """Runs both stages; returns the reports of the second one."""
    session = rows.sparkSession
    counts = job.partition_counts()
    slots = choose_slots(session, counts)
    place = meeting_place(session) if job.by_permit else ("", "")
    granting = granting_permits(session, *place) if job.by_permit else nullcontext()
    with stage_settings(session), granting as permits:
        call = None if permits is None else permits.call
        delivery = DeliveryPlan(job.identity, slots, job.settings.client, call)
        packed = rows.mapInArrow(_packing_task(job.packing(slots, counts)), PACKED_SCHEMA)
        routed = bring_to_slots(packed, slots).sortWithinPartitions("map_id", "ordinal")
        written = routed.mapInArrow(
            _delivering_task(delivery), REPORT_SCHEMA, barrier=not job.by_permit
        )
        reports = collect_reports(written)
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
    for batch in batches:
        for packed in packer.pack(batch):
            waiting.add(packed)
            if waiting.size_bytes >= EMIT_BYTES:
                yield waiting.emit()
    for packed in packer.finish():
        waiting.add(packed)
    waiting.add_manifest(packer.manifest())
    yield waiting.emit()
    packer.end_task()


class _PackedRows:
    """Batches that wait to be passed to Spark."""

    def __init__(self, plan: PackingPlan, map_id: int, run: int) -> None:
        self._plan = plan
        self._origin = (map_id, run)
        self._ordinals: Counter[int] = Counter()
        """The next ordinal of each slot."""
        self._rows: list[tuple[Any, ...]] = []
        self._done: list[Callable[[], None]] = []
        self.size_bytes = 0

    def add(self, packed: PackedBatch) -> None:
        place = packed.place
        slot = slot_of(place, self._plan.slots)
        self._add(slot, place.topic, place.partition, packed.record_count, packed.data)
        self._done.append(packed.done)

    def add_manifest(self, text: str) -> None:
        self._add(0, None, None, 0, text.encode("utf-8"))

    def _add(
        self, slot: int, topic: str | None, partition: int | None, records: int, payload: Buffer
    ) -> None:
        ordinal = self._ordinals[slot]
        self._rows.append((slot, *self._origin, ordinal, topic, partition, records, payload))
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
        attempt = this_attempt()
        if plan.permits is None:
            return explained(deliver(plan, attempt, batches))
        permit = Permit(plan.permits, attempt)
        return permit.guard(explained(deliver(plan, attempt, batches, permit)))

    return run


def deliver(
    plan: DeliveryPlan,
    attempt: Attempt,
    batches: Iterator[pa.RecordBatch],
    permit: Permit | None = None,
) -> Iterator[pa.RecordBatch]:
    """The whole stage for one task."""
    batches = _once_allowed(plan, attempt, batches, permit)
    manifests: list[str] = []
    with cluster_of(plan.options).writer(plan.identity) as writer:
        delivery = Delivery(writer)
        opened: set[TopicPartition] = set()
        runs: set[tuple[int, int]] = set()
        for row in _rows_in_order(batches):
            runs.add((row.map_id, row.run))
            if row.topic is None:
                manifests.append(bytes(row.payload).decode("utf-8"))
                continue
            _check_slot(row, plan, attempt)
            for part in _parts(row, opened, attempt):
                delivery.write(TopicPartition(row.topic, row.partition), part)
        written = writer.flush()
    if permit is not None:
        manifests.append(json.dumps({"runs": sorted(runs)}))
    freeze_loaded_objects()
    yield report(attempt, delivery.opened_ms, written, manifests)


def _once_allowed(
    plan: DeliveryPlan,
    attempt: Attempt,
    batches: Iterator[pa.RecordBatch],
    permit: Permit | None,
) -> Iterator[pa.RecordBatch]:
    """The same batches, once it is certain that no other try of this task writes."""
    assert (permit is None) == (plan.permits is None)
    if permit is None:
        attempt.refuse_second()
        return batches
    # The first row arrives when all are sorted, so all shuffle files were there.
    first = list(islice(batches, 1))
    permit.ask()
    return chain(first, batches)


class _Row(NamedTuple):
    slot: int
    map_id: int
    run: int
    ordinal: int
    topic: str | None
    partition: int
    payload: memoryview


def _rows_in_order(batches: Iterator[pa.RecordBatch]) -> Iterator[_Row]:
    order = _Order()
    for batch in batches:
        for row in _rows(batch):
            yield from order.admit(row)
    order.finish()


class _Order:
    """Passes on the rows of each run of a packing task in the order of their ordinals."""

    def __init__(self) -> None:
        self._due: Counter[tuple[int, int]] = Counter()
        self._held: dict[tuple[tuple[int, int], int], _Row] = {}

    def admit(self, row: _Row) -> Iterator[_Row]:
        """This row and those that waited for it; nothing if it must wait itself."""
        packer = (row.map_id, row.run)
        self._held[packer, row.ordinal] = row
        while (due := self._held.pop((packer, self._due[packer]), None)) is not None:
            self._due[packer] += 1
            yield due

    def finish(self) -> None:
        """Raises if rows wait for one that never came, or that came twice."""
        if self._held:
            packer, ordinal = min(self._held)
            raise CountsDisagree(
                f"batch {ordinal} of packing task {packer[0]} came, and batch "
                f"{self._due[packer]} was due"
            )


def _rows(batch: pa.RecordBatch) -> Iterator[_Row]:
    """The rows of an Arrow batch; payloads are views, because they are large."""
    fields = (
        batch.column(name).to_pylist()
        for name in ("slot", "map_id", "run", "ordinal", "topic", "partition")
    )
    for slot, map_id, run, ordinal, topic, partition, payload in zip(
        *fields, batch.column("payload"), strict=True
    ):
        yield _Row(slot, map_id, run, ordinal, topic, partition, memoryview(payload.as_buffer()))


def _check_slot(row: _Row, plan: DeliveryPlan, attempt: Attempt) -> None:
    if row.slot % plan.slots != attempt.partition_id:
        raise CountsDisagree(f"a batch for slot {row.slot} came to task {attempt.partition_id}")


def _parts(row: _Row, opened: set[TopicPartition], attempt: Attempt) -> list[bytearray]:
    """The batch, writable; a partition's first one is split to the length of this attempt."""
    assert row.topic is not None
    place = TopicPartition(row.topic, row.partition)
    if place in opened:
        return [bytearray(row.payload)]
    opened.add(place)
    return split_batch(row.payload, first_length(attempt.task_attempt_id))


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
