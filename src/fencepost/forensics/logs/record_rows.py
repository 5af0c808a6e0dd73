"""Records, batches and markers as rows for output. Pure.

Keys and values are bytes. A row has them as text where they are UTF-8, and otherwise as base64
under `key_base64` and `value_base64`. Values stay hidden unless they are asked for.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

from fencepost.base.ids import MAX_SEQUENCE, NO_PRODUCER_ID
from fencepost.records.batch import SealedBatch
from fencepost.records.compression import Codec
from fencepost.records.fates import BatchFate, Fate
from fencepost.records.opened import Record, iterate_records
from fencepost.records.readable import DECODED_TOPICS, readable_record


def record_rows(
    judged: BatchFate, topic: str, *, start: int = 0, with_values: bool = False
) -> Iterator[dict[str, Any]]:
    """A row per record of a batch from offset `start` on; one for a marker."""
    batch = judged.batch
    if batch.is_control:
        if batch.base_offset >= start:
            yield _common(judged, batch.base_offset, batch.max_timestamp) | marker_fields(judged)
        return
    for record in iterate_records(batch, name_errors="replace"):
        if record.offset >= start:
            yield _record(judged, topic, record, with_values)


def marker_fields(judged: BatchFate) -> dict[str, Any]:
    """What a control batch says."""
    if judged.end is None:
        return {"what": "control record"}
    outcome = "COMMIT" if judged.end.commit else "ABORT"
    return {
        "what": f"{outcome} marker, coordinator epoch {judged.end.coordinator_epoch}",
        "marker": outcome.lower(),
        "coordinator_epoch": judged.end.coordinator_epoch,
    }


def _record(judged: BatchFate, topic: str, record: Record, with_values: bool) -> dict[str, Any]:
    batch = judged.batch
    row = _common(judged, record.offset, record.timestamp_ms)
    if batch.base_sequence >= 0:
        delta = record.offset - batch.base_offset
        row["sequence"] = (batch.base_sequence + delta) & MAX_SEQUENCE
    row |= text_or_base64("key", record.key)
    row["key_bytes"] = None if record.key is None else len(record.key)
    row["value_bytes"] = None if record.value is None else len(record.value)
    row["headers"] = len(record.headers)
    if topic in DECODED_TOPICS:
        decoded = readable_record(topic, record.key, record.value)
        row |= {"what": in_one_line(decoded), "decoded": decoded}
    else:
        row["what"] = "" if record.key is None else printable(record.key)
        if with_values:
            row |= text_or_base64("value", record.value)
            row["what"] = f"{row['what']} = {_value_text(record.value)}"
    return row


def _value_text(value: bytes | None) -> str:
    return "null" if value is None else printable(value)


def _common(judged: BatchFate, offset: int, at_ms: int) -> dict[str, Any]:
    batch, transaction = judged.batch, judged.transaction
    has_producer = batch.producer_id != NO_PRODUCER_ID
    return {
        "offset": offset,
        "at_ms": at_ms if at_ms >= 0 else None,
        "fate": judged.fate.value,
        "transaction": transaction.first_offset if transaction is not None else None,
        "is_transaction_start_exact": transaction.has_start if transaction is not None else None,
        "producer_id": batch.producer_id if has_producer else None,
        "producer_epoch": batch.producer_epoch if has_producer else None,
        "sequence": None,
        "decided_by": judged.end.offset
        if judged.end is not None and judged.fate is not Fate.CONTROL and judged.end.offset >= 0
        else None,
    }


def batch_row(batch: SealedBatch, position: int | None = None) -> dict[str, Any]:
    """All fields of a batch's header."""
    return {
        "position": position,
        "base_offset": batch.base_offset,
        "last_offset": batch.last_offset,
        "record_count": batch.record_count,
        "size_bytes": batch.size_bytes,
        "max_at_ms": batch.max_timestamp if batch.max_timestamp >= 0 else None,
        "timestamp_type": "append" if batch.is_append_time else "create",
        "codec": codec_name(batch.codec),
        "producer_id": batch.producer_id,
        "producer_epoch": batch.producer_epoch,
        "base_sequence": batch.base_sequence,
        "last_sequence": batch.last_sequence,
        "is_transactional": batch.is_transactional,
        "is_control": batch.is_control,
        "leader_epoch": batch.leader_epoch,
        "delete_horizon_at_ms": batch.delete_horizon_ms,
        "magic": batch.magic,
        "crc": batch.crc,
    }


def codec_name(number: int) -> str:
    """A compression codec by Kafka's name."""
    try:
        return Codec(number).name.lower()
    except ValueError:
        return f"unknown codec {number}"


def text_or_base64(name: str, data: bytes | None) -> dict[str, str | None]:
    """A field of bytes: as text, or as base64 under a name that says so."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode("utf-8")}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode("ascii")}


def printable(data: bytes) -> str:
    """Bytes for a terminal: what would drive it or break a line is escaped."""
    text = data.decode("utf-8", "backslashreplace")
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode("ascii")
        for each in text
    )


def in_one_line(decoded: dict[str, Any]) -> str:
    """A decoded record of an internal topic for a line of a table."""
    kind = decoded["type"]
    if kind == "unreadable":
        return f"unreadable: {decoded['problem']}"
    if kind == "transaction":
        return _transaction_line(decoded)
    if kind == "offset":
        where = f"offset of {decoded['group']} in {decoded['partition']}"
        if decoded.get("is_tombstone"):
            return f"{where}: removed"
        return f"{where}: {decoded['committed_offset']}"
    if kind == "group":
        if decoded.get("is_tombstone"):
            return f"group {decoded['group']}: removed"
        members = len(decoded["members"])
        return f"group {decoded['group']}: generation {decoded['generation']}, {members} members"
    details = ", ".join(f"{name}={value}" for name, value in decoded.items() if name != "type")
    return f"{kind} {details}"


def _transaction_line(decoded: dict[str, Any]) -> str:
    name = decoded["transactional_id"]
    if decoded.get("is_tombstone"):
        return f"{name}: expired"
    line = (
        f"{name}: {decoded['state']}, producer {decoded['producer_id']}, "
        f"epoch {decoded['producer_epoch']}"
    )
    if decoded["partitions"]:
        line += f", {', '.join(decoded['partitions'])}"
    return line
