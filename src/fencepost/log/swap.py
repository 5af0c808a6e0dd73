"""How a compacted segment replaces others.

Compaction has written four files with the suffix `.cleaned` and synced them (`compaction.py`). From
there on a swap is in one of these states, and the log keeps it until it has ended:

    PROMISED    The files are renamed to `.swap`, the log last. The old segments are untouched and
                count, but an open that finds `.log.swap` finishes the swap. Reads and appends go
                on. A change of sealed segments withdraws the swap first: it removes
                `.log.swap`.
    BEGUN       The folder was synced, and the old segments are being replaced: the others of the
                group are removed, then each file gets its final name, the log last. Files and
                memory disagree, so nothing may use the log before the swap is finished.
    ENDED       Finished, or withdrawn.

A step that fails leaves the state as it is, and the next operation that needs the log repeats it
(`Log.check_usable`, `Log.end_swap`). After a crash the next open finishes what `.log.swap`
promises, and removes the files of a swap without one (`recovery.py`).

A file that is missing in the middle of a swap is an error. Without its new file, the old one would
be read with the size and the offsets of the new.
"""

from __future__ import annotations

import contextlib
from enum import Enum

from fencepost.base.failures import CorruptError
from fencepost.base.seams import Disk
from fencepost.log.durability import sync_names
from fencepost.log.names import (
    CLEANED,
    LOG,
    SEGMENT_SUFFIXES,
    SWAP,
    TXN_INDEX,
    file_name,
    offsets_with,
)
from fencepost.log.segment.open_segments import OpenSegments
from fencepost.log.segment.segment import Segment
from fencepost.records.batch import HEADER_BYTES, BatchError, read_header


class SwapState(Enum):
    """How far a swap has got; see the module's docstring."""

    PROMISED = 0
    BEGUN = 1
    ENDED = 2


class Swap:
    """A swap in a log that is open."""

    __slots__ = ("_disk", "_path", "_sizes", "group", "new", "state")

    def __init__(
        self,
        disk: Disk,
        folder: str,
        open_segments: OpenSegments,
        group: list[Segment],
        size_bytes: int,
    ) -> None:
        self._disk = disk
        self._path = f"{folder}/{file_name(group[0].base_offset, '')}"
        self._sizes: dict[str, int] = {}
        self.group = group
        """The segments to replace."""
        self.new = Segment(disk, folder, group[0].base_offset, open_segments, size_bytes=size_bytes)
        self.new.next_offset = group[-1].next_offset
        self.state = SwapState.PROMISED

    def promise(self) -> None:
        """Renames the cleaned files; the caller syncs the folder before it calls `finish`."""
        for suffix in SEGMENT_SUFFIXES:
            self._sizes[suffix] = self._disk.size(self._path + suffix + CLEANED)
            self._disk.rename(self._path + suffix + CLEANED, self._path + suffix + SWAP)

    def withdraw(self) -> None:
        """Removes the promise; may be repeated after an OSError."""
        assert self.state is SwapState.PROMISED, "a swap that has begun must be finished"
        self._disk.remove(self._path + LOG + SWAP)
        self.state = SwapState.ENDED
        remove_cleaned(self._disk, self._path)

    def finish(self) -> None:
        """Replaces the segments; may be repeated after a failure. The caller syncs the names."""
        assert self.state is not SwapState.ENDED
        self.state = SwapState.BEGUN
        self.new.wrong_epochs = tuple(wrong for each in self.group for wrong in each.wrong_epochs)
        self.group[0].close()  # Its files are replaced under it.
        for segment in self.group[1:]:
            segment.delete()
        for suffix in SEGMENT_SUFFIXES:
            self._put_in_place(suffix)
        _remove_empty_index(self._disk, self._path)
        self.state = SwapState.ENDED

    def _put_in_place(self, suffix: str) -> None:
        """Gives one file its final name, unless an earlier attempt has done so."""
        path = self._path + suffix
        with contextlib.suppress(FileNotFoundError):
            self._disk.rename(path + SWAP, path)
        size = self._disk.size(path) if self._disk.exists(path) else 0
        if size != self._sizes[suffix]:
            raise CorruptError(f"{path}{SWAP} is missing in the middle of a swap")


def remove_cleaned(disk: Disk, path: str) -> None:
    """Removes the files of a segment that is no longer wanted; the next open removes the rest.

    Not `.log.swap`, which is a promise: `Swap.withdraw`.
    """
    for suffix in SEGMENT_SUFFIXES:
        for state in (SWAP, CLEANED):
            if suffix + state != LOG + SWAP:
                with contextlib.suppress(OSError):
                    disk.remove(path + suffix + state)


def finish_found_swap(disk: Disk, folder: str, base: int) -> None:
    """Finishes a swap that a crash has interrupted, durably; may be repeated at any point.

    All four files existed with `.swap` before the first was renamed, and the log is the last. So a
    missing one was renamed before the crash.
    """
    path = f"{folder}/{file_name(base, '')}"
    end_offset = _end_of_file(disk, path + LOG + SWAP, base)
    for other in offsets_with(disk.list_dir(folder), LOG):
        if base < other < end_offset:
            _remove_segment(disk, folder, other)
    for suffix in SEGMENT_SUFFIXES:
        if disk.exists(path + suffix + SWAP):
            disk.rename(path + suffix + SWAP, path + suffix)
    sync_names(disk, folder)
    _remove_empty_index(disk, path)


def _remove_empty_index(disk: Disk, path: str) -> None:
    """Compaction writes an empty `.txnindex` too, so that the swap replaces the old one."""
    if disk.exists(path + TXN_INDEX) and not disk.read_file(path + TXN_INDEX):
        disk.remove(path + TXN_INDEX)


def _remove_segment(disk: Disk, folder: str, base: int) -> None:
    for suffix in reversed(SEGMENT_SUFFIXES):
        disk.remove(f"{folder}/{file_name(base, suffix)}")


def _end_of_file(disk: Disk, path: str, base: int) -> int:
    """The offset after the last batch of a file; CorruptError if a header is damaged."""
    file = disk.open(path)
    end_offset, position = base, 0
    try:
        while header := file.read(position, HEADER_BYTES):
            batch = read_header(header)
            end_offset = batch.next_offset
            position += batch.size_bytes
        return end_offset
    except BatchError as problem:
        raise CorruptError(f"{path}: no batch begins at byte {position}") from problem
    finally:
        file.close()
