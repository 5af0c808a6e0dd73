"""Reads of one segment: finds the batch with an offset, and the end of what a reader gets.

The offset index gives a position before the batch; a walk over the headers finds it (`walk.py`).
Where a read ends, a hint is left, so that the next read of the same reader needs no search.

Nothing here checks a CRC: a reader gets the bytes as they are; only leader epochs that are known to
be wrong are corrected (`wrong_epochs.py`). But a walk that finds no batch where one should begin
examines the segment. From then on its damage is known: readers of damaged offsets get a
DamagedError, and other reads end before the damage or begin after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fencepost.base.failures import DamagedError
from fencepost.base.seams import Buffer
from fencepost.log.names import LOG
from fencepost.log.segment.damage import run_at, run_with
from fencepost.log.segment.segment import Segment
from fencepost.log.segment.walk import NoBatchError, end_of_batch, walk_around, walk_on, walk_to
from fencepost.log.segment.wrong_epochs import with_right_epochs

_VIEW_BYTES: Final = 64 * 1024
"""From this size on, a view of the page cache is cheaper than a copy."""
_MAX_HINTS: Final = 32


@dataclass(slots=True, init=False)
class LogSlice:
    """Whole batches, as they are on the disk; wrong leader epochs are corrected."""

    data: Buffer
    """The first batch may begin before the requested offset."""
    next_offset: int
    """The offset after the last batch."""

    def __init__(self, data: Buffer, next_offset: int) -> None:
        self.data = data
        self.next_offset = next_offset


def read_segment(
    segment: Segment, offset: int, max_bytes: int, upper_offset: int, at_least_one: bool
) -> LogSlice | None:
    """Reads batches from the one with `offset` on; None when the segment ends before it.

    All of them are below `upper_offset` and fit into `max_bytes`. With `at_least_one`, the first
    one may be larger.
    """
    start = find_position(segment, offset)
    size, end_offset = segment.size_bytes, segment.next_offset
    if start is None or start >= size:
        return None
    if segment.damage:
        size, end_offset = segment.end_of_run(start)
    if upper_offset >= end_offset and size - start <= max_bytes:
        end, next_offset = size, end_offset
    else:
        limit = start + max_bytes
        known = segment.index().boundary(
            upper_offset - segment.base_offset, start, min(limit, size)
        )
        file = segment.file()
        try:
            end, next_offset = walk_on(file, known, size, offset, limit, upper_offset)
            if end == start:
                end, next_offset = end_of_batch(file, start, segment.size_bytes)
                if not at_least_one or next_offset > upper_offset:
                    return LogSlice(b"", offset)
        except NoBatchError as problem:
            end, next_offset = _stop_at_damage(segment, start, problem.position)
    if not segment.damage:  # Damage may begin at this position.
        _leave_hint(segment.hints, next_offset, end)
    count = end - start
    read = segment.file().view if count >= _VIEW_BYTES else segment.file().read
    data = read(start, count)
    if segment.wrong_epochs:
        data = with_right_epochs(data, segment.wrong_epochs)
    return LogSlice(data, next_offset)


def _leave_hint(hints: dict[int, int], next_offset: int, position: int) -> None:
    if next_offset not in hints and len(hints) >= _MAX_HINTS:
        del hints[next(iter(hints))]
    hints[next_offset] = position


def _stop_at_damage(segment: Segment, start: int, position: int) -> tuple[int, int]:
    """Ends a read from `start`, which found no batch at `position`, at the first damage."""
    segment.examine()
    if (run := run_at(segment.damage, start)) is not None:
        raise DamagedError(f"{segment.path(LOG)}: {run}")
    end, next_offset = segment.end_of_run(start)
    if end > position:
        raise segment.corrupt(position)
    return end, next_offset


def find_position(segment: Segment, offset: int) -> int | None:
    """The position of the first batch that reaches `offset`; None when there is none."""
    position = segment.hints.get(offset)
    if position is not None:
        return position
    if offset >= segment.next_offset:
        return None
    base_offset = segment.base_offset
    position = segment.index().position_before(offset - base_offset)
    if not segment.damage:
        try:
            return walk_to(
                segment.file(), position, segment.size_bytes, offset, segment.next_offset
            )
        except NoBatchError:
            segment.examine()
            position = segment.index().position_before(offset - base_offset)
    if (run := run_with(segment.damage, offset)) is not None:
        raise DamagedError(f"{segment.path(LOG)}: {run}")
    try:
        return walk_around(segment.file(), segment.damage, position, segment.size_bytes, offset)
    except NoBatchError as problem:
        raise segment.corrupt(problem.position) from problem


def seek_position(segment: Segment, offset: int) -> int | None:
    """The same for a reader that skips damage: the known, and what this search finds."""
    while True:
        while (run := run_with(segment.damage, offset)) is not None:
            offset = run.end_offset
        try:
            return find_position(segment, offset)
        except DamagedError:
            if run_with(segment.damage, offset) is None:
                raise
