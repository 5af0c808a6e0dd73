"""`transactions`: every transaction of a partition, from its first record to its marker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fencepost.base.ids import TopicPartition
from fencepost.records.batch import SealedBatch
from fencepost.records.fates import Known, Transaction, TransactionFollower
from fencepost.spark.views.partition_logs import PartitionLog
from fencepost.spark.views.schemas import microseconds


@dataclass(slots=True)
class _Contents:
    """What a transaction wrote."""

    transaction: Transaction
    begin_ms: int
    last_offset: int = -1
    records: int = 0
    batches: int = 0
    size_bytes: int = 0

    def add(self, batch: SealedBatch) -> None:
        self.last_offset = batch.last_offset
        self.records += batch.record_count
        self.batches += 1
        self.size_bytes += batch.size_bytes


def transaction_rows(log: PartitionLog, start: int, end: int) -> Iterator[dict[str, Any]]:
    """The transactions whose first record is in [start, end), as they end; open ones last.

    Reads on behind the end until all of them have ended.
    """
    follower = TransactionFollower(Known(open_at_start=log.open_at(start)))
    begun: dict[int, _Contents] = {}
    for batch in log.batches(start, checked=False):
        if batch.base_offset >= end and not begun:
            break
        transaction = follower.follow(batch)
        if transaction is None:
            continue
        if batch.is_control:
            ended = begun.pop(transaction.producer_id, None)
            if ended is not None:
                yield _row(log.place, ended)
        else:
            _count(begun, transaction, batch, start, end)
    for still_open in begun.values():
        yield _row(log.place, still_open)


def _count(
    begun: dict[int, _Contents], transaction: Transaction, batch: SealedBatch, start: int, end: int
) -> None:
    contents = begun.get(transaction.producer_id)
    if contents is None and start <= transaction.first_offset < end:
        contents = begun[transaction.producer_id] = _Contents(transaction, batch.base_timestamp)
    if contents is not None:
        contents.add(batch)


def _row(place: TopicPartition, contents: _Contents) -> dict[str, Any]:
    transaction, end = contents.transaction, contents.transaction.end
    row = {
        "topic": place.topic,
        "partition": place.partition,
        "producerId": transaction.producer_id,
        "producerEpoch": transaction.producer_epoch,
        "outcome": "open" if end is None else end.fate.value,
        "firstOffset": transaction.first_offset,
        "lastOffset": contents.last_offset,
        "records": contents.records,
        "batches": contents.batches,
        "sizeBytes": contents.size_bytes,
        "beginTimestamp": microseconds(contents.begin_ms),
    }
    if end is not None:
        row |= {
            "markerOffset": end.offset,
            "endTimestamp": microseconds(end.at_ms),
            "durationMs": end.at_ms - contents.begin_ms,
            "coordinatorEpoch": end.coordinator_epoch,
        }
    return row
