"""Rows into batches: the first of the two Python stages of a write.

Theory of operation. Every task of this stage reads rows, decides for each its topic and partition, and builds record
batches of one partition each: finished but for the producer's identity and the sequence, which the second stage
writes into the header. So the shuffle between them moves a few large rows, and not every record by itself, and
encoding and compression happen on all cores.

    rows -> (topic, partition) -> batches --repartitionById--> the one task that writes this partition

Each row of the result is one batch: `slot` says which task will write it, `map_id` and `ordinal` in which order. A
task ends with a manifest: how many rows it saw and how many it packed for each partition. The driver compares this
with what was acknowledged, before it commits.

There are two ways to pack, with the same result: `plain.py` record by record, `columnwise.py` in compiled loops over
whole columns. Neither knows of slots or manifests.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa

from fencepost.base.ids import TopicPartition
from fencepost.base.seams import Buffer
from fencepost.client.options import ClientOptions
from fencepost.spark.fast import compiled_columns
from fencepost.spark.placement import Placement

PACKED_SCHEMA: Final = (
    "slot int, map_id int, ordinal int, topic string, partition int, records int, payload binary"
)
_PACKED: Final = pa.schema(
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

GATHER_BYTES: Final = 32 * 1024 * 1024
"""Rows that are gathered before they are packed: enough for full batches to each of many partitions."""

EMIT_BYTES: Final = 4 * 1024 * 1024
"""Batches that are handed to Spark at once."""


@dataclass(frozen=True, slots=True)
class PackingPlan:
    """What the driver tells the tasks of this stage."""

    batch_id: int
    slots: int
    topic: str | None
    partition_counts: Mapping[str, int]
    codec: int
    batch_bytes: int
    max_record_bytes: int
    options: ClientOptions


class PackedBatch(NamedTuple):
    """Records of one partition, sealed but for the producer."""

    place: TopicPartition
    record_count: int
    data: Buffer


def slot_of(place: TopicPartition, slots: int) -> int:
    """The task that writes this partition: partitions of one topic are spread evenly."""
    return (zlib.crc32(place.topic.encode("utf-8")) + place.partition) % slots


def pack(
    plan: PackingPlan, map_id: int, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The whole stage for one task."""
    packer = Packer(plan, map_id)
    gathered: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        gathered.append(batch)
        size += batch.nbytes
        if size >= GATHER_BYTES:
            yield from packer.pack(gathered)
            gathered, size = [], 0
    yield from packer.pack(gathered)
    yield packer.finish()


class Packer:
    """What one task has packed so far."""

    def __init__(self, plan: PackingPlan, map_id: int) -> None:
        self._plan = plan
        self._map_id = map_id
        self._placement = Placement(plan, map_id)
        self._packed: dict[TopicPartition, int] = {}
        self._rows = 0
        self._ordinal = 0
        self._ready: list[tuple[Any, ...]] = []
        self._ready_bytes = 0

    def pack(self, gathered: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Packs these rows; gives out what is enough for one answer to Spark."""
        rows = sum(batch.num_rows for batch in gathered)
        self._rows += rows
        if not rows:
            return
        table = pa.Table.from_batches(gathered).combine_chunks()
        for packed in self._batches(table):
            self._take(packed)
            if self._ready_bytes >= EMIT_BYTES:
                yield self._emit()

    def _batches(self, table: pa.Table) -> Iterator[PackedBatch]:
        columns = compiled_columns(table.num_rows)
        headers = table["headers"] if "headers" in table.schema.names else None
        if columns is not None and (headers is None or headers.null_count == len(headers)):
            from fencepost.spark.columnwise import pack_columnwise

            return pack_columnwise(self._plan, self._placement, table)
        from fencepost.spark.plain import pack_plain

        return pack_plain(self._plan, self._placement, table)

    def _take(self, packed: PackedBatch) -> None:
        place = packed.place
        self._packed[place] = self._packed.get(place, 0) + packed.record_count
        slot = slot_of(place, self._plan.slots)
        self._add(slot, place.topic, place.partition, packed.record_count, packed.data)

    def finish(self) -> pa.RecordBatch:
        """What is left, and the manifest, which travels to the first slot."""
        lanes = [[tp.topic, tp.partition, count] for tp, count in sorted(self._packed.items())]
        text = json.dumps({"map": self._map_id, "rows": self._rows, "lanes": lanes})
        self._add(0, None, None, 0, text.encode("utf-8"))
        return self._emit()

    def _add(
        self, slot: int, topic: str | None, partition: int | None, records: int, payload: Buffer
    ) -> None:
        self._ready.append((slot, self._map_id, self._ordinal, topic, partition, records, payload))
        self._ready_bytes += len(payload)
        self._ordinal += 1

    def _emit(self) -> pa.RecordBatch:
        columns = zip(*self._ready, strict=True)
        arrays = [pa.array(column, t) for column, t in zip(columns, _PACKED.types, strict=True)]
        self._ready, self._ready_bytes = [], 0
        return pa.RecordBatch.from_arrays(arrays, schema=_PACKED)
