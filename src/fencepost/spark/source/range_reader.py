"""What a task of the source does: ranges of offsets into Arrow."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from fencepost.client.failures import OffsetOutOfRange, UnknownTopicOrPartition
from fencepost.spark.compiled import compiled_columns, freeze_loaded_objects
from fencepost.spark.connection import cluster_of
from fencepost.spark.engine.hosts import check_received_secrets
from fencepost.spark.sentences import plain_errors
from fencepost.spark.source.columns import plain_columns
from fencepost.spark.source.options import SourceOptions
from fencepost.spark.source.positions import Positions, fetch_partition, report_deleted, report_loss
from fencepost.spark.source.ranges import OffsetRange

if TYPE_CHECKING:
    import pyarrow as pa

    from fencepost.records.batch import SealedBatch


def read_ranges(options: SourceOptions, ranges: Iterable[OffsetRange]) -> Iterator[pa.RecordBatch]:
    """The visible records of these ranges, one range after the other."""
    with plain_errors(options.client):
        for wanted in ranges:
            yield from read_range(options, wanted)


def read_range(options: SourceOptions, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
    """The visible records of a range, batch by batch.

    The end was fetched before, so everything up to it exists and is decided: an answer without a
    single batch means that something is wrong, or slow.
    """
    if not options.may_send_secrets:
        check_received_secrets(options.client, options.planned_on)
    position = wanted.start
    deadline = _deadline(options)
    cluster = cluster_of(options.client)
    while position < wanted.end:
        try:
            fetched = fetch_partition(cluster, wanted.partition, position, wanted.topic_id)
        except UnknownTopicOrPartition as problem:
            report_loss(options, f"{wanted.partition}: {problem}")
            return
        except OffsetOutOfRange as problem:
            position = _skip_lost(options, wanted, position, problem)
            continue
        batches = [
            batch
            for batch in fetched.visible_batches()
            if batch.next_offset > position and batch.base_offset < wanted.end
        ]
        yield from arrow_batches(wanted, options.columns, batches, position)
        if fetched.next_offset > position:
            position, deadline = fetched.next_offset, _deadline(options)
        elif time.monotonic() > deadline:
            raise TimeoutError(
                f"{wanted.partition}: nothing came after offset {position} within "
                f"{options.poll_timeout_ms} ms, and records up to {wanted.end} must be there: look "
                "at the brokers, or raise kafkaConsumer.pollTimeoutMs"
            )
    freeze_loaded_objects()


def arrow_batches(
    wanted: OffsetRange, columns: Sequence[str], batches: Sequence[SealedBatch], position: int
) -> Iterator[pa.RecordBatch]:
    """These batches as Arrow: in compiled loops where that pays, else record by record."""
    count = sum(batch.record_count for batch in batches)
    if compiled_columns(count, expected=wanted.end - position) is None:
        for batch in batches:
            rows = plain_columns(wanted.partition, batch, columns, position, wanted.end)
            if rows is not None:
                yield rows
        return
    from fencepost.spark.source.compiled_columns import decoded_columns

    yield from decoded_columns(wanted.partition, batches, columns, position, wanted.end)


def _deadline(options: SourceOptions) -> float:
    return time.monotonic() + options.poll_timeout_ms / 1000


def _skip_lost(
    options: SourceOptions, wanted: OffsetRange, position: int, problem: OffsetOutOfRange
) -> int:
    """Reports lost records; where to continue after them: at the first that exists, or the end."""
    try:
        earliest = Positions(options).earliest([wanted.partition])[wanted.partition]
    except UnknownTopicOrPartition:
        earliest = -1
    if earliest > position:
        report_deleted(options, wanted.partition, position, earliest)
    else:
        report_loss(options, f"{wanted.partition}: {problem}")
    return earliest if position < earliest < wanted.end else wanted.end
