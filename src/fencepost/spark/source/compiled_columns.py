"""Sealed batches into the source's columns, in compiled loops."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from fencepost.records.columns import DecodedColumns, Ints, decode_batches
from fencepost.spark.schemas import schema_of
from fencepost.spark.source.columns import COLUMNS, MAX_TIMESTAMP_MS, timestamp_out_of_range

if TYPE_CHECKING:
    from fencepost.base.ids import TopicPartition
    from fencepost.records.batch import SealedBatch

GROUP_BYTES: Final = 16 * 1024 * 1024
"""The approximate size of one Arrow batch."""


def decoded_groups(
    batches: Iterable[SealedBatch],
    columns: Sequence[str],
    start: int,
    end: int,
    group_bytes: int = GROUP_BYTES,
) -> Iterator[DecodedColumns]:
    """The batches in groups, with what of their records these columns need."""
    return decode_batches(
        batches,
        start,
        end,
        group_bytes=group_bytes,
        keys="key" in columns,
        values="value" in columns,
        headers="headers" in columns,
    )


def decoded_columns(
    place: TopicPartition,
    batches: Sequence[SealedBatch],
    columns: Sequence[str],
    start: int,
    end: int,
    group_bytes: int = GROUP_BYTES,
) -> Iterator[pa.RecordBatch]:
    """The same rows as `columns.plain_columns`, for many batches at once."""
    schema = schema_of(COLUMNS, columns)
    for decoded in decoded_groups(batches, columns, start, end, group_bytes):
        if len(decoded.offsets):
            arrays = [array_of(field, place, decoded) for field in schema]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def array_of(field: pa.Field, place: TopicPartition, decoded: DecodedColumns) -> pa.Array:
    """One column."""
    count = len(decoded.offsets)
    match field.name:
        case "key":
            return decoded.keys
        case "value":
            return decoded.values
        case "topic":
            return pa.repeat(pa.scalar(place.topic, field.type), count)
        case "partition":
            return pa.array(np.full(count, place.partition, np.int32))
        case "offset":
            return pa.array(decoded.offsets)
        case "timestamp":
            return pa.array(_microseconds(place, decoded)).cast(field.type)
        case "timestampType":
            return pa.array(decoded.append_times.astype(np.int32))
        case _:
            return pa.array(decoded.headers, field.type)


def _microseconds(place: TopicPartition, decoded: DecodedColumns) -> Ints:
    times = decoded.timestamps_ms
    outside = (times < -MAX_TIMESTAMP_MS) | (times > MAX_TIMESTAMP_MS)
    if outside.any():
        row = int(outside.argmax())
        raise timestamp_out_of_range(place, int(decoded.offsets[row]), int(times[row]))
    return times * 1000
