"""The views and their columns, for Spark and for Arrow."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final

import pyarrow as pa

from fencepost.spark.source.columns import MAX_TIMESTAMP_MS


class View(Enum):
    """What a reader shows."""

    RECORDS = "records"
    TRANSACTIONS = "transactions"
    TRANSACTION_STATE = "transaction_state"
    PRODUCERS = "producers"
    OFFSETS = "offsets"


_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
_HEADERS: Final = pa.list_(
    # Spark calls the items of a list "element" and checks the name.
    pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())]))
)
_STRINGS: Final = pa.list_(pa.field("element", pa.string()))

SCHEMAS: Final[dict[View, pa.Schema]] = {
    View.RECORDS: pa.schema(
        [
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", _TIMESTAMP),
            ("timestampType", pa.int32()),
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("producerId", pa.int64()),
            ("producerEpoch", pa.int32()),
            ("sequence", pa.int32()),
            ("fate", pa.string()),
            ("transactionStart", pa.int64()),
            ("marker", pa.string()),
            ("leaderEpoch", pa.int32()),
            ("headers", _HEADERS),
        ]
    ),
    View.TRANSACTIONS: pa.schema(
        [
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("producerId", pa.int64()),
            ("producerEpoch", pa.int32()),
            ("outcome", pa.string()),
            ("firstOffset", pa.int64()),
            ("lastOffset", pa.int64()),
            ("markerOffset", pa.int64()),
            ("records", pa.int64()),
            ("batches", pa.int64()),
            ("sizeBytes", pa.int64()),
            ("beginTimestamp", _TIMESTAMP),
            ("endTimestamp", _TIMESTAMP),
            ("durationMs", pa.int64()),
            ("coordinatorEpoch", pa.int32()),
        ]
    ),
    View.TRANSACTION_STATE: pa.schema(
        [
            ("transactionalId", pa.string()),
            ("state", pa.string()),
            ("producerId", pa.int64()),
            ("producerEpoch", pa.int32()),
            ("previousProducerId", pa.int64()),
            ("nextProducerId", pa.int64()),
            ("lastProducerEpoch", pa.int32()),
            ("timeoutMs", pa.int32()),
            ("startTimestamp", _TIMESTAMP),
            ("lastUpdateTimestamp", _TIMESTAMP),
            ("partitions", _STRINGS),
            ("transactionVersion", pa.int32()),
            ("logPartition", pa.int32()),
            ("logOffset", pa.int64()),
            ("timestamp", _TIMESTAMP),
        ]
    ),
    View.PRODUCERS: pa.schema(
        [
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("producerId", pa.int64()),
            ("producerEpoch", pa.int32()),
            ("lastSequence", pa.int32()),
            ("lastTimestamp", _TIMESTAMP),
            ("coordinatorEpoch", pa.int32()),
            ("transactionStart", pa.int64()),
        ]
    ),
    View.OFFSETS: pa.schema(
        [
            ("group", pa.string()),
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("leaderEpoch", pa.int32()),
            ("metadata", pa.string()),
            ("commitTimestamp", _TIMESTAMP),
            ("producerId", pa.int64()),
            ("producerEpoch", pa.int32()),
            ("fate", pa.string()),
            ("logPartition", pa.int32()),
            ("logOffset", pa.int64()),
        ]
    ),
}

_DDL: Final[dict[pa.DataType, str]] = {
    pa.string(): "string",
    pa.binary(): "binary",
    pa.int32(): "int",
    pa.int64(): "long",
    _TIMESTAMP: "timestamp",
    _STRINGS: "array<string>",
    _HEADERS: "array<struct<key: string, value: binary>>",
}


def names_of(view: View) -> list[str]:
    """The names of all columns of a view."""
    return list(SCHEMAS[view].names)


def schema_of(view: View, columns: Sequence[str]) -> pa.Schema:
    """The Arrow schema of these columns."""
    schema = SCHEMAS[view]
    return pa.schema([schema.field(name) for name in columns])


def ddl_of(view: View, columns: Sequence[str]) -> str:
    """The same schema for Spark."""
    return ", ".join(f"{field.name} {_DDL[field.type]}" for field in schema_of(view, columns))


def known(value: int) -> int | None:
    """A number of the log, which writes -1 for none, as a value of a column."""
    return value if value >= 0 else None


def microseconds(time_ms: int) -> int | None:
    """A time of the log as a value of a timestamp column; null if there is none."""
    return time_ms * 1000 if 0 <= time_ms <= MAX_TIMESTAMP_MS else None
