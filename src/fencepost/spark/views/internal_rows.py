"""The internal topics, decoded: `transaction_state` and `offsets`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fencepost.base.failures import WireError
from fencepost.records.batch import SealedBatch
from fencepost.records.group_log import OffsetRecord
from fencepost.records.group_log import decode_record as decode_group_record
from fencepost.records.opened import Record, iterate_records
from fencepost.records.transaction_log import STATE_NAMES, TransactionMetadata, decode_key
from fencepost.records.transaction_log import decode_value as decode_state
from fencepost.spark.views.schemas import known, microseconds

TOMBSTONE = "Tombstone"
UNREADABLE = "Unreadable"


def state_rows(partition: int, batch: SealedBatch) -> Iterator[dict[str, Any]]:
    """The state changes in one batch of `__transaction_state`."""
    if batch.is_control:
        return
    for record in iterate_records(batch):
        transactional_id = None if record.key is None else decode_key(record.key)
        if transactional_id is None:
            continue
        yield {
            "transactionalId": transactional_id,
            "logPartition": partition,
            "logOffset": record.offset,
            "timestamp": microseconds(record.timestamp_ms),
            **_state_fields(record),
        }


def _state_fields(record: Record) -> dict[str, Any]:
    if record.value is None:
        return {"state": TOMBSTONE}
    try:
        found = decode_state(record.value)
    except WireError:
        found = None
    return {"state": UNREADABLE} if found is None else _metadata_fields(found)


def _metadata_fields(found: TransactionMetadata) -> dict[str, Any]:
    return {
        "state": STATE_NAMES[found.state],
        "producerId": found.producer_id,
        "producerEpoch": found.producer_epoch,
        "previousProducerId": known(found.previous_producer_id),
        "nextProducerId": known(found.next_producer_id),
        "lastProducerEpoch": known(found.last_producer_epoch),
        "timeoutMs": found.timeout_ms,
        "startTimestamp": microseconds(found.start_ms),
        "lastUpdateTimestamp": microseconds(found.last_update_ms),
        "partitions": [
            f"{topic}-{index}" for topic, indexes in found.partitions.items() for index in indexes
        ],
        "transactionVersion": found.client_transaction_version,
        "administrator": found.administrator or None,
    }


def offset_rows(partition: int, batch: SealedBatch, fate: str) -> Iterator[dict[str, Any]]:
    """The committed offsets in one batch of `__consumer_offsets`; groups are left out."""
    if batch.is_control:
        return
    for record in iterate_records(batch):
        if record.key is None:
            continue
        try:
            found = decode_group_record(record.key, record.value)
        except WireError:
            continue
        if isinstance(found, OffsetRecord):
            yield _offset_row(partition, batch, record, found, fate)


def _offset_row(
    partition: int, batch: SealedBatch, record: Record, found: OffsetRecord, fate: str
) -> dict[str, Any]:
    row = {
        "group": found.key.group_id,
        "topic": found.key.partition.topic,
        "partition": found.key.partition.partition,
        "producerId": known(batch.producer_id),
        "producerEpoch": known(batch.producer_epoch),
        "fate": fate,
        "logPartition": partition,
        "logOffset": record.offset,
    }
    if found.value is not None:
        row |= {
            "offset": found.value.offset,
            "leaderEpoch": known(found.value.leader_epoch),
            "metadata": found.value.metadata,
            "commitTimestamp": microseconds(found.value.commit_timestamp_ms),
        }
    return row
