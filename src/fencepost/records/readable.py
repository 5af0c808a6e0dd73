"""Records of the internal topics in a form for people: names instead of bytes.

The result has plain values only, ready for JSON. Later versions of Kafka write record types and
versions that we do not know: such a record says so instead of failing, and so does a damaged one.
"""

from __future__ import annotations

from typing import Any, Final

from fencepost.base.failures import WireError
from fencepost.base.ids import (
    CLUSTER_METADATA_TOPIC,
    CONSUMER_OFFSETS_TOPIC,
    TRANSACTION_STATE_TOPIC,
    ZERO_TOPIC_ID,
    topic_id_text,
)
from fencepost.records import group_log, metadata_log, transaction_log
from fencepost.wire.schema import SECRET_FIELDS

DECODED_TOPICS: Final = frozenset(
    {CLUSTER_METADATA_TOPIC, CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC}
)


def readable_record(topic: str, key: bytes | None, value: bytes | None) -> dict[str, Any]:
    """The content of a record of one of `DECODED_TOPICS`."""
    try:
        if topic == CLUSTER_METADATA_TOPIC:
            return _metadata(value)
        if key is None:
            return _unknown("a record without a key")
        if topic == TRANSACTION_STATE_TOPIC:
            return _transaction(key, value)
        return _group_record(key, value)
    except (WireError, ValueError, UnicodeDecodeError) as problem:
        return _unknown(str(problem))


def _unknown(problem: str) -> dict[str, Any]:
    return {"type": "unreadable", "problem": problem}


def _version(data: bytes) -> int:
    return int.from_bytes(data[:2], "big", signed=True)


def _transaction(key: bytes, value: bytes | None) -> dict[str, Any]:
    transactional_id = transaction_log.decode_key(key)
    if transactional_id is None:
        return _unknown(f"record type {_version(key)} of a later Kafka")
    row: dict[str, Any] = {"type": "transaction", "transactional_id": transactional_id}
    if value is None:
        return row | {"state": "Dead", "is_tombstone": True}
    found = transaction_log.decode_value(value)
    if found is None:
        problem = f"version {_version(value)} of the value, from a later Kafka"
        return row | {"type": "unreadable", "problem": problem}
    return row | {
        "state": transaction_log.STATE_NAMES[found.state],
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "previous_producer_id": found.previous_producer_id,
        "next_producer_id": found.next_producer_id,
        "timeout_ms": found.timeout_ms,
        "partitions": [
            f"{topic}-{index}" for topic, indexes in found.partitions.items() for index in indexes
        ],
        "started_at_ms": found.start_ms,
        "updated_at_ms": found.last_update_ms,
        "transaction_version": found.client_transaction_version,
        "administrator": found.administrator or None,
    }


def _group_record(key: bytes, value: bytes | None) -> dict[str, Any]:
    found = group_log.decode_record(key, value)
    if found is None:
        kind = _version(key)
        if kind > 2:
            return _unknown(f"record type {kind}, of a group of a newer protocol")
        return _unknown(f"version {_version(value or b'')} of the value, from a later Kafka")
    if isinstance(found, group_log.OffsetRecord):
        return _offset(found)
    return _group(found)


def _offset(record: group_log.OffsetRecord) -> dict[str, Any]:
    row: dict[str, Any] = {
        "type": "offset",
        "group": record.key.group_id,
        "partition": str(record.key.partition),
    }
    if record.value is None:
        return row | {"is_tombstone": True}
    value = record.value
    row |= {
        "committed_offset": value.offset,
        "leader_epoch": value.leader_epoch,
        "metadata": value.metadata,
        "committed_at_ms": value.commit_timestamp_ms,
    }
    if value.expire_timestamp_ms >= 0:
        row["expires_at_ms"] = value.expire_timestamp_ms
    if value.topic_id != ZERO_TOPIC_ID:
        row["topic_id"] = topic_id_text(value.topic_id)
    return row


def _group(record: group_log.GroupRecord) -> dict[str, Any]:
    row: dict[str, Any] = {"type": "group", "group": record.key.group_id}
    if record.value is None:
        return row | {"is_tombstone": True}
    value = record.value
    return row | {
        "protocol_type": value.protocol_type,
        "generation": value.generation_id,
        "protocol": value.protocol_name,
        "leader": value.leader,
        "updated_at_ms": value.state_timestamp_ms,
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.group_instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "session_timeout_ms": member.session_timeout_ms,
                "rebalance_timeout_ms": member.rebalance_timeout_ms,
            }
            for member in value.members
        ],
    }


def _metadata(value: bytes | None) -> dict[str, Any]:
    if value is None:
        return _unknown("a record without a value")
    record = metadata_log.decode_record(value)
    row: dict[str, Any] = {"type": type(record).__name__}
    row |= _plain(record)
    return row


def _plain(value: Any) -> Any:
    """A message as plain values; ids of topics and directories as text."""
    if hasattr(value, "form_fields"):
        return {
            name: "hidden" if name in SECRET_FIELDS else _plain(getattr(value, name))
            for name in value.__slots__
        }
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, (bytes, bytearray, memoryview)):
        raw = bytes(value)
        return topic_id_text(raw) if len(raw) == 16 else raw.hex()
    return value
