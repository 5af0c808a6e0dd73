"""Where rows go, and packing them record by record.

This is the packing of small batches, of rows with headers or timestamps, and without numba.

The partition of a row is that of Kafka's producer: the partition column, or murmur2 of the key.
Rows without a key stay together in runs, as in Kafka's producer, and the runs rotate over the
partitions. A small batch should not touch every partition, because each one costs a marker at the
end of the transaction. Batches and tasks begin at different partitions, so that small ones do not
all go to the first.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from fencepost.base.ids import NO_TIMESTAMP, TopicPartition
from fencepost.client.options import ClientOptions
from fencepost.client.partitioner import partition_for_key
from fencepost.records.builder import build_batch
from fencepost.records.opened import Record
from fencepost.spark.connection import partition_count
from fencepost.spark.failures import NOTHING_WRITTEN, RowRefused
from fencepost.spark.ways.packing.rows import TIMESTAMP_MS

RUN_BYTES: Final = 16 * 1024
"""Rows without a key stay together up to this size; it is Kafka's batch.size."""

RECORD_OVERHEAD_BYTES: Final = 32
"""The most that a record without headers needs beyond its key and value."""


@dataclass(frozen=True, slots=True)
class PackingPlan:
    """What the driver passes to the tasks that pack."""

    batch_id: int
    slots: int
    topic: str | None
    partition_counts: Mapping[str, int]
    codec: int
    batch_bytes: int
    max_record_bytes: int
    options: ClientOptions
    reserved: Mapping[str, str] = field(default_factory=dict)
    """Topics that rows must not name, and why."""


def _nothing() -> None:
    pass


class PackedBatch(NamedTuple):
    """Records of one partition; producer, sequence and CRC are still missing."""

    place: TopicPartition
    record_count: int
    data: bytearray | memoryview
    done: Callable[[], None] = _nothing
    """Called when the bytes are no longer needed."""


def slot_of(place: TopicPartition, slots: int) -> int:
    """The task that writes this partition: partitions of one topic are spread evenly."""
    return (zlib.crc32(place.topic.encode("utf-8")) + place.partition) % slots


class Placement:
    """Places the rows of one task."""

    def __init__(self, plan: PackingPlan, map_id: int) -> None:
        self._plan = plan
        self._counts = dict(plan.partition_counts)
        self.first_turn = plan.batch_id + map_id
        self.keyless_bytes = 0

    def count(self, topic: str) -> int:
        """How many partitions a topic has; requested once per task."""
        found = self._counts.get(topic)
        if found is None:
            if (reason := self._plan.reserved.get(topic)) is not None:
                raise RowRefused(f"a row names topic {topic!r}, {reason}. {NOTHING_WRITTEN}")
            found = self._counts[topic] = partition_count(self._plan.options, topic)
        return found

    def place(self, topic: str, wanted: int | None, key: bytes | None, size: int) -> int:
        """The partition of one row."""
        count = self.count(topic)
        if wanted is not None:
            if not 0 <= wanted < count:
                raise no_such_partition(topic, wanted, count)
            return wanted
        if key is not None:
            return partition_for_key(key, count)
        turn = self.first_turn + self.keyless_bytes // RUN_BYTES
        self.keyless_bytes += size
        return turn % count


def too_large(plan: PackingPlan, size: int, key: bytes | None) -> RowRefused:
    """The error for a row that is too large for a request."""
    return RowRefused(
        f"a row with key {shown(key)} is {size} bytes as a record, and kafka.max.request.size "
        f"allows {plan.max_record_bytes}: raise it (and max.message.bytes of the topic), or make "
        "the value smaller"
    )


def no_such_partition(topic: str, wanted: int, count: int) -> RowRefused:
    """The error for a partition column that names no partition of the topic."""
    return RowRefused(
        f"a row wants partition {wanted} of topic {topic!r}, which has {count} partitions: "
        "correct the partition column, or leave it out to place rows by their key"
    )


def no_topic(key: bytes | None) -> RowRefused:
    """The error for a row without a topic."""
    return RowRefused(
        f"a row with key {shown(key)} has no topic: fill the topic column, or pass topic= to "
        "the sink"
    )


def shown(key: bytes | None) -> str:
    """The start of a key, for messages."""
    return "null" if key is None else repr(bytes(key[:40]))


def pack_plain(
    plan: PackingPlan,
    placement: Placement,
    rows: Iterable[Mapping[str, Any]],
    first_length: Callable[[TopicPartition], int] | None = None,
) -> Iterator[PackedBatch]:
    """Batches of these rows; `first_length` limits the first batch of each partition."""
    by_partition: dict[TopicPartition, list[tuple[Record, int]]] = {}
    for row in rows:
        record = _record(row)
        size = _size(record)
        if size > plan.max_record_bytes:
            raise too_large(plan, size, record.key)
        topic = plan.topic or row.get("topic")
        if topic is None:
            raise no_topic(record.key)
        partition = placement.place(topic, row.get("partition"), record.key, size)
        by_partition.setdefault(TopicPartition(topic, partition), []).append((record, size))
    now_ms = time.time_ns() // 1_000_000
    for place, records in by_partition.items():
        most = len(records) if first_length is None else first_length(place)
        for part in _parts(records, plan.batch_bytes, most):
            data = build_batch(part, timestamp_ms=now_ms, codec=plan.codec, transactional=True)
            yield PackedBatch(place, len(part), data)


def _record(row: Mapping[str, Any]) -> Record:
    key, time_ms = row.get("key"), row.get(TIMESTAMP_MS)
    if time_ms is None:
        time_ms = NO_TIMESTAMP
    elif time_ms < 0:
        raise RowRefused(
            f"a row with key {shown(key)} has a timestamp before 1970, which a record cannot have: "
            "correct the column, or make it null for the time of the write"
        )
    headers = row.get("headers")
    named = () if not headers else tuple(_headers(key, headers))
    return Record(timestamp_ms=time_ms, key=key, value=row["value"], headers=named)


def _headers(key: bytes | None, headers: Iterable[Any]) -> Iterator[tuple[str, bytes | None]]:
    """The headers of a row: a value may be null on the wire, a name may not."""
    for header in headers:
        if header is None or header["key"] is None:
            raise RowRefused(
                f"a row with key {shown(key)} has a header without a name: give every header a "
                "key, or leave it out"
            )
        yield header["key"], header["value"]


def _size(record: Record) -> int:
    size = len(record.key or b"") + len(record.value or b"") + RECORD_OVERHEAD_BYTES
    for name, value in record.headers:
        size += len(name) + len(value or b"") + 10
    return size


def _parts(
    records: list[tuple[Record, int]], batch_bytes: int, most: int
) -> Iterator[list[Record]]:
    """Records in runs of about `batch_bytes`; the first run has at most `most` records."""
    part: list[Record] = []
    size = 0
    for record, record_bytes in records:
        if part and (size + record_bytes > batch_bytes or len(part) >= most):
            yield part
            part, size = [], 0
            most = len(records)
        part.append(record)
        size += record_bytes
    if part:
        yield part
