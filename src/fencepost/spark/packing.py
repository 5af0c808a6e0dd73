"""Rows into batches: the first of the two Python stages of a write.

Theory of operation. Every task of this stage reads rows, decides for each its topic and partition, and builds record
batches of one partition each: finished but for the producer's identity and the sequence, which the second stage
writes into the header. So the shuffle between them moves a few large rows, and not every record by itself, and
encoding and compression happen on all cores.

    rows -> (topic, partition) -> batches --repartitionById--> the one task that writes this partition

Each row of the result is one batch: `slot` says which task will write it, `map_id` and `ordinal` in which order. A
task ends with a manifest: how many rows it saw and how many it packed for each partition. The driver compares this
with what was acknowledged, before it commits.

Placement is Kafka's: the partition column if there is one, else murmur2 of the key. Rows without a key go to as few
partitions as their size deserves, in runs: a small batch should not touch every partition, because each one costs a
marker.
"""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa

from fencepost.base.ids import TopicPartition
from fencepost.client.options import ClientOptions
from fencepost.client.partitioner import partition_for_key
from fencepost.records.builder import build_batch
from fencepost.records.opened import Record
from fencepost.spark.connection import partition_count
from fencepost.spark.failures import RowRefused

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

RUN_BYTES: Final = 16 * 1024
"""Rows without a key stay together up to this size; it is what Kafka's own producer gives to one partition."""

RECORD_OVERHEAD_BYTES: Final = 32
"""What a record needs beyond its key and value, at most, without headers."""


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


class Row(NamedTuple):
    """One row of the DataFrame as a record that knows its place."""

    place: TopicPartition
    record: Record


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
    yield packer.manifest()


class Packer:
    """What one task has packed so far."""

    def __init__(self, plan: PackingPlan, map_id: int) -> None:
        self._plan = plan
        self._map_id = map_id
        self._counts = dict(plan.partition_counts)
        self._packed: dict[TopicPartition, int] = {}
        self._rows = 0
        self._ordinal = 0
        # Batches and tasks begin at different partitions, so that small ones do not all meet in the first.
        self._turn = plan.batch_id + map_id
        self._run_bytes = 0

    def pack(self, gathered: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        lanes: dict[TopicPartition, list[Record]] = {}
        for row in self._rows_of(gathered):
            lanes.setdefault(row.place, []).append(row.record)
        for place, records in lanes.items():
            for part in _parts(records, self._plan.batch_bytes):
                yield self._seal(place, part)

    def manifest(self) -> pa.RecordBatch:
        """The last word of this task; it travels to the first slot."""
        lanes = [[tp.topic, tp.partition, count] for tp, count in sorted(self._packed.items())]
        text = json.dumps({"map": self._map_id, "rows": self._rows, "lanes": lanes})
        return self._row(0, None, None, 0, text.encode("utf-8"))

    def _seal(self, place: TopicPartition, records: list[Record]) -> pa.RecordBatch:
        payload = build_batch(
            records,
            timestamp_ms=time.time_ns() // 1_000_000,
            codec=self._plan.codec,
            transactional=True,
        )
        self._packed[place] = self._packed.get(place, 0) + len(records)
        slot = slot_of(place, self._plan.slots)
        return self._row(slot, place.topic, place.partition, len(records), bytes(payload))

    def _row(
        self, slot: int, topic: str | None, partition: int | None, records: int, payload: bytes
    ) -> pa.RecordBatch:
        values = [
            [slot],
            [self._map_id],
            [self._ordinal],
            [topic],
            [partition],
            [records],
            [payload],
        ]
        self._ordinal += 1
        arrays = [pa.array(v, t) for v, t in zip(values, _PACKED.types, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=_PACKED)

    # Placement.

    def _rows_of(self, gathered: list[pa.RecordBatch]) -> Iterator[Row]:
        for batch in gathered:
            columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
            for index in range(batch.num_rows):
                yield self._place({name: column[index] for name, column in columns.items()})
                self._rows += 1

    def _place(self, row: dict[str, Any]) -> Row:
        key, value = row.get("key"), row["value"]
        size = len(key or b"") + len(value or b"") + RECORD_OVERHEAD_BYTES
        if size > self._plan.max_record_bytes:
            raise RowRefused(
                f"a row with key {_shown(key)} is {size} bytes as a record, and kafka.max.request.size allows "
                f"{self._plan.max_record_bytes}: raise it (and max.message.bytes of the topic), or make the value smaller"
            )
        topic = self._plan.topic or row.get("topic")
        if topic is None:
            raise RowRefused(
                f"a row with key {_shown(key)} has no topic: fill the topic column, or pass topic= to the sink"
            )
        headers = tuple((h["key"], h["value"]) for h in row.get("headers") or ())
        partition = self._partition(topic, row.get("partition"), key, size)
        return Row(TopicPartition(topic, partition), Record(key=key, value=value, headers=headers))

    def _partition(self, topic: str, wanted: int | None, key: bytes | None, size: int) -> int:
        count = self._count(topic)
        if wanted is not None:
            if not 0 <= wanted < count:
                raise RowRefused(
                    f"a row with key {_shown(key)} wants partition {wanted} of topic {topic!r}, which has {count} "
                    "partitions: correct the partition column, or leave it out to place rows by their key"
                )
            return wanted
        if key is not None:
            return partition_for_key(key, count)
        return self._take_turn(size) % count

    def _take_turn(self, size: int) -> int:
        self._run_bytes += size
        if self._run_bytes > RUN_BYTES:
            self._run_bytes = size
            self._turn += 1
        return self._turn

    def _count(self, topic: str) -> int:
        count = self._counts.get(topic)
        if count is None:
            count = self._counts[topic] = partition_count(self._plan.options, topic)
        return count


def _parts(records: list[Record], batch_bytes: int) -> Iterator[list[Record]]:
    """Runs of records that make batches of about the wanted size."""
    part: list[Record] = []
    size = 0
    for record in records:
        record_bytes = len(record.key or b"") + len(record.value or b"") + RECORD_OVERHEAD_BYTES
        if part and size + record_bytes > batch_bytes:
            yield part
            part, size = [], 0
        part.append(record)
        size += record_bytes
    if part:
        yield part


def _shown(key: bytes | None) -> str:
    return "null" if key is None else repr(bytes(key[:40]))
