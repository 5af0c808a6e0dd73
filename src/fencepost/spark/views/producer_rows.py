"""`producers`: what each partition knows of its producers.

A broker tells it (DescribeProducers). In a folder it is the newest producer snapshot and the
batches behind it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from fencepost.base.ids import NO_SEQUENCE, TopicPartition
from fencepost.client.admin import ActiveProducer
from fencepost.records.batch import SealedBatch
from fencepost.records.control import read_marker
from fencepost.spark.connection import cluster_of
from fencepost.spark.source.options import SourceOptions
from fencepost.spark.views.partition_logs import FolderLog
from fencepost.spark.views.schemas import known, microseconds

_NO_TRANSACTION = -1


def described_rows(
    options: SourceOptions, places: Collection[TopicPartition]
) -> Iterator[dict[str, Any]]:
    """The producers of these partitions, as their leaders describe them."""
    found = cluster_of(options.client).describe_producers(places)
    for place in sorted(found):
        for producer in found[place]:
            yield _row(place, producer)


def folder_rows(log: FolderLog) -> Iterator[dict[str, Any]]:
    """The producers of a partition in a folder."""
    producers, start = _newest_snapshot(log)
    for batch in log.batches(start):
        if batch.has_producer_id and batch.base_offset >= start:
            producers[batch.producer_id] = _after(producers.get(batch.producer_id), batch)
    for producer_id in sorted(producers):
        yield _row(log.place, producers[producer_id])


def _newest_snapshot(log: FolderLog) -> tuple[dict[int, ActiveProducer], int]:
    for base in reversed(log.folder.base_offsets):
        entries = log.snapshot(base)
        if entries is not None:
            producers = {
                entry.producer_id: ActiveProducer(
                    producer_id=entry.producer_id,
                    producer_epoch=entry.producer_epoch,
                    last_sequence=entry.last_sequence,
                    last_timestamp_ms=entry.timestamp_ms,
                    coordinator_epoch=entry.coordinator_epoch,
                    current_txn_start_offset=entry.current_txn_first_offset,
                )
                for entry in entries
            }
            return producers, base
    return {}, log.folder.base_offsets[0]


def _after(before: ActiveProducer | None, batch: SealedBatch) -> ActiveProducer:
    """The state of a producer after one more batch."""
    marker = read_marker(batch)
    is_new_epoch = before is None or before.producer_epoch != batch.producer_epoch
    start = _NO_TRANSACTION if before is None else before.current_txn_start_offset
    if marker is not None:
        start = _NO_TRANSACTION
    elif batch.is_transactional and start == _NO_TRANSACTION:
        start = batch.base_offset
    sequence = batch.last_sequence
    if marker is not None:
        sequence = NO_SEQUENCE if before is None or is_new_epoch else before.last_sequence
    epoch = -1 if before is None else before.coordinator_epoch
    return ActiveProducer(
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        last_sequence=sequence,
        last_timestamp_ms=batch.max_timestamp,
        coordinator_epoch=epoch if marker is None else marker.coordinator_epoch,
        current_txn_start_offset=start,
    )


def _row(place: TopicPartition, producer: ActiveProducer) -> dict[str, Any]:
    return {
        "topic": place.topic,
        "partition": place.partition,
        "producerId": producer.producer_id,
        "producerEpoch": producer.producer_epoch,
        "lastSequence": known(producer.last_sequence),
        "lastTimestamp": microseconds(producer.last_timestamp_ms),
        "coordinatorEpoch": known(producer.coordinator_epoch),
        "transactionStart": known(producer.current_txn_start_offset),
    }
