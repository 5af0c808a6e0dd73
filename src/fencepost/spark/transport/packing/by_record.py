"""Packing record by record: for small batches, for headers and timestamps, and without numba."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from fencepost.base.ids import NO_TIMESTAMP, TopicPartition
from fencepost.records.builder import build_batch
from fencepost.records.opened import Record
from fencepost.spark.failures import RowRefused
from fencepost.spark.transport.packing.placement import RECORD_OVERHEAD_BYTES, no_topic, shown
from fencepost.spark.transport.packing.rows import TIMESTAMP_MS

if TYPE_CHECKING:
    from fencepost.spark.transport.packing.packer import PackedBatch, PackingPlan
    from fencepost.spark.transport.packing.placement import Placement


def pack_plain(
    plan: PackingPlan,
    placement: Placement,
    rows: Iterable[Mapping[str, Any]],
    first_length: Callable[[TopicPartition], int],
) -> Iterator[PackedBatch]:
    """Batches of these rows; `first_length` limits the first batch of each partition."""
    from fencepost.spark.transport.packing.packer import PackedBatch

    by_partition: dict[TopicPartition, list[Record]] = {}
    for row in rows:
        place, record = _place(plan, placement, row)
        by_partition.setdefault(place, []).append(record)
    now_ms = time.time_ns() // 1_000_000
    for place, records in by_partition.items():
        for part in _parts(records, plan.batch_bytes, first_length(place)):
            data = build_batch(part, timestamp_ms=now_ms, codec=plan.codec, transactional=True)
            yield PackedBatch(place, len(part), data)


def _place(
    plan: PackingPlan, placement: Placement, row: Mapping[str, Any]
) -> tuple[TopicPartition, Record]:
    key = row.get("key")
    record = Record(
        timestamp_ms=_time(key, row),
        key=key,
        value=row["value"],
        headers=tuple(_headers(key, row)),
    )
    size = _size(record)
    placement.check_size(size, lambda: key)
    topic = plan.topic or row.get("topic")
    if topic is None:
        raise no_topic(key)
    partition = placement.place(topic, row.get("partition"), key, size)
    return TopicPartition(topic, partition), record


def _time(key: bytes | None, row: Mapping[str, Any]) -> int:
    """The time of a row, if it has one to be written."""
    found: int | None = row.get(TIMESTAMP_MS)
    if found is None:
        return NO_TIMESTAMP
    if found < 0:
        raise RowRefused(
            f"a row with key {shown(key)} has a timestamp before 1970, which a record cannot have: "
            "correct the column, or make it null for the time of the write"
        )
    return found


def _headers(key: bytes | None, row: Mapping[str, Any]) -> Iterator[tuple[str, bytes | None]]:
    """The headers of a row: a value may be null on the wire, a name may not."""
    for header in row.get("headers") or ():
        if header is None or header["key"] is None:
            raise RowRefused(
                f"a row with key {shown(key)} has a header without a name: give every header a "
                "key, or leave it out"
            )
        yield header["key"], header["value"]


def _size(record: Record) -> int:
    headers = sum(len(name) + len(value or b"") + 10 for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers + RECORD_OVERHEAD_BYTES


def _parts(records: list[Record], batch_bytes: int, most: int) -> Iterator[list[Record]]:
    """Records in runs of about `batch_bytes`; the first run has at most `most` records."""
    part: list[Record] = []
    size = 0
    for record in records:
        record_bytes = _size(record)
        if part and (size + record_bytes > batch_bytes or len(part) >= most):
            yield part
            part, size = [], 0
            most = len(records)
        part.append(record)
        size += record_bytes
    if part:
        yield part
