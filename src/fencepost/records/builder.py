"""Builds batches, for the broker and the tools.

`build_batch` gives the n-th record the offset `base_offset + n`. Compaction uses `rebuild_batch`,
which keeps the offsets and the range of the original batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from crc32c import crc32c

from fencepost.base.ids import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, NO_TIMESTAMP
from fencepost.base.seams import Buffer
from fencepost.records.batch import (
    CODEC_MASK,
    CONTROL_FLAG,
    CRC_START,
    DELETE_HORIZON_FLAG,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    PLACE_FIELDS,
    SEALED_FIELDS,
    TRANSACTIONAL_FLAG,
    SealedBatch,
)
from fencepost.records.compression import Codec, compress
from fencepost.records.opened import Headers, Record
from fencepost.records.varint import write_varint

_NULL: Final = write_varint(-1)
_NO_HEADERS: Final = write_varint(0)
_ATTRIBUTES: Final = b"\x00"


def build_batch(
    records: Sequence[Record],
    *,
    timestamp_ms: int,
    base_offset: int = 0,
    leader_epoch: int = 0,
    codec: int = Codec.NONE,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    control: bool = False,
) -> bytearray:
    """Builds a batch in a writable buffer; records without a time get `timestamp_ms`."""
    assert records, "a batch that is built has at least one record"
    times = [timestamp_ms if r.timestamp_ms == NO_TIMESTAMP else r.timestamp_ms for r in records]
    payload = b"".join(
        _encode_record(index, time - times[0], record.key, record.value, record.headers)
        for index, (record, time) in enumerate(zip(records, times, strict=True))
    )
    batch = _seal(
        base_offset,
        leader_epoch,
        codec | transactional * TRANSACTIONAL_FLAG | control * CONTROL_FLAG,
        len(records) - 1,
        times[0],
        max(times),
        producer_id,
        producer_epoch,
        base_sequence,
        len(records),
        payload,
    )
    return bytearray(batch.data)


def build_pairs(
    pairs: Sequence[tuple[bytes | None, bytes | None]],
    *,
    timestamp_ms: int,
    base_offset: int = 0,
    leader_epoch: int = 0,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    control: bool = False,
) -> SealedBatch:
    """Builds a batch of keys and values with one time, as coordinators append it."""
    assert pairs, "a batch that is built has at least one record"
    if len(pairs) == 1:
        key, value = pairs[0]
        payload = _encode_pair(0, key, value)
    else:
        payload = b"".join([_encode_pair(n, key, value) for n, (key, value) in enumerate(pairs)])
    return _seal(
        base_offset,
        leader_epoch,
        transactional * TRANSACTIONAL_FLAG | control * CONTROL_FLAG,
        len(pairs) - 1,
        timestamp_ms,
        timestamp_ms,
        producer_id,
        producer_epoch,
        base_sequence,
        len(pairs),
        payload,
    )


def rebuild_batch(
    batch: SealedBatch, records: Sequence[Record], *, delete_horizon_ms: int | None
) -> bytearray:
    """Rebuilds a batch with some of its records, or none; offsets, producer and codec stay.

    A delete horizon replaces the base timestamp, and the deltas count from it (KIP-534). A batch
    without records keeps its largest time in the header and is not compressed, as in Kafka.
    """
    attributes = batch.attributes & ~DELETE_HORIZON_FLAG
    base_timestamp = records[0].timestamp_ms if records else NO_TIMESTAMP
    if delete_horizon_ms is not None:
        assert records, "an empty batch has nothing to delete later"
        attributes |= DELETE_HORIZON_FLAG
        base_timestamp = delete_horizon_ms
    payload = b"".join(
        _encode_record(
            r.offset - batch.base_offset, r.timestamp_ms - base_timestamp, r.key, r.value, r.headers
        )
        for r in records
    )
    if not records:
        attributes &= ~CODEC_MASK
    max_timestamp = batch.max_timestamp
    if records and not batch.is_append_time:
        max_timestamp = max(record.timestamp_ms for record in records)
    rebuilt = _seal(
        batch.base_offset,
        batch.leader_epoch,
        attributes,
        batch.last_offset_delta,
        base_timestamp,
        max_timestamp,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        len(records),
        payload,
    )
    return bytearray(rebuilt.data)


def empty_batch(base_offset: int, end_offset: int, leader_epoch: int) -> bytes:
    """Builds a batch without records for a range of lost offsets."""
    filler = _seal(
        base_offset,
        leader_epoch,
        0,
        end_offset - base_offset - 1,
        NO_TIMESTAMP,
        NO_TIMESTAMP,
        NO_PRODUCER_ID,
        NO_PRODUCER_EPOCH,
        NO_SEQUENCE,
        0,
        b"",
    )
    return bytes(filler.data)


def reseal(batch: SealedBatch, codec: int, payload: Buffer) -> SealedBatch:
    """Changes the codec of a batch; `payload` is its decompressed part."""
    sealed = _seal(
        batch.base_offset,
        batch.leader_epoch,
        batch.attributes & ~CODEC_MASK | codec,
        batch.last_offset_delta,
        batch.base_timestamp,
        batch.max_timestamp,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        batch.record_count,
        bytes(payload),
    )
    sealed.data = bytearray(sealed.data)
    return sealed


def _seal(
    base_offset: int,
    leader_epoch: int,
    attributes: int,
    last_offset_delta: int,
    base_timestamp: int,
    max_timestamp: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    record_count: int,
    payload: bytes,
) -> SealedBatch:
    if attributes & CODEC_MASK:
        payload = compress(attributes & CODEC_MASK, payload)
    sealed = (
        SEALED_FIELDS.pack(
            attributes,
            last_offset_delta,
            base_timestamp,
            max_timestamp,
            producer_id,
            producer_epoch,
            base_sequence,
            record_count,
        )
        + payload
    )
    length = len(sealed) + CRC_START - LOG_OVERHEAD_BYTES
    crc = crc32c(sealed)
    # One by one, as in `read_header`.
    return SealedBatch(
        PLACE_FIELDS.pack(base_offset, length, leader_epoch, MAGIC, crc) + sealed,
        base_offset,
        length,
        leader_epoch,
        MAGIC,
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


def _encode_pair(offset_delta: int, key: bytes | None, value: bytes | None) -> bytes:
    body = b"".join(
        (
            b"\x00\x00",  # Attributes, and timestamp delta 0.
            write_varint(offset_delta),
            _NULL if key is None else write_varint(len(key)),
            key or b"",
            _NULL if value is None else write_varint(len(value)),
            value or b"",
            _NO_HEADERS,
        )
    )
    return write_varint(len(body)) + body


def _encode_record(
    offset_delta: int,
    timestamp_delta: int,
    key: bytes | None,
    value: bytes | None,
    headers: Headers,
) -> bytes:
    body = b"".join(
        (
            _ATTRIBUTES,
            write_varint(timestamp_delta),
            write_varint(offset_delta),
            _NULL if key is None else write_varint(len(key)),
            key or b"",
            _NULL if value is None else write_varint(len(value)),
            value or b"",
            _encode_headers(headers) if headers else _NO_HEADERS,
        )
    )
    return write_varint(len(body)) + body


def _encode_headers(headers: Headers) -> bytes:
    parts = [write_varint(len(headers))]
    for name, value in headers:
        encoded = name.encode("utf-8")
        parts += (write_varint(len(encoded)), encoded)
        parts += (_NULL,) if value is None else (write_varint(len(value)), value)
    return b"".join(parts)
