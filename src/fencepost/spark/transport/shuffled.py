"""The route through Spark's shuffle: for any plan, with any number of partitions.

    rows -> pack --repartitionById--> the task that writes this partition -> deliver

Each row between the two stages is one batch: `slot` is the task that will write it, `map_id` the
task that packed it, `ordinal` its number among those of the same two tasks. Every packing task ends
with its manifest, which goes to the first slot.

A writer sends the batches of one packing task in the order of their ordinals, and waits for one
that is missing (`_Order`). Spark's shuffle keeps that order, but does not promise it, and a stream
cannot be sorted. The order of packing tasks is a matter of the plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa

from fencepost.base.ids import TopicPartition
from fencepost.base.seams import Buffer
from fencepost.client.options import ClientOptions
from fencepost.client.transactions import ProducerIdentity
from fencepost.records.batch import read_header
from fencepost.records.builder import build_batch
from fencepost.records.opened import Record, open_batch
from fencepost.spark.connection import cluster_of
from fencepost.spark.failures import CountsDisagree
from fencepost.spark.transport.delivery import Attempt, Delivery, first_length, report
from fencepost.spark.transport.packing import PackedBatch, Packer, PackingPlan, slot_of

PACKED_SCHEMA: Final = (
    "slot int, map_id int, ordinal int, topic string, partition int, records int, payload binary"
)
PACKED_COLUMNS: Final = pa.schema(
    [
        ("slot", pa.int32()),
        ("map_id", pa.int32()),
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


# The first stage.


def pack(
    plan: PackingPlan, map_id: int, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The whole stage for one task."""
    packer = Packer(plan, map_id)
    waiting = _PackedRows(plan, map_id)
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

    def __init__(self, plan: PackingPlan, map_id: int) -> None:
        self._plan = plan
        self._map_id = map_id
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
        self._rows.append((slot, self._map_id, ordinal, topic, partition, records, payload))
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


def deliver(
    plan: DeliveryPlan, attempt: Attempt, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The whole stage for one task."""
    attempt.refuse_second()
    manifests: list[str] = []
    with cluster_of(plan.options).writer(plan.identity) as writer:
        delivery = Delivery(writer)
        opened: set[TopicPartition] = set()
        for row in _rows_in_order(batches):
            if row.topic is None:
                manifests.append(bytes(row.payload).decode("utf-8"))
                continue
            _check_slot(row, plan, attempt)
            for part in _parts(row, opened, attempt):
                delivery.write(TopicPartition(row.topic, row.partition), part)
        written = writer.flush()
    yield report(attempt, delivery.opened_ms, written, manifests)


class _Row(NamedTuple):
    slot: int
    map_id: int
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
    """Passes on the rows of each packing task in the order of their ordinals."""

    def __init__(self) -> None:
        self._due: Counter[int] = Counter()
        self._held: dict[tuple[int, int], _Row] = {}

    def admit(self, row: _Row) -> Iterator[_Row]:
        """This row and those that waited for it; nothing if it must wait itself."""
        self._held[row.map_id, row.ordinal] = row
        while (due := self._held.pop((row.map_id, self._due[row.map_id]), None)) is not None:
            self._due[row.map_id] += 1
            yield due

    def finish(self) -> None:
        """Raises if rows wait for one that never came, or that came twice."""
        if self._held:
            map_id, ordinal = min(self._held)
            raise CountsDisagree(
                f"batch {ordinal} of packing task {map_id} came, and batch {self._due[map_id]} "
                "was due"
            )


def _rows(batch: pa.RecordBatch) -> Iterator[_Row]:
    """The rows of an Arrow batch; payloads are views, because they are large."""
    fields = (
        batch.column(name).to_pylist()
        for name in ("slot", "map_id", "ordinal", "topic", "partition")
    )
    for slot, map_id, ordinal, topic, partition, payload in zip(
        *fields, batch.column("payload"), strict=True
    ):
        yield _Row(slot, map_id, ordinal, topic, partition, memoryview(payload.as_buffer()))


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
