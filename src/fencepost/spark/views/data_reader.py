"""Plans the tasks of a view, and runs one.

A task covers a span: a segment of a folder, or a range of a broker's partition. Transactions from a
broker have one task per partition, because only a folder tells what was open at a span's start.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from fencepost.base.failures import ConfigError
from fencepost.base.ids import CLUSTER_METADATA_TOPIC, INTERNAL_TOPICS, TopicPartition
from fencepost.spark.engine.hosts import check_received_secrets
from fencepost.spark.schemas import schema_of
from fencepost.spark.source.positions import Positions
from fencepost.spark.source.ranges import split_ranges
from fencepost.spark.views import internal_rows, producer_rows, transaction_rows
from fencepost.spark.views.log_folders import LogFolder, find_folders
from fencepost.spark.views.options import INTERNAL_TOPIC, ViewOptions
from fencepost.spark.views.partition_logs import BrokerLog, FolderLog, PartitionLog
from fencepost.spark.views.schemas import COLUMNS, View

if TYPE_CHECKING:
    from fencepost.spark.source.options import Subscription

_INTERNAL: Final = INTERNAL_TOPICS | {CLUSTER_METADATA_TOPIC}

_ROWS_PER_BATCH: Final = 8_192
_PARTITIONS_PER_TASK: Final = 200
"""Partitions whose producers one task asks for."""


@dataclass(frozen=True, slots=True)
class Span:
    """A part of one partition."""

    log: PartitionLog
    start: int
    end: int


class SpanPartition(InputPartition):
    """What one task covers: a span, or partitions whose leaders are asked."""

    def __init__(self, span: Span | None, places: Sequence[TopicPartition] = ()) -> None:
        super().__init__(span)
        self.span = span
        self.places = tuple(places)


class ViewReader(DataSourceReader):
    """Reads one view."""

    def __init__(self, options: ViewOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        if options.source is None:
            folders = _chosen(find_folders(list(options.paths)), options)
            return [SpanPartition(span) for folder in folders for span in _spans(folder, options)]
        if options.view is View.PRODUCERS:
            places = Positions(options.source).subscribed().partitions
            return [SpanPartition(None, part) for part in _portions(places, _PARTITIONS_PER_TASK)]
        return [SpanPartition(span) for span in _broker_spans(options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # If there is nothing to read, Spark creates a partition itself.
        if not isinstance(partition, SpanPartition):
            return iter(())
        options, span = self._options, partition.span
        source = options.source
        if source is not None and not source.may_send_secrets:
            check_received_secrets(source.client, source.planned_on)
        if span is None:
            assert options.source is not None, "only brokers are asked for producers"
            return self._tabled(producer_rows.described_rows(options.source, partition.places))
        if options.view is View.RECORDS:
            from fencepost.spark.views.record_rows import record_batches

            return record_batches(span.log, options.columns, span.start, span.end)
        return self._tabled(_rows(options.view, span))

    def _tabled(self, rows: Iterable[dict[str, Any]]) -> Iterator[pa.RecordBatch]:
        schema = schema_of(COLUMNS[self._options.view], self._options.columns)
        for part in _portions(rows, _ROWS_PER_BATCH):
            yield pa.RecordBatch.from_pylist(part, schema=schema)


def _rows(view: View, span: Span) -> Iterator[dict[str, Any]]:
    log = span.log
    index = log.place.partition
    match view:
        case View.TRANSACTIONS:
            yield from transaction_rows.transaction_rows(log, span.start, span.end)
        case View.PRODUCERS:
            assert isinstance(log, FolderLog)
            yield from producer_rows.folder_rows(log)
        case View.TRANSACTION_STATE:
            for batch in log.batches(span.start):
                if batch.base_offset >= span.end:
                    return
                yield from internal_rows.state_rows(index, batch)
        case _:
            for judged in log.judged(span.start, span.end):
                yield from internal_rows.offset_rows(index, judged.batch, judged.fate.value)


# -- planning -------------------------------------------------------------------------------------


def _chosen(folders: list[LogFolder], options: ViewOptions) -> list[LogFolder]:
    chosen = [folder for folder in folders if _is_chosen(folder.place, options)]
    if not chosen:
        there = ", ".join(sorted({folder.place.topic for folder in folders})[:10])
        wanted = INTERNAL_TOPIC.get(options.view, "the chosen topics")
        raise ConfigError(f"path has no partition of {wanted}; it has {there}")
    return chosen


def _is_chosen(place: TopicPartition, options: ViewOptions) -> bool:
    subscription: Subscription | None = options.subscription
    if subscription is None:
        return place.topic not in _INTERNAL
    if subscription.assigned is not None:
        return place in subscription.assigned
    if subscription.pattern is not None:
        return re.search(subscription.pattern, place.topic) is not None
    return place.topic in (subscription.topics or ())


def _spans(folder: LogFolder, options: ViewOptions) -> list[Span]:
    """One span per segment; the producers of a partition are one span."""
    log, bases = FolderLog(folder), folder.base_offsets
    if options.view is View.PRODUCERS:
        return [Span(log, bases[0], _NO_END)]
    return [Span(log, start, end) for start, end in itertools.pairwise((*bases, _NO_END))]


_NO_END: Final = 2**63 - 1


def _broker_spans(options: ViewOptions) -> list[Span]:
    assert options.source is not None
    source = options.source
    positions = Positions(source)
    found, (start, end, earliest) = positions.ask_existing(
        lambda found: (
            positions.starting(found),
            positions.ending(found),
            positions.earliest(found.partitions),
        )
    )
    ranges = [found.range_of(tp, start[tp], end[tp]) for tp in found.partitions]
    if options.view is View.TRANSACTIONS:
        parts = [each for each in ranges if each.size > 0]
    else:
        parts = split_ranges(
            ranges,
            max_records=source.max_records_per_partition,
            min_partitions=source.min_partitions,
        )
    ends = positions.high_watermarks(found.partitions)
    spans = []
    for part in parts:
        place = part.partition
        log = BrokerLog(place, source, earliest[place], ends[place], part.topic_id)
        spans.append(Span(log, part.start, part.end))
    return spans


def _portions(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    iterator = iter(items)
    while part := list(itertools.islice(iterator, size)):
        yield part
