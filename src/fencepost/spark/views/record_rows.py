"""`records`: every record of a span, markers included, and what became of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fencepost.base.ids import MAX_SEQUENCE, NO_SEQUENCE, TopicPartition
from fencepost.records.control import read_marker
from fencepost.records.opened import Record, iterate_records
from fencepost.spark.compiled import compiled_columns, freeze_loaded_objects
from fencepost.spark.views.schemas import View, known, microseconds, schema_of

if TYPE_CHECKING:
    from fencepost.spark.views.partition_logs import JudgedBatch, PartitionLog


def record_batches(
    log: PartitionLog, columns: Sequence[str], start: int, end: int
) -> Iterator[pa.RecordBatch]:
    """The records of [start, end) as Arrow: in compiled loops where that pays."""
    judged = log.judged(start, end)
    if compiled_columns(log.record_estimate(start, end)) is None:
        yield from plain_records(log.place, judged, columns, start, end)
        return
    from fencepost.spark.views.compiled_records import compiled_records

    yield from compiled_records(log.place, judged, columns, start, end)
    freeze_loaded_objects()


def plain_records(
    place: TopicPartition,
    judged: Iterable[JudgedBatch],
    columns: Sequence[str],
    start: int,
    end: int,
) -> Iterator[pa.RecordBatch]:
    """Record by record: for small spans, and without numba."""
    schema = schema_of(View.RECORDS, columns)
    for each in judged:
        of_batch = {name: value_of_batch(each, name) for name in _OF_BATCH if name in columns}
        rows = [
            {**of_batch, **_fields(place, each, record)}
            for record in iterate_records(each.batch, name_errors="replace")
            if start <= record.offset < end
        ]
        if rows:
            yield pa.RecordBatch.from_pylist(rows, schema=schema)


def _fields(place: TopicPartition, judged: JudgedBatch, record: Record) -> dict[str, Any]:
    batch = judged.batch
    has_sequence = batch.base_sequence != NO_SEQUENCE
    sequence = (batch.base_sequence + record.offset - batch.base_offset) & MAX_SEQUENCE
    return {
        "topic": place.topic,
        "partition": place.partition,
        "offset": record.offset,
        "timestamp": microseconds(record.timestamp_ms),
        "timestampType": int(batch.is_append_time),
        "key": record.key,
        "value": record.value,
        "sequence": sequence if has_sequence else None,
        "headers": [{"key": name, "value": value} for name, value in record.headers] or None,
    }


_OF_BATCH = ("producerId", "producerEpoch", "fate", "transactionStart", "marker", "leaderEpoch")


def value_of_batch(judged: JudgedBatch, column: str) -> Any:
    """The value of a column that all records of a batch share."""
    batch = judged.batch
    match column:
        case "producerId":
            return known(batch.producer_id)
        case "producerEpoch":
            return known(batch.producer_epoch)
        case "fate":
            return judged.fate.value
        case "transactionStart":
            return judged.transaction_start
        case "marker":
            marker = read_marker(batch)
            return None if marker is None else "commit" if marker.commit else "abort"
        case "leaderEpoch":
            return known(batch.leader_epoch)
        case _:
            raise AssertionError(column)
