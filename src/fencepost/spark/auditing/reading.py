"""The first stage: a range of offsets into packed hashes.

A task reads a span of one partition with the fates of its records, as the view `records` does, and
keeps 24 bytes of each record: the hash of its key and its offset. Records are packed by bucket, so
that the shuffle moves a few large rows instead of millions of small ones. A packed row:

    kind     RECORDS, UNDECIDED (records of transactions that were open), STATISTICS
    slot     the bucket, which is the hash modulo their number: equal keys meet in one task
    place    the index of the partition in `Bounds.places`
    first    the first offset, to put the rows of a partition in order
    data     the records, in order of their offsets; or the numbers of `Statistics`

If retention deletes what a task was about to read, it continues where the log starts now and
reports that in its statistics: what cannot be read cannot be judged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fencepost.base.failures import FencepostError
from fencepost.base.ids import TopicPartition
from fencepost.client.failures import OffsetOutOfRange, UnknownTopicOrPartition
from fencepost.client.reading import EARLIEST
from fencepost.records.fates import Fate
from fencepost.spark.auditing.bounds import Bounds, Place
from fencepost.spark.auditing.keys import KeyExpression, columns_of, content_hashes, hashes_of
from fencepost.spark.auditing.question import Question
from fencepost.spark.connection import cluster_of
from fencepost.spark.schemas import arrow_schema
from fencepost.spark.source.options import SourceOptions
from fencepost.spark.source.ranges import OffsetRange, split_ranges
from fencepost.spark.views.partition_logs import BrokerLog
from fencepost.spark.views.record_rows import record_batches

if TYPE_CHECKING:
    from fencepost.spark.auditing.tables import Rows

RECORDS: Final = 0
UNDECIDED: Final = 1
STATISTICS: Final = 2

PACKED_DDL: Final = "kind int, slot int, place int, first long, data binary"
_PACKED: Final = arrow_schema(PACKED_DDL)
RECORD_WORDS: Final = 3
"""A packed record: two words of hash and the offset. A fourth one is the hash of what is compared
beside the key."""

_FLUSH_RECORDS: Final = 1 << 18
_LEAST_SPAN: Final = 50_000
_LARGEST_SPAN: Final = 4_000_000
_SPANS_PER_SLOT: Final = 3
"""More tasks than slots, so that the last one is short."""

Packed = tuple[int, int, int, int, bytes]
Words = np.ndarray[Any, np.dtype[np.uint64]]


class Statistics(NamedTuple):
    """What one task saw."""

    place: int
    records: int = 0
    undecided: int = 0
    aborted: int = 0
    unkeyed: int = 0
    lost_below: int = 0
    """Records below were deleted before they could be read; 0 if none were."""


@dataclass(frozen=True, slots=True)
class Span:
    """What one task reads."""

    place: int
    start: int
    end: int
    is_settled: bool


@dataclass(frozen=True, slots=True)
class Reading:
    """All that the tasks of the first stage need."""

    options: SourceOptions
    places: tuple[Place, ...]
    question: Question
    seed: int
    """Of the hashes: the same in all tasks."""
    buckets: int
    spans: tuple[Span, ...] = field(repr=False)

    @property
    def words(self) -> int:
        """How many words a packed record has: with the hash of what is compared, or without."""
        return RECORD_WORDS + self.question.compares

    def key_of(self, place: Place) -> KeyExpression:
        """Where the records of this partition have their key."""
        return self.question.side(is_input=place.is_input).key

    def fields_of(self, place: Place) -> tuple[KeyExpression, ...]:
        """Where they have what is compared beside the key."""
        return self.question.side(is_input=place.is_input).fields_at(is_table=False)

    def log_of(self, place: Place) -> BrokerLog:
        """The records of this partition."""
        return BrokerLog(place.partition, self.options, place.start, place.end, place.topic_id)

    def packed(self, number: int) -> Iterator[pa.RecordBatch]:
        """The records of a span, packed."""
        span = self.spans[number]
        reader = _SpanReader(self, span)
        held: list[Words] = []
        count = 0
        for part in reader.records():
            held.append(part)
            count += len(part)
            if count >= _FLUSH_RECORDS:
                yield self._rows(span, np.concatenate(held))
                held, count = [], 0
        if held:
            yield self._rows(span, np.concatenate(held))
        yield packed_rows([_counted(reader.statistics)])

    def _rows(self, span: Span, records: Words) -> pa.RecordBatch:
        kind = RECORDS if span.is_settled else UNDECIDED
        return packed_rows(list(_in_buckets(kind, span.place, records, self.buckets)))


def packed_table(place: int, rows: Rows, buckets: int) -> Iterator[Packed]:
    """The rows of a table, as a task of the first stage packs the records of a partition."""
    for start in range(0, len(rows.hashes), _FLUSH_RECORDS):
        yield from _in_buckets(RECORDS, place, rows.hashes[start : start + _FLUSH_RECORDS], buckets)
    yield _counted(Statistics(place, records=rows.size, unkeyed=rows.unkeyed))


def _counted(statistics: Statistics) -> Packed:
    return STATISTICS, 0, statistics.place, 0, np.array(statistics, "<i8").tobytes()


def _in_buckets(kind: int, place: int, records: Words, count: int) -> Iterator[Packed]:
    buckets = (records[:, 0] % np.uint64(count)).astype(np.uint16)
    # A stable sort of 16 bits is a radix sort.
    records = records[np.argsort(buckets, kind="stable")]
    ends = np.cumsum(np.bincount(buckets, minlength=count))
    for bucket, part in enumerate(np.split(records, ends[:-1])):
        if len(part):
            yield kind, bucket, place, int(part[0, 2]), part.tobytes()


def packed_rows(rows: list[Packed]) -> pa.RecordBatch:
    """Packed rows as Arrow."""
    columns = list(zip(*rows, strict=True)) or [()] * len(_PACKED)
    return pa.RecordBatch.from_arrays(list(map(pa.array, columns, _PACKED.types)), schema=_PACKED)


def plan_spans(bounds: Bounds, slots: int) -> tuple[Span, ...]:
    """The tasks of the first stage. What is not decided is one task per partition."""
    size = bounds.offsets // (slots * _SPANS_PER_SLOT)
    size = min(max(size, _LEAST_SPAN), _LARGEST_SPAN)
    numbers = {place.partition: number for number, place in enumerate(bounds.places)}
    whole = [
        OffsetRange(p.partition, p.start, min(p.settled, p.end))
        for p in bounds.places
        if p.start < min(p.settled, p.end) and not p.is_table
    ]
    parts = split_ranges(whole, max_records=size, min_partitions=None)
    settled = [Span(numbers[part.partition], part.start, part.end, True) for part in parts]
    return (
        *settled,
        *(
            Span(number, max(p.start, p.settled), p.end, False)
            for number, p in enumerate(bounds.places)
            if max(p.start, p.settled) < p.end
        ),
    )


class _SpanReader:
    """Reads one span, and counts."""

    def __init__(self, reading: Reading, span: Span) -> None:
        self._reading = reading
        self._span = span
        self._place = reading.places[span.place]
        self._key = reading.key_of(self._place)
        self._fields = reading.fields_of(self._place)
        self.statistics = Statistics(span.place)

    def records(self) -> Iterator[Words]:
        """Hash and offset of the visible records; of all but aborted ones if not settled."""
        position, end = self._span.start, self._span.end
        wanted = (self._key, *self._fields)
        columns = ("offset", "fate", *dict.fromkeys(each.column for each in wanted))
        while position < end:
            try:
                log = self._reading.log_of(self._place)
                for rows in record_batches(log, columns, position, end):
                    yield self._packed(rows)
                    position = rows.column("offset")[-1].as_py() + 1
                return
            except OffsetOutOfRange:
                position = self._skip(position)
            except UnknownTopicOrPartition:
                raise FencepostError(
                    f"topic {self._place.partition.topic!r} was deleted or created again during "
                    "the audit: run it again"
                ) from None

    def _packed(self, rows: pa.RecordBatch) -> Words:
        wanted, aborted = _visible(rows.column("fate"), is_settled=self._span.is_settled)
        columns = columns_of((self._key, *self._fields), rows)
        offsets = rows.column("offset").to_numpy().view(np.uint64)
        if not wanted.all():
            # After the keys were taken: values are longer.
            columns = [column.filter(pa.array(wanted)) for column in columns]
            offsets = offsets[wanted]
        keys, *contents = columns
        found = np.empty((len(keys), self._reading.words), np.uint64)
        found[:, :2] = hashes_of(keys, self._reading.seed)
        found[:, 2] = offsets
        if contents:
            found[:, 3] = content_hashes(contents, self._reading.seed)
        if keys.null_count:
            found = found[np.asarray(keys.is_valid())]
        self._count(len(keys), aborted, keys.null_count)
        return found

    def _count(self, visible: int, aborted: int, unkeyed: int) -> None:
        seen, is_settled = self.statistics, self._span.is_settled
        self.statistics = seen._replace(
            records=seen.records + (visible if is_settled else 0),
            undecided=seen.undecided + (0 if is_settled else visible),
            aborted=seen.aborted + aborted,
            unkeyed=seen.unkeyed + unkeyed,
        )

    def _skip(self, position: int) -> int:
        """Where to go on after a deletion."""
        tp: TopicPartition = self._place.partition
        found = cluster_of(self._reading.options.client).list_offsets({tp: EARLIEST})
        start = max(found[tp].offset, position)
        self.statistics = self.statistics._replace(lost_below=start)
        return start


_VISIBLE: Final = {Fate.COMMITTED.value, Fate.NOT_TRANSACTIONAL.value}
_UNSETTLED: Final = _VISIBLE | {Fate.OPEN.value, Fate.UNKNOWN.value}


def _visible(fates: pa.Array, *, is_settled: bool) -> tuple[Any, int]:
    """Which records count, and how many were aborted."""
    encoded = pc.dictionary_encode(fates)
    words = encoded.dictionary.to_pylist()
    kinds = encoded.indices.to_numpy()
    counted = _VISIBLE if is_settled else _UNSETTLED
    wanted = np.array([word in counted for word in words], bool)[kinds]
    aborted = [number for number, word in enumerate(words) if word == Fate.ABORTED.value]
    return wanted, int(np.isin(kinds, aborted).sum()) if aborted else 0
