"""A record batch as a broker handles it: a header of 61 bytes and opaque records.

    offset  size  field                     who writes it
    0       8     baseOffset                broker (outside the CRC)
    8       4     length of what follows    producer
    12      4     partitionLeaderEpoch      broker (outside the CRC)
    16      1     magic = 2                 producer
    17      4     crc, CRC-32C of [21, end) producer
    21      2     attributes                producer; broker when it stamps the time of the append
    23      4     lastOffsetDelta           producer
    27      8     baseTimestamp             producer
    35      8     maxTimestamp              producer; broker when it stamps the time of the append,
                                            or when no record has this time
    43      8     producerId                producer
    51      2     producerEpoch             producer
    53      4     baseSequence              producer
    57      4     recordCount               producer
    61            records, maybe compressed producer

Attributes: bits 0-2 codec, 3 timestamp type (1 = append time), 4 transactional, 5 control, 6 the
base timestamp is the delete horizon of a compacted batch (KIP-534).

The broker writes fields outside the CRC, so it assigns offsets in place, in the buffer that the
socket filled, and writes the batch to the disk without a copy.

Compaction keeps the first and the last offset of a batch, so `record_count` may be smaller than the
range of offsets, down to zero. A client's batch must have one record per offset (`produced.py`).
"""

from __future__ import annotations

import struct
from typing import Final

from crc32c import crc32c

from fencepost.base.errors import ErrorCode
from fencepost.base.failures import FencepostError
from fencepost.base.ids import MAX_SEQUENCE, NO_PRODUCER_ID, NO_SEQUENCE
from fencepost.base.refusal import Refusal
from fencepost.base.seams import Buffer

HEADER_BYTES: Final = 61
LOG_OVERHEAD_BYTES: Final = 12
"""baseOffset and length, which `length` does not count."""
MAGIC: Final = 2
CRC_START: Final = 21
MIN_RECORD_BYTES: Final = 7
"""The shortest record: length, attributes, two deltas, null key, null value, no headers."""

CODEC_MASK: Final = 0x07
APPEND_TIME_FLAG: Final = 0x08
TRANSACTIONAL_FLAG: Final = 0x10
CONTROL_FLAG: Final = 0x20
DELETE_HORIZON_FLAG: Final = 0x40

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
assert HEADER.size == HEADER_BYTES
PLACE_FIELDS: Final = struct.Struct(">qiibI")
SEALED_FIELDS: Final = struct.Struct(">hiqqqhii")
"""The header in two parts: before `CRC_START`, and the part that the CRC covers."""
assert PLACE_FIELDS.size == CRC_START

_unpack_header = HEADER.unpack_from
_pack_base_offset = struct.Struct(">q").pack_into
_pack_leader_epoch = struct.Struct(">i").pack_into
_pack_timestamp = struct.Struct(">q").pack_into
_pack_crc = struct.Struct(">I").pack_into
_pack_attributes = struct.Struct(">h").pack_into
_MIN_LENGTH = HEADER_BYTES - LOG_OVERHEAD_BYTES


