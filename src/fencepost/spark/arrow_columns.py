"""Sealed batches into the source's columns, in compiled loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from fencepost.records.columns import DecodedColumns, decode_batches
from fencepost.spark.arrow import schema_of

if TYPE_CHECKING:
    from fencepost.base.ids import TopicPartition
    from fencepost.records.batch import SealedBatch


def decoded_columns(
    place: TopicPartition,
    batches: Sequence[SealedBatch],
    columns: Sequence[str],
    start: int,
    end: int,
) -> pa.RecordBatch:
    """The same as `arrow.plain_columns`, for many batches at once."""
    decoded = decode_batches(
        batches,
        start,
        end,
        keys="key" in columns,
        values="value" in columns,
        headers="headers" in columns,
    )
    schema = schema_of(columns)
    arrays = [_array(field, place, decoded) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array(field: pa.Field, place: TopicPartition, decoded: DecodedColumns) -> pa.Array:
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
            return pa.array(decoded.timestamps_ms * 1000).cast(field.type)
        case "timestampType":
            return pa.array(decoded.append_times.astype(np.int32))
        case _:
            return pa.array(decoded.headers, field.type)
