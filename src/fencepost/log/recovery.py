"""Finds the segments of a folder, after a clean close or a crash.

1. Leftovers of a compaction: `.cleaned` files are unfinished and removed. A `.log.swap` means that
   its segment is complete and durable, so the swap is finished (`swap.py`).
2. After a power loss every segment from the one with the recovery point on is scanned: header,
   CRC, increasing offsets. A torn tail ends the log and is cut off; damage is kept (`damage.py`).
   The same pass rebuilds the offset and time indexes, and empties the transaction indexes, which
   the partition rebuilds.
3. If only the process died, the page cache has everything that it wrote. Sealed segments are
   complete. Of the active one the batches after the saved point (`saved_points.py`) are scanned, or
   all of it if the point does not fit.
4. After a clean close only the tail of the last segment is read; if no batch is there, that segment
   is scanned.

A scan is a generator that yields after each piece, so that a broker can serve others in between.

Segments below the recovery point are neither scanned nor removed. Segments below the log start
offset stay too: retention removes them once their producers are saved. There is one exception: if
the whole log ends below its start, all of it was deleted by DeleteRecords, and it begins again at
the start.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Generator
from itertools import pairwise
from typing import Final, NamedTuple

from fencepost.base.failures import CorruptError
from fencepost.base.seams import Disk
from fencepost.log.config import LogConfig
from fencepost.log.durability import sync_file
from fencepost.log.names import (
    CLEANED,
    DELETED,
    INDEX,
    LOG,
    SWAP,
    TIME_INDEX,
    TXN_INDEX,
    file_name,
    offset_of,
    offsets_with,
)
from fencepost.log.saved_points import SavedPoints
from fencepost.log.segment.damage import Damage, Expected
from fencepost.log.segment.open_segments import OpenSegments
from fencepost.log.segment.segment import Segment
from fencepost.log.segment.survey import (
    EVERYTHING,
    MAX_RELATIVE_OFFSET,
    Survey,
    end_survey,
    survey_piece,
)
from fencepost.log.segment.wrong_epochs import EpochRun
from fencepost.log.swap import finish_found_swap

log = logging.getLogger(__name__)

TEMPORARY: Final = ".tmp"

PIECE_BYTES: Final = 256 * 1024
"""Scanned between two yields: about a millisecond, even if all batches are small."""


class Recovered(NamedTuple):
    """What a recovery has read and removed."""

    scanned_bytes: int
    cut_bytes: int
    """Of torn tails and of segments after them."""
    removed_segments: int


class Found(NamedTuple):
    """The segments of a folder."""

    segments: list[Segment]
    """The last one is active."""
    recovered_from: int | None
    """The first offset that was scanned; None without a scan."""
    unsynced_from: int | None
    """The base of the first segment that may not be synced; None after a clean close."""
    epochs: list[EpochRun]
    """The leader epochs that the scan found."""
    recovered: Recovered | None
    """None without a scan."""


def recover_segments(
    disk: Disk,
    folder: str,
    config: LogConfig,
    open_segments: OpenSegments,
    *,
    now_ms: int,
    recovery_point: int | None,
    log_start_offset: int,
    lost_power: bool,
    points: SavedPoints,
) -> Generator[None, None, Found]:
    """Opens the segments of a folder; without a recovery point they were closed cleanly."""
    segments = find_segments(disk, folder, open_segments)
    try:
        recovered_from = unsynced_from = recovered = None
        epochs: list[EpochRun] = []
        first = _first_suspect(segments, recovery_point)
        if first < len(segments):
            unsynced_from = segments[first].base_offset
            if not lost_power:
                first = len(segments) - 1
            durable = EVERYTHING if recovery_point is None else recovery_point
            recovery = Recovery(config.index_interval_bytes, durable, lost_power, points)
            yield from recovery.run(segments, first)
            recovered_from, epochs = recovery.begin_offset, recovery.epochs
            recovered = recovery.report()
        if segments and segments[-1].next_offset < log_start_offset:
            # The log start offset was durable, but the data before it was not: drop the rest.
            points.remove()
            _drop_from(segments, 0)
        if not segments:
            segments.append(Segment(disk, folder, log_start_offset, open_segments))
            segments[0].create()
        segments[-1].created_ms = now_ms
        segments[-1].activate()
    except BaseException:  # Also when the caller gives up between two pieces.
        for segment in segments:
            segment.close()
        raise
    return Found(segments, recovered_from, unsynced_from, epochs, recovered)


def _first_suspect(segments: list[Segment], recovery_point: int | None) -> int:
    """The index of the first segment that a power loss may have changed.

    The number of segments if there is none.
    """
    if not segments:
        return 0
    if recovery_point is None:
        try:
            segments[-1].load_tail()
        except CorruptError:
            return len(segments) - 1
        return len(segments)
    bases = [segment.base_offset for segment in segments]
    return max(0, bisect_right(bases, recovery_point) - 1)


class Recovery:
    """One pass over the segments that a crash may have torn."""

    def __init__(
        self,
        index_interval_bytes: int,
        durable_below: int,
        lost_power: bool,
        points: SavedPoints,
    ) -> None:
        self._index_interval_bytes = index_interval_bytes
        self._durable_below = durable_below
        self._lost_power = lost_power
        self._points = points
        self.begin_offset = 0
        """The first offset that was scanned."""
        self.epochs: list[EpochRun] = []
        """The leader epochs of the batches that were scanned."""
        self._scanned_bytes = 0
        self._cut_bytes = 0
        self._removed_segments = 0

    def report(self) -> Recovered:
        """What the pass has read and removed."""
        return Recovered(self._scanned_bytes, self._cut_bytes, self._removed_segments)

    def run(self, segments: list[Segment], first: int) -> Generator[None, None, None]:
        """Scans the segments from `first` on, up to the first torn tail."""
        self.begin_offset = segments[first].base_offset
        for index in range(first, len(segments)):
            if index > first and not self._goes_on(segments[index - 1], segments[index]):
                self._drop_from(segments, index)
                break
            following = segments[index + 1].base_offset if index + 1 < len(segments) else None
            is_torn = yield from self._scan(segments[index], following)
            if is_torn:
                self._drop_from(segments, index + 1)
                break
            if following is not None:
                segments[index].write_index()

    def _drop_from(self, segments: list[Segment], index: int) -> None:
        """Removes segments after the end of the log: a power loss took the records before."""
        self._cut_bytes += sum(segment.size_bytes for segment in segments[index:])
        self._removed_segments += len(segments) - index
        _drop_from(segments, index)

    def _goes_on(self, before: Segment, segment: Segment) -> bool:
        """Whether a segment follows the one before it.

        A segment ends where the next one begins, also after compaction, which keeps the last batch
        of every segment. If it does not, a power loss took its tail and left a later file. That
        file must be dropped, or a transaction could lose its records and keep its marker. Without a
        power loss, or below the recovery point, the missing offsets are damage.
        """
        end, base = before.next_offset, segment.base_offset
        if end == base:
            return True
        if end < base and (end < self._durable_below or not self._lost_power):
            hole = Damage(before.size_bytes, before.size_bytes, end, base)
            before.note_damage([*before.damage, hole])
            before.next_offset = base
            return True
        log.debug(
            "%s does not begin where the segment before it ends, at %d: it is removed with all "
            "later segments",
            segment.path(LOG),
            end,
        )
        return False

    def _begin(self, segment: Segment) -> tuple[Survey, bool]:
        """Where the scan of a segment begins, and whether that is a saved point."""
        saved = self._points.found
        if saved is not None:
            resumed = segment.resume(saved.segment, self._index_interval_bytes)
            if resumed is not None:
                self.begin_offset = resumed.next_offset
                segment.aborted.cut(resumed.next_offset)
                return resumed, True
            if saved.segment.offset > segment.base_offset:
                # Before the index that it counts on is emptied.
                self._points.remove()
        segment.aborted.reset()
        return Survey(segment.base_offset, self._index_interval_bytes), False

    def _scan(self, segment: Segment, following: int | None) -> Generator[None, None, bool]:
        """Scans one segment and cuts off a torn tail; returns whether there was one."""
        size = segment.size_bytes
        found, is_resumed = self._begin(segment)
        self._scanned_bytes += size - found.size_bytes
        expected = Expected(
            size,
            segment.base_offset + MAX_RELATIVE_OFFSET,
            following,
            self._durable_below,
            self._lost_power,
        )
        wanted = PIECE_BYTES
        while wanted:
            wanted = survey_piece(found, segment.file(), size, expected, wanted, PIECE_BYTES)
            yield
        end_survey(found, expected)
        segment.adopt(found, is_resumed=is_resumed)
        self.epochs += found.epochs
        if found.size_bytes == size:
            return False
        self._cut_bytes += size - found.size_bytes
        segment.cut_tail()
        sync_file(segment.file(), segment.path(LOG))
        return True


def _drop_from(segments: list[Segment], index: int) -> None:
    """Removes segments after the end of the log, the last one first."""
    while len(segments) > index:
        segments.pop().delete()


# --- the folder ---------------------------------------------------------------------------------


def find_segments(disk: Disk, folder: str, open_segments: OpenSegments) -> list[Segment]:
    """Cleans up after a crash; returns the segments of a folder, oldest first."""
    tidy_folder(disk, folder)
    names = disk.list_dir(folder)
    bases = offsets_with(names, LOG)
    _remove_orphans(disk, folder, names, set(bases))
    segments = [_segment_at(disk, folder, base, open_segments) for base in bases]
    for segment, following in pairwise(segments):
        segment.next_offset = following.base_offset
    return segments


def _segment_at(disk: Disk, folder: str, base: int, open_segments: OpenSegments) -> Segment:
    size_bytes = disk.size(f"{folder}/{file_name(base, LOG)}")
    return Segment(disk, folder, base, open_segments, size_bytes=size_bytes)


def _remove_orphans(disk: Disk, folder: str, names: list[str], bases: set[int]) -> None:
    """Removes indexes without a log: a deletion was interrupted."""
    for name in names:
        if name.endswith((INDEX, TIME_INDEX, TXN_INDEX)) and offset_of(name) not in bases:
            disk.remove(f"{folder}/{name}")


def tidy_folder(disk: Disk, folder: str) -> None:
    """Finishes prepared swaps and removes unfinished files."""
    names = disk.list_dir(folder)
    for name in names:
        if name.endswith((CLEANED, DELETED, TEMPORARY)):
            disk.remove(f"{folder}/{name}")
    promised = offsets_with(names, LOG + SWAP)
    for name in names:
        if name.endswith(SWAP) and offset_of(name) not in promised:
            disk.remove(f"{folder}/{name}")
    for base in promised:
        finish_found_swap(disk, folder, base)
