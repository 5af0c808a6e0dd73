"""What a broker demands of a batch that a client sends, beyond its being whole.

The order of the checks and their codes are Kafka's: the shape of the request first, then the size,
then the CRC, then what the header claims.
"""

from __future__ import annotations

from fencepost.base.errors import ErrorCode
from fencepost.base.seams import Buffer
from fencepost.records.batch import (
    HEADER_BYTES,
    BatchError,
    SealedBatch,
    read_header,
    seal_check,
)
from fencepost.records.compression import CODECS


class ClaimError(BatchError):
    """A whole batch whose header claims what a client may not claim: what the log of the partition finds out."""


def read_produced(data: Buffer | None, *, max_bytes: int) -> SealedBatch:
    """The one batch of a client's append to one partition; BatchError carries the reply's code."""
    if not data:
        raise BatchError(ErrorCode.INVALID_RECORD, "a produce request without a batch")
    if len(data) < HEADER_BYTES:
        raise BatchError(ErrorCode.INVALID_RECORD, f"a batch that ends after {len(data)} bytes")
    batch = read_header(data)
    if batch.size_bytes != len(data):
        raise _not_one_batch(batch, len(data))
    if batch.base_offset != 0:
        raise ClaimError(
            ErrorCode.INVALID_RECORD,
            f"a client's batch begins at offset 0, not at {batch.base_offset}",
        )
    if batch.size_bytes > max_bytes:
        raise BatchError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"a batch of {batch.size_bytes} bytes; max.message.bytes allows {max_bytes}",
        )
    try:
        seal_check(batch)
    except BatchError as problem:
        if problem.error_code is ErrorCode.INVALID_RECORD:
            raise ClaimError(problem.error_code, str(problem)) from None
        raise
    _check_claims(batch)
    return batch


def _not_one_batch(batch: SealedBatch, size_bytes: int) -> BatchError:
    if batch.size_bytes > size_bytes:
        return BatchError(
            ErrorCode.INVALID_RECORD,
            f"a batch of {batch.size_bytes} bytes was sent as {size_bytes}",
        )
    return BatchError(ErrorCode.INVALID_RECORD, "more than one batch for a partition")


def _check_claims(batch: SealedBatch) -> None:
    if batch.record_count <= 0:
        raise ClaimError(ErrorCode.INVALID_RECORD, "a client's batch without records")
    if batch.record_count != batch.last_offset_delta + 1:
        raise ClaimError(
            ErrorCode.INVALID_RECORD,
            f"{batch.record_count} records for {batch.last_offset_delta + 1} offsets",
        )
    if batch.is_control:
        raise ClaimError(ErrorCode.INVALID_RECORD, "clients may not write control records")
    if batch.has_producer_id and batch.base_sequence < 0:
        raise ClaimError(
            ErrorCode.INVALID_RECORD,
            f"producer {batch.producer_id} sent the sequence {batch.base_sequence}",
        )
    if batch.codec not in CODECS:
        raise ClaimError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"the compression codec {batch.codec} is unknown",
        )


def check_timestamps(
    batch: SealedBatch, now_ms: int, *, before_max_ms: int, after_max_ms: int
) -> None:
    """INVALID_TIMESTAMP for a create time too far from the broker's clock.

    Kafka looks at every record; we look at the header, which bounds the newest record exactly and
    gives the oldest of a batch whose first record is its oldest.
    """
    oldest_ms, newest_ms = now_ms - before_max_ms, now_ms + after_max_ms
    if batch.max_timestamp > newest_ms or 0 <= batch.base_timestamp < oldest_ms:
        raise BatchError(
            ErrorCode.INVALID_TIMESTAMP,
            f"the times {batch.base_timestamp} to {batch.max_timestamp} are too far from {now_ms}",
        )
