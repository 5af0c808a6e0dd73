"""What is done with a folder before its log may be used.

1. Leftovers of a compaction: `.cleaned` files were never finished and go; a `.log.swap` is the promise that
   its segment is complete and durable, so the swap is finished (see `compaction.py`).
2. Segments that lie wholly below the log start offset were deleted by their owner and go.
3. After a crash every segment from the one with the recovery point on is read through: header, CRC, rising
   offsets. The first byte that does not fit ends the log; whatever follows was never acknowledged as
   durable and is removed. The indexes are made again in the same pass, and whoever rebuilds producers and
   aborted transactions sees each batch as it goes by.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from itertools import pairwise
from typing import Final

from fencepost.base.failures import CorruptError
from fencepost.base.seams import Disk
from fencepost.log.config import LogConfig
from fencepost.log.names import (
    CLEANED,
    DELETED,
    INDEX,
    LOG,
    SEGMENT_SUFFIXES,
    SWAP,
    TIME_INDEX,
    TXN_INDEX,
    file_name,
    offset_of,
    offsets_with,
)
from fencepost.log.open_segments import OpenSegments
from fencepost.log.segment import Segment
from fencepost.log.survey import OnBatch, survey
from fencepost.records.batch import HEADER_BYTES, read_header

log = logging.getLogger(__name__)

TEMPORARY: Final = ".tmp"


def open_segments_of(
    disk: Disk,
    folder: str,
    config: LogConfig,
    open_segments: OpenSegments,
    *,
    now_ms: int,
    recovery_point: int | None,
    log_start_offset: int,
    on_batch: OnBatch | None,
) -> tuple[list[Segment], int | None]:
    """The segments of a folder, the last one active, and the offset from which they were recovered.

    No recovery point means that the log was closed cleanly.
    """
    disk.make_dir(folder)
    segments = find_segments(disk, folder, log_start_offset, open_segments)
    recovered_from = None
    if segments:
        first = _first_suspect(segments, recovery_point)
        if first < len(segments):
            recovered_from = segments[first].base_offset
            recover(segments, first, config.index_interval_bytes, on_batch)
    if segments and segments[-1].next_offset < log_start_offset:
        # The log start offset was durable and the data before it was not: what is left is of no use.
        _drop_from(segments, 0)
    if not segments:
        segments.append(Segment(disk, folder, log_start_offset, open_segments))
        segments[0].create()
    segments[-1].created_ms = now_ms
    segments[-1].activate()
    return segments, recovered_from


def _first_suspect(segments: list[Segment], recovery_point: int | None) -> int:
    """The index of the first segment that must be read through; the count of them when none must."""
    if recovery_point is None:
        try:
            segments[-1].load_tail()
        except CorruptError:
            return len(segments) - 1
        return len(segments)
    # A segment that ends at the recovery point counts: its data was synced, but it may have been sealed, and
    # its indexes written, after that.
    bases = [segment.base_offset for segment in segments]
    return max(0, bisect_left(bases, recovery_point) - 1)


def recover(
    segments: list[Segment], first: int, index_interval_bytes: int, on_batch: OnBatch | None
) -> None:
    """Reads segments from `first` on through; the log ends where they stop making sense.

    A segment ends where the next one begins, also after compaction, which keeps the last batch of every
    segment. Where it does not, its tail was lost and a later file survived: that file must not count, or a
    transaction could lose its records and keep its marker.
    """
    for index in range(first, len(segments)):
        segment = segments[index]
        if index > first and segment.base_offset != segments[index - 1].next_offset:
            log.warning(
                "%s does not go on where the segment before it ends, at %d: it is removed with all behind it",
                segment.path(LOG),
                segments[index - 1].next_offset,
            )
            _drop_from(segments, index)
            return
        size = segment.size_bytes
        segment.aborted.reset()
        found = survey(segment.file(), size, segment.base_offset, index_interval_bytes, on_batch)
        segment.adopt(found)
        if found.size_bytes < size:
            log.warning(
                "%s: what follows offset %d makes no sense: %d bytes and %d later segments are cut off",
                segment.path(LOG),
                segment.next_offset,
                size - found.size_bytes,
                len(segments) - index - 1,
            )
            segment.cut_tail()
            segment.file().sync()
            _drop_from(segments, index + 1)
            return
        if index + 1 < len(segments):
            segment.write_indexes()


def _drop_from(segments: list[Segment], index: int) -> None:
    """Removes segments behind the end of the log, the last one first."""
    while len(segments) > index:
        segments.pop().delete()


# --- the folder ---------------------------------------------------------------------------------


def find_segments(
    disk: Disk, folder: str, log_start_offset: int, open_segments: OpenSegments
) -> list[Segment]:
    """The segments of a folder, oldest first, after the leftovers of a crash have been put in order."""
    tidy_folder(disk, folder)
    names = disk.list_dir(folder)
    bases = offsets_with(names, LOG)
    _remove_orphans(disk, folder, names, set(bases))
    while len(bases) > 1 and bases[1] <= log_start_offset:
        _remove_segment(disk, folder, bases.pop(0))
    segments = [_segment_at(disk, folder, base, open_segments) for base in bases]
    for segment, following in pairwise(segments):
        segment.next_offset = following.base_offset
    return segments


def _segment_at(disk: Disk, folder: str, base: int, open_segments: OpenSegments) -> Segment:
    size_bytes = disk.size(f"{folder}/{file_name(base, LOG)}")
    return Segment(disk, folder, base, open_segments, size_bytes=size_bytes)


def _remove_segment(disk: Disk, folder: str, base: int) -> None:
    for suffix in SEGMENT_SUFFIXES:
        disk.remove(f"{folder}/{file_name(base, suffix)}")


def _remove_orphans(disk: Disk, folder: str, names: list[str], bases: set[int]) -> None:
    """Indexes whose log is gone: a deletion was interrupted."""
    for name in names:
        if name.endswith((INDEX, TIME_INDEX, TXN_INDEX)) and offset_of(name) not in bases:
            disk.remove(f"{folder}/{name}")


def tidy_folder(disk: Disk, folder: str) -> None:
    """Finishes swaps that were promised and removes what was not finished."""
    names = disk.list_dir(folder)
    for name in names:
        if name.endswith((CLEANED, DELETED, TEMPORARY)):
            disk.remove(f"{folder}/{name}")
    promised = offsets_with(names, LOG + SWAP)
    for name in names:
        if name.endswith(SWAP) and offset_of(name) not in promised:
            disk.remove(f"{folder}/{name}")
    for base in promised:
        finish_swap(disk, folder, base)


def finish_swap(disk: Disk, folder: str, base: int) -> None:
    """Puts a cleaned segment in the place of those it was made from; may be begun again at any point.

    All four files exist with `.swap` before the first is renamed, so one that is missing here was renamed
    by an earlier attempt. The log is the last: as long as it is a promise, we come back.
    """
    path = f"{folder}/{file_name(base, '')}"
    end_offset = _end_of_file(disk, path + LOG + SWAP, base)
    for other in offsets_with(disk.list_dir(folder), LOG):
        if base < other < end_offset:
            _remove_segment(disk, folder, other)
    for suffix in SEGMENT_SUFFIXES:
        if disk.exists(path + suffix + SWAP):
            disk.rename(path + suffix + SWAP, path + suffix)
    disk.sync_dir(folder)
    if disk.exists(path + TXN_INDEX) and not disk.read_file(path + TXN_INDEX):
        disk.remove(path + TXN_INDEX)


def _end_of_file(disk: Disk, path: str, base: int) -> int:
    """The offset behind the last batch of a file that is known to be sound."""
    file = disk.open(path)
    try:
        end_offset, position = base, 0
        while header := file.read(position, HEADER_BYTES):
            batch = read_header(header)
            end_offset = batch.next_offset
            position += batch.size_bytes
        return end_offset
    finally:
        file.close()
