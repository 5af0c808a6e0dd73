"""`records`: every record of a span, markers included, and what became of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fencepost.base.ids import MAX_SEQUENCE, NO_SEQUENCE, TopicPartition
from fencepost.records.control import read_marker
from fencepost.records.opened import Record, iterate_records
from fencepost.spark.compiled import compiled_columns, freeze_loaded_objects
from fencepost.spark.schemas import schema_of
from fencepost.spark.source.columns import COLUMNS, values_of
from fencepost.spark.views import schemas
from fencepost.spark.views.schemas import View, known, microseconds

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
    schema = schema_of(schemas.COLUMNS[View.RECORDS], columns)
    for each in judged:
        opened = iterate_records(each.batch, name_errors="replace")
        records = [record for record in opened if start <= record.offset < end]
        if records:
            values = [_values(name, place, each, records) for name in columns]
            arrays = list(map(pa.array, values, schema.types))
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _values(
    name: str, place: TopicPartition, judged: JudgedBatch, records: list[Record]
) -> list[Any]:
    batch = judged.batch
    if name == "timestamp":
        return [microseconds(record.timestamp_ms) for record in records]
    if name == "sequence":
        if batch.base_sequence == NO_SEQUENCE:
            return [None] * len(records)
        first = batch.base_sequence - batch.base_offset
        return [(first + record.offset) & MAX_SEQUENCE for record in records]
    if name in COLUMNS:
        return values_of(name, place, batch, records)
    return [value_of_batch(judged, name)] * len(records)


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