class BatchError(FencepostError):
    """Bytes that cannot be read as the batch that they should be."""

    def __init__(self, error_code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error_code = error_code

    @property
    def refusal(self) -> Refusal:
        """The reply to a producer that sent these bytes."""
        return Refusal(self.error_code, str(self))


class SealedBatch:
    """The header of a batch, and its bytes.

    `data` is a view of exactly this batch, or of less if only the header was read from the disk.
    """

    __slots__ = (
        "attributes",
        "base_offset",
        "base_sequence",
        "base_timestamp",
        "crc",
        "data",
        "last_offset_delta",
        "leader_epoch",
        "magic",
        "max_timestamp",
        "producer_epoch",
        "producer_id",
        "record_count",
        "size_bytes",
    )

    def __init__(
        self,
        data: Buffer,
        base_offset: int,
        length: int,
        leader_epoch: int,
        magic: int,
        crc: int,
        attributes: int,
        last_offset_delta: int,
        base_timestamp: int,
        max_timestamp: int,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        record_count: int,
    ) -> None:
        self.data = data
        self.base_offset = base_offset
        self.size_bytes = length + LOG_OVERHEAD_BYTES
        self.leader_epoch = leader_epoch
        self.magic = magic
        self.crc = crc
        self.attributes = attributes
        self.last_offset_delta = last_offset_delta
        self.base_timestamp = base_timestamp
        self.max_timestamp = max_timestamp
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.base_sequence = base_sequence
        self.record_count = record_count

    def __repr__(self) -> str:
        kind = "control " if self.is_control else "transactional " if self.is_transactional else ""
        return (
            f"<{kind}batch {self.base_offset}..{self.last_offset}, {self.record_count} records, "
            f"{self.size_bytes} bytes, producer {self.producer_id}/{self.producer_epoch}"
            f" from sequence {self.base_sequence}>"
        )

    @property
    def last_offset(self) -> int:
        """The last offset of the batch's range."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """The offset after the batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record; 2^31-1 is followed by 0 (KAFKA-7692)."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & MAX_SEQUENCE

    @property
    def codec(self) -> int:
        """The number of the compression codec."""
        return self.attributes & CODEC_MASK

    @property
    def is_append_time(self) -> bool:
        """Whether the broker has set the timestamp."""
        return self.attributes & APPEND_TIME_FLAG != 0

    @property
    def is_transactional(self) -> bool:
        """Whether the batch belongs to a transaction."""
        return self.attributes & TRANSACTIONAL_FLAG != 0

    @property
    def is_control(self) -> bool:
        """Whether the batch holds control records."""
        return self.attributes & CONTROL_FLAG != 0

    @property
    def has_producer_id(self) -> bool:
        """Whether an idempotent or transactional producer has sent the batch."""
        return self.producer_id != NO_PRODUCER_ID

    @property
    def delete_horizon_ms(self) -> int | None:
        """When compaction may remove tombstones and markers of this batch; None if not set."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON_FLAG else None

    @property
    def is_sound(self) -> bool:
        """Whether the batch is complete and its CRC matches."""
        data = self.data
        return len(data) == self.size_bytes and crc32c(memoryview(data)[CRC_START:]) == self.crc

    def assign(self, base_offset: int, leader_epoch: int) -> None:
        """Writes offset and leader epoch into the (writable) buffer, outside of the CRC."""
        data = self.data
        _pack_base_offset(data, 0, base_offset)
        _pack_leader_epoch(data, 12, leader_epoch)
        self.base_offset = base_offset
        self.leader_epoch = leader_epoch

    def stamp_append_time(self, now_ms: int) -> None:
        """Sets `now_ms` as the time of every record (LogAppendTime) and updates the CRC.

        The times of the records stay: readers use the header's time if the flag is set.
        """
        self.attributes |= APPEND_TIME_FLAG
        _pack_attributes(self.data, 21, self.attributes)
        self._set_max_timestamp(now_ms)

    def correct_max_timestamp(self, newest_ms: int) -> None:
        """Sets the largest time of the records, if the producer has sent another one."""
        if newest_ms != self.max_timestamp:
            self._set_max_timestamp(newest_ms)

    def _set_max_timestamp(self, timestamp_ms: int) -> None:
        data = self.data
        self.max_timestamp = timestamp_ms
        _pack_timestamp(data, 35, timestamp_ms)
        self.crc = crc32c(memoryview(data)[CRC_START:])
        _pack_crc(data, 17, self.crc)


def read_header(data: Buffer, position: int = 0) -> SealedBatch:
    """Reads the header of the batch at `position`, and nothing after it.

    If `data` ends before the batch, the view is short: `seal_check` refuses such a batch.
    """
    try:
        (
            base_offset,
            length,
            leader_epoch,
            magic,
            crc,
            attributes,
            last_offset_delta,
            base_timestamp,
            max_timestamp,
            producer_id,
            producer_epoch,
            base_sequence,
            record_count,
        ) = _unpack_header(data, position)
    except struct.error:
        raise BatchError(ErrorCode.CORRUPT_MESSAGE, "a batch ends inside its header") from None
    if magic != MAGIC:
        raise _wrong_magic(magic)
    if length < _MIN_LENGTH:
        raise BatchError(ErrorCode.CORRUPT_MESSAGE, f"a batch claims a length of {length} bytes")
    end = position + length + LOG_OVERHEAD_BYTES
    if position or end != len(data):
        data = memoryview(data)[position:end]
    # One by one: a call with *fields is slower in compiled code.
    return SealedBatch(
        data,
        base_offset,
        length,
        leader_epoch,
        magic,
        crc,
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    )


def _wrong_magic(magic: int) -> BatchError:
    if magic in (0, 1):
        return BatchError(
            ErrorCode.INVALID_RECORD,
            f"a batch of message format {magic}, which is no longer written",
        )
    return BatchError(ErrorCode.CORRUPT_MESSAGE, f"a batch of the unknown message format {magic}")


def seal_check(batch: SealedBatch) -> None:
    """Checks size, CRC and counts of a batch; opens no record."""
    data = batch.data
    if len(data) != batch.size_bytes:
        raise BatchError(
            ErrorCode.CORRUPT_MESSAGE,
            f"a batch of {batch.size_bytes} bytes ends after {len(data)}",
        )
    if crc32c(memoryview(data)[CRC_START:]) != batch.crc:
        raise BatchError(
            ErrorCode.CORRUPT_MESSAGE, f"the CRC of the batch at {batch.base_offset} is wrong"
        )
    if not 0 <= batch.record_count <= batch.last_offset_delta + 1 or batch.last_offset_delta < 0:
        raise BatchError(
            ErrorCode.INVALID_RECORD,
            f"{batch.record_count} records cannot span {batch.last_offset_delta + 1} offsets",
        )
    if (
        not batch.attributes & CODEC_MASK
        and batch.record_count * MIN_RECORD_BYTES > batch.size_bytes - HEADER_BYTES
    ):
        raise BatchError(
            ErrorCode.INVALID_RECORD,
            f"{batch.record_count} records do not fit into {batch.size_bytes} bytes",
        )


def split_batches(data: Buffer) -> list[SealedBatch]:
    """Splits a records field into its batches; the last one must be complete."""
    batches: list[SealedBatch] = []
    position = 0
    while position < len(data):
        batch = read_header(data, position)
        if len(batch.data) != batch.size_bytes:
            raise BatchError(ErrorCode.CORRUPT_MESSAGE, "the last batch ends before its length")
        batches.append(batch)
        position += batch.size_bytes
    return batches
