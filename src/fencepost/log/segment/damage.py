"""Bytes of a segment that fail their check: a torn tail, or damage.

A crash leaves a *torn tail*: an append that was cut short or, after a power loss, pages that
were never written and read as zeros. It was not acknowledged, and it is cut off. Everything else is
*damage*: a flipped bit, an edited file. Acknowledged records may follow it. So damage stays in the
file: readers of its offsets get an error, and the batches after it are read normally.

Above the recovery point these rules distinguish the two (below it everything is damage):

1. A sound batch follows, in this segment or as the next segment: damage. Except after a power
   loss, if the bytes are missing or contain zeros up to the end of a page: pages reach the disk in
   any order.
2. Nothing follows, and the batch is complete by its header or by its CRC: damage, unless the power
   was lost.
3. Nothing follows, and the batch is not complete: torn.

The CRC of a batch does not cover its base offset, length and leader epoch. A batch with a damaged
offset looks like a gap from compaction. It is found when the next batch does not fit; then the
batch before it is the damaged one.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from crc32c import crc32c

from fencepost.base.seams import Readable
from fencepost.records.batch import CRC_START, HEADER_BYTES, LOG_OVERHEAD_BYTES, MAGIC

_HEADER: Final = struct.Struct(">qiibI2xi")
"""Base offset, length, leader epoch, magic, crc, last offset delta."""
_MAGIC_AT: Final = 16
_MIN_LENGTH: Final = HEADER_BYTES - LOG_OVERHEAD_BYTES
_CHUNK_BYTES: Final = 1024 * 1024
_PAGE_BYTES: Final = 4096
_LEAST_ZEROS: Final = 16
"""A hole from a power loss starts with a batch or a page; fewer zeros may be the end of a
record."""


class Damage(NamedTuple):
    """A run of bytes that cannot be read, and its offsets."""

    position: int
    end: int
    first_offset: int
    end_offset: int

    def __str__(self) -> str:
        return (
            f"offsets {self.first_offset} to {self.end_offset - 1} "
            f"(bytes {self.position} to {self.end - 1}) fail their check"
        )


def run_at(damage: Sequence[Damage], position: int) -> Damage | None:
    """The run that includes a position."""
    for run in damage:
        if run.position <= position < run.end:
            return run
    return None


def run_with(damage: Sequence[Damage], offset: int) -> Damage | None:
    """The run that includes an offset."""
    for run in damage:
        if run.first_offset <= offset < run.end_offset:
            return run
    return None


class Expected(NamedTuple):
    """What is known about the segment."""

    size_bytes: int
    highest_offset: int
    end_offset: int | None
    """Where the next segment begins; None for the last one."""
    durable_below: int
    """The recovery point."""
    lost_power: bool


class _Batch(NamedTuple):
    base_offset: int
    next_offset: int
    end: int


def judge(file: Readable, position: int, next_offset: int, expected: Expected) -> Damage | None:
    """Judges the bytes at `position`, where a batch should begin; None for a torn tail."""
    size, is_last = expected.size_bytes, expected.end_offset is None
    found = _following(file, position, next_offset, expected)
    is_tail = found is None
    if found is not None:
        damage = Damage(position, found[0], next_offset, found[1])
    elif not is_last and (expected.end_offset or 0) > next_offset:
        damage = Damage(position, size, next_offset, expected.end_offset or 0)
    else:
        tail = _complete_tail(file, position, next_offset, expected)
        if tail is None:
            return None
        damage = Damage(position, *tail)
    if next_offset < expected.durable_below:
        return damage
    if expected.lost_power and (
        (is_tail and (is_last or _is_short(file, position, size)))
        or _has_hole(file, damage.position, damage.end, size)
    ):
        return None
    return damage


def _following(
    file: Readable, position: int, next_offset: int, expected: Expected
) -> tuple[int, int] | None:
    """The position and base offset of the sound batch after the damage.

    Tries the length in the damaged header first: a record may contain bytes that look like a batch.
    """
    header = _header_at(file, position, expected)
    if header is not None:
        after = _sound_batch(file, header.end, next_offset + 1, expected)
        if after is not None:
            return header.end, after.base_offset
        if header.end == expected.size_bytes:
            return None
    return _search(file, position + 1, next_offset, expected)


def _header_at(file: Readable, position: int, expected: Expected) -> _Batch | None:
    header = file.read(position, HEADER_BYTES)
    if len(header) < HEADER_BYTES:
        return None
    base_offset, length, _, magic, _, delta = _HEADER.unpack_from(header)
    end = position + length + LOG_OVERHEAD_BYTES
    if magic != MAGIC or length < _MIN_LENGTH or delta < 0 or end > expected.size_bytes:
        return None
    return _Batch(base_offset, base_offset + delta + 1, end)


def _sound_batch(file: Readable, position: int, lowest: int, expected: Expected) -> _Batch | None:
    """The batch at a position, if it passes its check and its offsets are possible there."""
    found = _header_at(file, position, expected)
    if found is None or not lowest <= found.base_offset <= found.next_offset - 1:
        return None
    if found.next_offset - 1 > expected.highest_offset:
        return None
    if expected.end_offset is not None and found.next_offset > expected.end_offset:
        return None
    data = memoryview(file.read(position, found.end - position))
    crc = _HEADER.unpack_from(data)[4]
    return found if crc32c(data[CRC_START:]) == crc else None


def _search(
    file: Readable, position: int, lowest: int, expected: Expected
) -> tuple[int, int] | None:
    """The first position from `position` on where a sound batch begins."""
    while position + HEADER_BYTES <= expected.size_bytes:
        chunk = file.read(position, _CHUNK_BYTES)
        place = chunk.find(MAGIC, _MAGIC_AT)
        while place >= 0:
            found = _sound_batch(file, position + place - _MAGIC_AT, lowest, expected)
            if found is not None:
                return position + place - _MAGIC_AT, found.base_offset
            place = chunk.find(MAGIC, place + 1)
        position += max(1, len(chunk) - _MAGIC_AT)
    return None


def _complete_tail(
    file: Readable, position: int, next_offset: int, expected: Expected
) -> tuple[int, int, int] | None:
    """End, first and end offset of complete batches at the tail; None if that is unknown.

    A damaged sector or page may hit several batches. Their headers lead from one to the next.
    """
    end, end_offset = position, next_offset
    while (found := _header_at(file, end, expected)) is not None:
        if found.base_offset != end_offset or found.next_offset - 1 > expected.highest_offset:
            break
        end, end_offset = found.end, found.next_offset
    if end > position:
        return end, next_offset, end_offset
    # The header is damaged. If the CRC of all bytes to the end matches, it is one batch, and its
    # offset delta is right.
    data = memoryview(file.read(position, expected.size_bytes - position))
    if len(data) < HEADER_BYTES:
        return None
    crc, delta = _HEADER.unpack_from(data)[4:6]
    if crc32c(data[CRC_START:]) != crc or not 0 <= delta <= expected.highest_offset - next_offset:
        return None
    return expected.size_bytes, next_offset, next_offset + int(delta) + 1


def _is_short(file: Readable, position: int, size: int) -> bool:
    """Whether the batch at `position` ends after the file, or has no whole header."""
    header = file.read(position, HEADER_BYTES)
    if len(header) < HEADER_BYTES:
        return True
    return bool(position + _HEADER.unpack_from(header)[1] + LOG_OVERHEAD_BYTES > size)


def _has_hole(file: Readable, start: int, end: int, size: int) -> bool:
    """Whether a page, or its rest after the first damaged byte, reads as zeros."""
    page = start // _PAGE_BYTES * _PAGE_BYTES
    while page < end:
        begin, stop = max(start, page), min(page + _PAGE_BYTES, size)
        if stop <= end and stop - begin >= _LEAST_ZEROS and not any(file.read(begin, stop - begin)):
            return True
        page += _PAGE_BYTES
    return False


def moved_batch(
    file: Readable, position: int, gap: tuple[int, int], expected: Expected
) -> Damage | None:
    """The damage if the batch before `position`, with a gap before it, has a wrong offset.

    `gap` is the position of that batch, and the offset that it should have.
    """
    gap_position, next_offset = gap
    found = _sound_batch(file, position, next_offset + 1, expected)
    if found is None:
        return None
    return Damage(gap_position, position, next_offset, found.base_offset)
