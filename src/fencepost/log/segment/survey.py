"""One pass over a segment's file: checks its batches and builds its index.

Recovery scans everything that a crash may have torn, so this is written for speed: large reads, one
unpack and one CRC per batch, and no object unless the caller passes `on_batch`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from crc32c import crc32c

from fencepost.base.ids import NO_TIMESTAMP
from fencepost.base.seams import Buffer, Readable
from fencepost.log.segment.damage import Damage, Expected, judge, moved_batch
from fencepost.log.segment.index import SegmentIndex
from fencepost.log.segment.wrong_epochs import UNKNOWN, EpochRun
from fencepost.records.batch import (
    CRC_START,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    SealedBatch,
    read_header,
)

OnBatch = Callable[[SealedBatch, int], None]
"""Is called with each sound batch and its position."""
SCAN_BYTES: Final = 1024 * 1024
MAX_RELATIVE_OFFSET: Final = 2**31 - 1
EVERYTHING: Final = 2**63 - 1
"""A recovery point above all offsets."""
EXAMINED_INDEX_INTERVAL_BYTES: Final = 4096
"""An examination does not know the log's setting; any interval gives a valid index."""

_CHECKED: Final = struct.Struct(">qiibI2xi8xq14xi")
"""The fields for the check of a batch: base offset, length, epoch, magic, crc, last delta, largest
time, count."""
_MIN_LENGTH: Final = HEADER_BYTES - LOG_OVERHEAD_BYTES


class Survey:
    """The result of one pass over a segment."""

    __slots__ = (
        "base_offset",
        "damage",
        "epochs",
        "first_timestamp",
        "gap",
        "index",
        "interval_bytes",
        "max_timestamp",
        "max_timestamp_offset",
        "next_offset",
        "since_index",
        "size_bytes",
    )

    def __init__(self, base_offset: int, index_interval_bytes: int) -> None:
        self.base_offset = base_offset
        self.interval_bytes = index_interval_bytes
        self.since_index = 0
        self.index = SegmentIndex()
        self.size_bytes = 0
        self.next_offset = base_offset
        self.first_timestamp: int | None = None
        self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = base_offset
        self.damage: list[Damage] = []
        """The damage that was skipped."""
        self.gap: tuple[int, int] | None = None
        """If there is a gap before the last batch: its position, and the gap's first offset."""
        self.epochs: list[EpochRun] = []
        """Each run of batches with the same leader epoch, by its first offset; `UNKNOWN` where
        damage or a gap follows a run."""

    @property
    def latest_epoch(self) -> int:
        """The leader epoch of the last run."""
        return self.epochs[-1][0] if self.epochs else UNKNOWN

    def begin_run(self, epoch: int, end_offset: int, first_offset: int) -> None:
        """Notes a new leader epoch, after batches that end at `end_offset`."""
        if end_offset < first_offset:
            self.epochs.append((UNKNOWN, end_offset))
        self.epochs.append((epoch, first_offset))

    def end_run(self, offset: int) -> None:
        """Notes that the leader epochs from an offset on are unknown."""
        while self.epochs and self.epochs[-1][1] >= offset:
            self.epochs.pop()
        self.epochs.append((UNKNOWN, offset))

    def note(self, last_offset: int, position: int, newest: int, newest_offset: int) -> None:
        """Adds an index entry; offsets are absolute."""
        base = self.base_offset
        self.index.add(last_offset - base, position, newest, newest_offset - base)


def survey(
    file: Readable,
    size: int,
    base_offset: int,
    index_interval_bytes: int,
    on_batch: OnBatch | None = None,
    expected: Expected | None = None,
    piece_bytes: int = SCAN_BYTES,
) -> Survey:
    """Reads a segment's file up to `size`, or to the first position without a batch.

    With `expected`, damage is noted and skipped, and only a torn tail ends the pass (`damage.py`).
    """
    found = Survey(base_offset, index_interval_bytes)
    wanted = piece_bytes
    while wanted:
        wanted = survey_piece(found, file, size, expected, wanted, piece_bytes, on_batch)
    if expected is not None:
        end_survey(found, expected)
    return found


def survey_piece(
    found: Survey,
    file: Readable,
    size: int,
    expected: Expected | None,
    wanted: int,
    piece_bytes: int,
    on_batch: OnBatch | None = None,
) -> int:
    """Reads `wanted` bytes; returns how many to read next, 0 at the end."""
    count = min(wanted, size - found.size_bytes)
    if count <= 0:
        return 0
    chunk = file.read(found.size_bytes, count)
    needed = _survey_chunk(found, memoryview(chunk), on_batch) if len(chunk) == count else 0
    if needed and found.size_bytes + needed <= size:
        return max(needed, piece_bytes)
    if found.size_bytes >= size or expected is None or not _pass_over(file, found, expected):
        return 0
    return piece_bytes


