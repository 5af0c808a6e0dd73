"""Transaction markers: control batches of one record that commit or abort a transaction.

Key:   int16 version 0, int16 type (0 ABORT, 1 COMMIT; 2 to 6 belong to KRaft)
Value: int16 version 0, int32 coordinatorEpoch (leader epoch of the partition of
       __transaction_state)

A reader treats a higher version as 0, as Kafka does, and refuses a negative one. A type that is
neither commit nor abort is not a marker: readers skip it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from fencepost.base.errors import ErrorCode
from fencepost.records.batch import HEADER_BYTES, BatchError, SealedBatch
from fencepost.records.builder import build_pairs
from fencepost.records.opened import Record, open_batch

_KEY: Final = struct.Struct(">hh")
_VALUE: Final = struct.Struct(">hi")
ABORT_TYPE: Final = 0
COMMIT_TYPE: Final = 1
_PLAIN: Final = struct.Struct(">5shhbhib")
"""The record of a marker as every broker writes it: no deltas, version 0, no headers."""
_PLAIN_BATCH_BYTES: Final = HEADER_BYTES + _PLAIN.size
_PLAIN_START: Final = b"\x20\x00\x00\x00\x08"
_PLAIN_VALUE_LENGTH: Final = 12  # zigzag of 6
_MARKER_KEYS: Final = {False: _KEY.pack(0, ABORT_TYPE), True: _KEY.pack(0, COMMIT_TYPE)}


@dataclass(slots=True, init=False)
class Marker:
    """The result of a transaction, and the epoch of the coordinator that wrote it."""

    commit: bool
    coordinator_epoch: int

    def __init__(self, commit: bool, coordinator_epoch: int) -> None:
        self.commit = commit
        self.coordinator_epoch = coordinator_epoch


def build_marker(
    marker: Marker,
    *,
    producer_id: int,
    producer_epoch: int,
    timestamp_ms: int,
    base_offset: int = 0,
    leader_epoch: int = 0,
) -> SealedBatch:
    """Builds the control batch of a marker, 78 bytes."""
    return build_pairs(
        [(_MARKER_KEYS[marker.commit], _VALUE.pack(0, marker.coordinator_epoch))],
        timestamp_ms=timestamp_ms,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )


def read_marker(batch: SealedBatch) -> Marker | None:
    """The marker of a control batch; None for data, emptied batches and other control types."""
    if not batch.is_control or batch.record_count == 0:
        return None
    if len(batch.data) == _PLAIN_BATCH_BYTES and batch.codec == 0:
        start, version, kind, length, value_version, epoch, headers = _PLAIN.unpack_from(
            batch.data, HEADER_BYTES
        )
        if (start, length, headers) == (_PLAIN_START, _PLAIN_VALUE_LENGTH, 0) and (
            version == value_version == 0 and kind in (ABORT_TYPE, COMMIT_TYPE)
        ):
            return Marker(kind == COMMIT_TYPE, epoch)
    return marker_of(open_batch(batch)[0])


def marker_of(record: Record) -> Marker | None:
    """The marker in a record of a control batch; None for another control type."""
    if record.key is None or len(record.key) < _KEY.size:
        raise BatchError(ErrorCode.INVALID_RECORD, "a control record without a type")
    version, kind = _KEY.unpack_from(record.key)
    if version < 0:
        raise BatchError(ErrorCode.INVALID_RECORD, f"a control record of version {version}")
    if kind not in (ABORT_TYPE, COMMIT_TYPE):
        return None
    if record.value is None or len(record.value) < _VALUE.size:
        raise BatchError(ErrorCode.INVALID_RECORD, "a marker without a coordinator epoch")
    version, coordinator_epoch = _VALUE.unpack_from(record.value)
    if version < 0:
        raise BatchError(ErrorCode.INVALID_RECORD, f"a marker of version {version}")
    return Marker(kind == COMMIT_TYPE, coordinator_epoch)
