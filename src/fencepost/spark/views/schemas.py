"""The views and their columns."""

from __future__ import annotations

from enum import Enum
from typing import Final

from fencepost.spark.schemas import HEADERS, columns_in
from fencepost.spark.source.columns import MAX_TIMESTAMP_MS


class View(Enum):
    """What a reader shows."""

    RECORDS = "records"
    TRANSACTIONS = "transactions"
    TRANSACTION_STATE = "transaction_state"
    PRODUCERS = "producers"
    OFFSETS = "offsets"


_DDL: Final = {
    View.RECORDS: "topic string, partition int, offset long, timestamp timestamp, "
    "timestampType int, key binary, value binary, producerId long, producerEpoch int, "
    "sequence int, fate string, transactionStart long, marker string, leaderEpoch int, "
    f"headers {HEADERS}",
    View.TRANSACTIONS: "topic string, partition int, producerId long, producerEpoch int, "
    "outcome string, firstOffset long, lastOffset long, markerOffset long, records long, "
    "batches long, sizeBytes long, beginTimestamp timestamp, endTimestamp timestamp, "
    "durationMs long, coordinatorEpoch int",
    View.TRANSACTION_STATE: "transactionalId string, state string, producerId long, "
    "producerEpoch int, previousProducerId long, nextProducerId long, lastProducerEpoch int, "
    "timeoutMs int, startTimestamp timestamp, lastUpdateTimestamp timestamp, "
    "partitions array<string>, transactionVersion int, administrator string, "
    "logPartition int, logOffset long, timestamp timestamp",
    View.PRODUCERS: "topic string, partition int, producerId long, producerEpoch int, "
    "lastSequence int, lastTimestamp timestamp, coordinatorEpoch int, transactionStart long",
    View.OFFSETS: "group string, topic string, partition int, offset long, leaderEpoch int, "
    "metadata string, commitTimestamp timestamp, producerId long, producerEpoch int, "
    "fate string, logPartition int, logOffset long",
}
COLUMNS: Final = {view: columns_in(ddl) for view, ddl in _DDL.items()}
"""The columns of each view, and their types."""


def known(value: int) -> int | None:
    """A number of the log, which writes -1 for none, as a value of a column."""
    return value if value >= 0 else None


def microseconds(time_ms: int) -> int | None:
    """A time of the log as a value of a timestamp column; null if there is none."""
    return time_ms * 1000 if 0 <= time_ms <= MAX_TIMESTAMP_MS else None