def end_survey(found: Survey, expected: Expected) -> None:
    """Completes a survey after its last piece."""
    end_offset = expected.end_offset
    if end_offset is not None and found.next_offset > end_offset and found.gap is not None:
        # The last batch has an offset of the next segment.
        position, first_offset = found.gap
        found.index.truncate(first_offset - found.base_offset, position)
        found.damage.append(Damage(position, found.size_bytes, first_offset, end_offset))
        found.end_run(first_offset)
        found.next_offset = end_offset


def examine(
    file: Readable,
    size: int,
    base_offset: int,
    end_offset: int | None,
    on_batch: OnBatch | None = None,
    piece_bytes: int = SCAN_BYTES,
) -> Survey:
    """Reads a segment that should reach `end_offset`, and notes everything else as damage."""
    expected = Expected(
        size,
        base_offset + MAX_RELATIVE_OFFSET,
        end_offset,
        durable_below=EVERYTHING,
        lost_power=False,
    )
    interval_bytes = EXAMINED_INDEX_INTERVAL_BYTES
    found = survey(file, size, base_offset, interval_bytes, on_batch, expected, piece_bytes)
    if end_offset is not None and found.next_offset < end_offset:
        found.damage.append(Damage(found.size_bytes, size, found.next_offset, end_offset))
        found.end_run(found.next_offset)
        found.size_bytes, found.next_offset = size, end_offset
    return found


def _pass_over(file: Readable, found: Survey, expected: Expected) -> bool:
    """Notes damage at the current position and skips it; False for a torn tail."""
    if found.gap is not None and (
        damage := moved_batch(file, found.size_bytes, found.gap, expected)
    ):
        found.index.truncate(damage.first_offset - found.base_offset, damage.position)
    else:
        judged = judge(file, found.size_bytes, found.next_offset, expected)
        if judged is None:
            return False
        damage = judged
    found.gap = None
    found.damage.append(damage)
    found.end_run(damage.first_offset)
    found.size_bytes, found.next_offset = damage.end, damage.end_offset
    return True


def _survey_chunk(found: Survey, chunk: memoryview, on_batch: OnBatch | None) -> int:
    """Adds the sound batches of a chunk; returns the bytes the next batch needs, 0 for damage.

    The same arithmetic as `Segment.append`, in local variables: this loop determines how long a
    restart takes.
    """
    needed, start, end_of_chunk = HEADER_BYTES, 0, len(chunk)
    unpack, interval_bytes = _CHECKED.unpack_from, found.interval_bytes
    highest = found.base_offset + MAX_RELATIVE_OFFSET
    next_offset, since_index = found.next_offset, found.since_index
    newest, newest_offset = found.max_timestamp, found.max_timestamp_offset
    latest_epoch = found.latest_epoch
    gap = found.gap
    if found.size_bytes == 0 and end_of_chunk >= HEADER_BYTES:
        found.first_timestamp = unpack(chunk)[6]
    while start + HEADER_BYTES <= end_of_chunk:
        base_offset, length, epoch, magic, crc, delta, max_timestamp, count = unpack(chunk, start)
        last_offset = base_offset + delta
        if (
            length < _MIN_LENGTH
            or magic != MAGIC
            or not next_offset <= base_offset <= last_offset <= highest
        ):
            needed = 0
            break
        end = start + length + LOG_OVERHEAD_BYTES
        if end > end_of_chunk:
            needed = end - start
            break
        if crc32c(chunk[start + CRC_START : end]) != crc:
            needed = 0
            break
        gap = None if base_offset == next_offset else (found.size_bytes + start, next_offset)
        if epoch != latest_epoch:
            latest_epoch = epoch
            found.begin_run(epoch, next_offset, base_offset)
        if max_timestamp > newest and count:  # An emptied batch has no records and no time.
            newest, newest_offset = max_timestamp, last_offset
        if since_index > interval_bytes:
            found.note(last_offset, found.size_bytes + start, newest, newest_offset)
            since_index = 0
        if on_batch is not None:
            on_batch(read_header(chunk[start:end]), found.size_bytes + start)
        next_offset = last_offset + 1
        since_index += end - start
        start = end
    found.size_bytes += start
    found.gap = gap
    found.next_offset, found.since_index = next_offset, since_index
    found.max_timestamp, found.max_timestamp_offset = newest, newest_offset
    return needed


def survey_more(found: Survey, batches: Buffer) -> bool:
    """Adds whole batches that follow; False if they fail their check."""
    end = found.size_bytes + len(batches)
    _survey_chunk(found, memoryview(batches), None)
    return found.size_bytes == end
