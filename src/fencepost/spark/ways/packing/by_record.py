"""Packing record by record: for small batches, for headers and timestamps, and without numba."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from fencepost.base.ids import NO_TIMESTAMP, TopicPartition
from fencepost.records.builder import build_batch
from fencepost.records.opened import Record
from fencepost.spark.failures import RowRefused
from fencepost.spark.ways.packing.placement import (
    PackedBatch,
    PackingPlan,
    Placement,
    no_topic,
    shown,
    too_large,
)
from fencepost.spark.ways.packing.rows import TIMESTAMP_MS

RECORD_OVERHEAD_BYTES: Final = 32
"""The most that a record without headers needs beyond its key and value."""


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
