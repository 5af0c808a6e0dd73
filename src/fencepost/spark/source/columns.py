"""The columns of the source, and records into columns one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from fencepost.base.ids import TopicPartition
from fencepost.records.batch import SealedBatch
from fencepost.records.opened import Record, open_batch
from fencepost.spark.failures import RowRefused

DDL: Final = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "long",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key: string, value: binary>>",
}
MAX_TIMESTAMP_MS: Final = (2**63 - 1) // 1000
"""Spark counts microseconds in 64 bits."""

_HEADER: Final = pa.struct([("key", pa.string()), ("value", pa.binary())])
_TYPES: Final[dict[str, pa.DataType]] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    # Spark calls the items of a list "element" and checks the name.
    "headers": pa.list_(pa.field("element", _HEADER)),
}


def ddl_of(columns: Sequence[str]) -> str:
    """The schema for Spark."""
    return ", ".join(f"{name} {DDL[name]}" for name in columns)


def schema_of(columns: Sequence[str]) -> pa.Schema:
    """The same schema for Arrow."""
    return pa.schema([(name, _TYPES[name]) for name in columns])


def plain_columns(
    place: TopicPartition, batch: SealedBatch, columns: Sequence[str], start: int, end: int
) -> pa.RecordBatch | None:
    """One batch, opened record by record: for small batches, and without numba."""
    records = [r for r in open_batch(batch, name_errors="replace") if start <= r.offset < end]
    if not records:
        return None
    arrays = [pa.array(_values(name, place, batch, records), _TYPES[name]) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=schema_of(columns))


def _values(
    name: str, place: TopicPartition, batch: SealedBatch, records: list[Record]
) -> list[Any]:
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
            return [_headers(record) for record in records]


def _microseconds(place: TopicPartition, records: list[Record]) -> list[int]:
    for record in records:
        if not -MAX_TIMESTAMP_MS <= record.timestamp_ms <= MAX_TIMESTAMP_MS:
            raise timestamp_out_of_range(place, record.offset, record.timestamp_ms)
    return [record.timestamp_ms * 1000 for record in records]


def timestamp_out_of_range(place: TopicPartition, offset: int, timestamp_ms: int) -> RowRefused:
    """The error for a record whose time Spark cannot hold: producers may write any number."""
    return RowRefused(
        f"the record at offset {offset} of {place} has the timestamp {timestamp_ms}, which "
        "Spark cannot hold: read the "
        "topic without it (columns=key,value,...), or start behind the record"
    )


def _headers(record: Record) -> list[dict[str, Any]] | None:
    """Null when there are none, as in Spark."""
    return [{"key": name, "value": value} for name, value in record.headers] or None
