"""Steps from batch to batch over a segment's file, and reads only headers.

A step needs three fields of a header: base offset, length, last offset delta. It does not check the
batch. A walk that finds no batch where one should begin raises NoBatchError, and its caller
examines the segment (`reading.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from fencepost.base.failures import CorruptError
from fencepost.base.seams import Readable
from fencepost.log.segment.damage import Damage, run_at
from fencepost.records.batch import HEADER_BYTES, LOG_OVERHEAD_BYTES, MAGIC

_WALK_BYTES: Final = 8 * 1024

_STEP: Final = struct.Struct(">qi11xi")
"""Base offset, length, last offset delta."""
_STEP_BYTES: Final = _STEP.size
_MAGIC_AT: Final = 16
_MIN_LENGTH: Final = HEADER_BYTES - LOG_OVERHEAD_BYTES
_step = _STEP.unpack_from


class NoBatchError(CorruptError):
    """No batch begins at a position where one should."""

    def __init__(self, position: int) -> None:
        super().__init__(f"no batch begins at byte {position}")
        self.position = position


def walk_to(file: Readable, position: int, size: int, offset: int, end_offset: int) -> int | None:
    """The position of the first batch from `position` on that reaches `offset`.

    None if there is none before `size`. No batch begins at or after `end_offset`.
    """
    while position < size:
        chunk = file.read(position, min(_WALK_BYTES, size - position))
        if len(chunk) < _STEP_BYTES:
            raise NoBatchError(position)
        start = 0
        while start + _STEP_BYTES <= len(chunk):
            base_offset, length, delta = _step(chunk, start)
            if base_offset + delta >= offset:
                end = position + start + length + LOG_OVERHEAD_BYTES
                if chunk[start + _MAGIC_AT] != MAGIC or base_offset >= end_offset or end > size:
                    raise NoBatchError(position + start)
                return position + start
            if length < _MIN_LENGTH:
                raise NoBatchError(position + start)
            start += length + LOG_OVERHEAD_BYTES
        position += start
    return None


def walk_around(
    file: Readable, damage: Sequence[Damage], position: int, size: int, offset: int
) -> int | None:
    """The same in a segment with damage, one header at a time."""
    while position < size:
        if (run := run_at(damage, position)) is not None:
            position = run.end
            continue
        base_offset, length, delta = _step_at(file, position)
        if base_offset + delta >= offset:
            return position
        if length < _MIN_LENGTH:
            raise NoBatchError(position)
        position += length + LOG_OVERHEAD_BYTES
    return None


def walk_on(
    file: Readable, position: int, size: int, offset: int, limit: int, upper_offset: int
) -> tuple[int, int]:
    """Position and offset of the end of the whole batches before `limit` and `upper_offset`.

    `position` is that of a batch before both. `offset` is the result's offset if no batch follows.
    """
    next_offset = offset
    while position < size:
        chunk = file.read(position, min(_WALK_BYTES, size - position))
        start = 0
        while start + _STEP_BYTES <= len(chunk):
            base_offset, length, delta = _step(chunk, start)
            after = start + length + LOG_OVERHEAD_BYTES
            if base_offset + delta >= upper_offset or position + after > limit:
                return position + start, max(offset, base_offset)
            if length < _MIN_LENGTH:
                raise NoBatchError(position + start)
            start, next_offset = after, base_offset + delta + 1
        if start == 0:
            raise NoBatchError(position)
        position += start
    return position, next_offset


def end_of_batch(file: Readable, position: int, size: int) -> tuple[int, int]:
    """The end of the batch at `position`, and the offset after it."""
    base_offset, length, delta = _step_at(file, position)
    end = position + length + LOG_OVERHEAD_BYTES
    if length < _MIN_LENGTH or end > size:
        raise NoBatchError(position)
    return end, base_offset + delta + 1


def last_offset_at(file: Readable, position: int) -> int:
    """The last offset of the batch at `position`."""
    base_offset, _, delta = _step_at(file, position)
    return base_offset + delta


def _step_at(file: Readable, position: int) -> tuple[int, int, int]:
    header = file.read(position, _STEP_BYTES)
    if len(header) < _STEP_BYTES:
        raise NoBatchError(position)
    base_offset, length, delta = _step(header)
    return base_offset, length, delta
