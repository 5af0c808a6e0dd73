"""The records view in compiled loops: many batches at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from fencepost.base.ids import MAX_SEQUENCE, NO_SEQUENCE
from fencepost.spark.schemas import schema_of
from fencepost.spark.source.columns import COLUMNS, MAX_TIMESTAMP_MS
from fencepost.spark.source.compiled_columns import array_of, decoded_groups
from fencepost.spark.views import schemas
from fencepost.spark.views.record_rows import value_of_batch
from fencepost.spark.views.schemas import View

if TYPE_CHECKING:
    from fencepost.base.ids import TopicPartition
    from fencepost.records.batch import SealedBatch
    from fencepost.records.columns import DecodedColumns
    from fencepost.spark.views.partition_logs import JudgedBatch


def compiled_records(
    place: TopicPartition,
    judged: Iterable[JudgedBatch],
    columns: Sequence[str],
    start: int,
    end: int,
) -> Iterator[pa.RecordBatch]:
    """The same rows as `record_rows.plain_records`."""
    schema = schema_of(schemas.COLUMNS[View.RECORDS], columns)
    noted: dict[int, JudgedBatch] = {}
    for group in decoded_groups(_noting(judged, noted), columns, start, end):
        rows = _Rows(place, group, [noted.pop(batch.base_offset) for batch in group.batches])
        if len(group.offsets):
            arrays = [rows.column(field) for field in schema]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _noting(batches: Iterable[JudgedBatch], noted: dict[int, JudgedBatch]) -> Iterator[SealedBatch]:
    for each in batches:
        noted[each.batch.base_offset] = each
        yield each.batch


class _Rows:
    """The columns of one group of batches."""

    def __init__(
        self, place: TopicPartition, decoded: DecodedColumns, judged: Sequence[JudgedBatch]
    ) -> None:
        self._place = place
        self._decoded = decoded
        self._judged = judged

    def column(self, field: pa.Field) -> pa.Array:
        if field.name == "timestamp":
            return _timestamps(self._decoded.timestamps_ms, field.type)
        if field.name == "sequence":
            return self._sequences(field.type)
        if field.name in COLUMNS:
            return array_of(field, self._place, self._decoded)
        values = [value_of_batch(each, field.name) for each in self._judged]
        return self._spread(pa.array(values, field.type))

    def _spread(self, per_batch: pa.Array) -> pa.Array:
        """Repeats the value of each batch for its records."""
        if len(per_batch) == 1:
            return pa.repeat(per_batch[0], len(self._decoded.offsets))
        rows = np.repeat(np.arange(len(per_batch)), self._decoded.counts)
        return per_batch.take(pa.array(rows))

    def _sequences(self, kind: pa.DataType) -> pa.Array:
        batches = [each.batch for each in self._judged]
        counts = self._decoded.counts
        first = np.repeat(np.array([batch.base_sequence for batch in batches], np.int64), counts)
        base = np.repeat(np.array([batch.base_offset for batch in batches], np.int64), counts)
        sequences = (first + self._decoded.offsets - base) & MAX_SEQUENCE
        return pa.array(sequences, mask=first == NO_SEQUENCE).cast(kind)


def _timestamps(times_ms: Any, kind: pa.DataType) -> pa.Array:
    """Producers may write any number; what Spark cannot hold is null here."""
    outside = (times_ms < 0) | (times_ms > MAX_TIMESTAMP_MS)
    times = np.where(outside, 0, times_ms) * 1000
    return pa.array(times, mask=outside if outside.any() else None).cast(kind)
