"""The columns of the source, and records into columns one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from fencepost.base.ids import TopicPartition
from fencepost.records.batch import SealedBatch
from fencepost.records.opened import Record, open_batch
from fencepost.spark.failures import RowRefused
from fencepost.spark.schemas import HEADERS, columns_in, schema_of

COLUMNS: Final = columns_in(
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, "
    f"timestampType int, headers {HEADERS}"
)
"""All columns, and their types."""
MAX_TIMESTAMP_MS: Final = (2**63 - 1) // 1000
"""Spark counts microseconds in 64 bits."""


def plain_columns(
    place: TopicPartition, batch: SealedBatch, columns: Sequence[str], start: int, end: int
) -> pa.RecordBatch | None:
    """One batch, opened record by record: for small batches, and without numba."""
    records = [r for r in open_batch(batch, name_errors="replace") if start <= r.offset < end]
    if not records:
        return None
    schema = schema_of(COLUMNS, columns)
    values = [values_of(name, place, batch, records) for name in columns]
    return pa.RecordBatch.from_arrays(list(map(pa.array, values, schema.types)), schema=schema)


def values_of(
    name: str, place: TopicPartition, batch: SealedBatch, records: list[Record]
) -> list[Any]:
    """The values of one column."""
    match name:
        case "key":
            return [record.key for record in records]
        case "value":
            return [record.value for record in records]
        case "topic":
            return [place.topic] * len(records)
        case "partition":
            return [place.partition] * len(records)
        case "offset":
            return [record.offset for record in records]
        case "timestamp":
            return _microseconds(place, records)
        case "timestampType":
            return [int(batch.is_append_time)] * len(records)
        case _:
            # Null when there are none, as in Spark.
            return [
                [{"key": key, "value": value} for key, value in record.headers] or None
                for record in records
            ]


def _microseconds(place: TopicPartition, records: list[Record]) -> list[int]:
    for record in records:
        if not -MAX_TIMESTAMP_MS <= record.timestamp_ms <= MAX_TIMESTAMP_MS:
            raise timestamp_out_of_range(place, record.offset, record.timestamp_ms)
    return [record.timestamp_ms * 1000 for record in records]


def timestamp_out_of_range(place: TopicPartition, offset: int, timestamp_ms: int) -> RowRefused:
    """The error for a record whose time Spark cannot hold: producers may write any number."""
    return RowRefused(
        f"the record at offset {offset} of {place} has the timestamp {timestamp_ms}, which Spark "
        "cannot hold: read the topic without it (columns=key,value,...), or start behind the record"
    )
