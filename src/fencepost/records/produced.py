"""What a broker requires of a batch from a client, beyond being complete.

The order of the checks and their codes are Kafka's: the shape of the request first
(`read_produced`), then the base offset, the size, the CRC and the rest of the header
(`check_produced`).
"""

from __future__ import annotations

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import NO_TIMESTAMP
from fencepost.base.refusal import Refusal
from fencepost.base.seams import Buffer
from fencepost.records.batch import (
    HEADER_BYTES,
    BatchError,
    SealedBatch,
    read_header,
    seal_check,
)
from fencepost.records.compression import CODECS


def read_produced(data: Buffer | None) -> SealedBatch | Refusal:
    """Reads the single batch that a client sends to one partition; checks only its size."""
    if not data:
        return Refusal(ErrorCode.INVALID_RECORD, "a produce request without a batch")
    if len(data) < HEADER_BYTES:
        return Refusal(ErrorCode.INVALID_RECORD, f"a batch that ends after {len(data)} bytes")
    try:
        batch = read_header(data)
    except BatchError as problem:
        return problem.refusal
    if batch.size_bytes > len(data):
        return Refusal(
            ErrorCode.INVALID_RECORD,
            f"a batch of {batch.size_bytes} bytes was sent as {len(data)}",
        )
    if batch.size_bytes < len(data):
        return Refusal(ErrorCode.INVALID_RECORD, "more than one batch for a partition")
    return batch


def check_produced(batch: SealedBatch, *, max_bytes: int) -> Refusal | None:
    """Checks what the log of a partition requires of a client's batch."""
    if batch.base_offset != 0:
        return Refusal(
            ErrorCode.INVALID_RECORD,
            f"a client's batch begins at offset 0, not at {batch.base_offset}",
        )
    if batch.size_bytes > max_bytes:
        return Refusal(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"a batch of {batch.size_bytes} bytes; max.message.bytes allows {max_bytes}",
        )
    try:
        seal_check(batch)
    except BatchError as problem:
        return problem.refusal
    return _check_header(batch)


def _check_header(batch: SealedBatch) -> Refusal | None:
    if batch.record_count <= 0:
        return Refusal(ErrorCode.INVALID_RECORD, "a client's batch without records")
    if batch.record_count != batch.last_offset_delta + 1:
        return Refusal(
            ErrorCode.INVALID_RECORD,
            f"{batch.record_count} records for {batch.last_offset_delta + 1} offsets",
        )
    if batch.is_control:
        return Refusal(ErrorCode.INVALID_RECORD, "clients may not write control records")
    if batch.has_producer_id and batch.base_sequence < 0:
        return Refusal(
            ErrorCode.INVALID_RECORD,
            f"producer {batch.producer_id} sent the sequence {batch.base_sequence}",
        )
    if batch.codec not in CODECS:
        return Refusal(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"the compression codec {batch.codec} is unknown",
        )
    return None


def check_timestamps(
    oldest_ms: int, newest_ms: int, now_ms: int, *, before_max_ms: int, after_max_ms: int
) -> Refusal | None:
    """Refuses create times too far from the broker's clock; -1 means that there is none."""
    if newest_ms > now_ms + after_max_ms or (
        oldest_ms != NO_TIMESTAMP and oldest_ms < now_ms - before_max_ms
    ):
        return Refusal(
            ErrorCode.INVALID_TIMESTAMP,
            f"the times {oldest_ms} to {newest_ms} are too far from {now_ms}",
        )
    return None
