"""A compacted segment takes the place of the segments that it replaces.

Compaction has written its four files, synced them, and renamed each to `.swap`, the log last
(`compaction.py`). What is left removes the replaced segments and renames each file to its final
name, again the log last. As long as `.log.swap` exists, that is repeated: by the next use of the
log if the disk failed, by the next open after a crash (`recovery.py`).
"""

from __future__ import annotations

from fencepost.base.failures import CorruptError, SyncError
from fencepost.base.seams import Disk
from fencepost.log.names import LOG, SEGMENT_SUFFIXES, SWAP, TXN_INDEX, file_name, offsets_with
from fencepost.log.segment.open_segments import OpenSegments
from fencepost.log.segment.segment import Segment
from fencepost.records.batch import HEADER_BYTES, BatchError, read_header


class Swap:
    """A prepared swap in a log that is open."""

    __slots__ = ("_disk", "_folder", "group", "new")

    def __init__(
        self,
        disk: Disk,
        folder: str,
        open_segments: OpenSegments,
        group: list[Segment],
        size_bytes: int,
    ) -> None:
        """From here on the first of the `group` is closed: its files are replaced under it."""
        self._disk = disk
        self._folder = folder
        self.group = group
        """The segments to replace."""
        self.new = Segment(disk, folder, group[0].base_offset, open_segments, size_bytes=size_bytes)
        self.new.next_offset = group[-1].next_offset
        self.new.wrong_epochs = tuple(wrong for each in group for wrong in each.wrong_epochs)
        group[0].close()

    def finish(self) -> None:
        """Changes the files; may be repeated after an OSError. The caller syncs the names."""
        for segment in self.group[1:]:
            segment.delete()
        _put_in_place(self._disk, self._folder, self.new.base_offset, self.new.next_offset)
        _remove_empty_index(self._disk, self._folder, self.new.base_offset)


def finish_found_swap(disk: Disk, folder: str, base: int) -> None:
    """Finishes a swap that a crash has interrupted, durably; may be repeated at any point."""
    end_offset = _end_of_file(disk, f"{folder}/{file_name(base, LOG + SWAP)}", base)
    _put_in_place(disk, folder, base, end_offset)
    _sync_names(disk, folder)
    _remove_empty_index(disk, folder, base)


def _put_in_place(disk: Disk, folder: str, base: int, end_offset: int) -> None:
    """Removes the replaced segments and renames the new files.

    All four files exist with `.swap` before the first is renamed, so a missing one was renamed by
    an earlier attempt.
    """
    path = f"{folder}/{file_name(base, '')}"
    if not disk.exists(path + LOG + SWAP):
        return
    for other in offsets_with(disk.list_dir(folder), LOG):
        if base < other < end_offset:
            _remove_segment(disk, folder, other)
    for suffix in SEGMENT_SUFFIXES:
        if disk.exists(path + suffix + SWAP):
            disk.rename(path + suffix + SWAP, path + suffix)


def _remove_empty_index(disk: Disk, folder: str, base: int) -> None:
    """Compaction writes an empty `.txnindex` too, so that the swap replaces the old one."""
    path = f"{folder}/{file_name(base, TXN_INDEX)}"
    if disk.exists(path) and not disk.read_file(path):
        disk.remove(path)


def _remove_segment(disk: Disk, folder: str, base: int) -> None:
    for suffix in reversed(SEGMENT_SUFFIXES):
        disk.remove(f"{folder}/{file_name(base, suffix)}")


def _sync_names(disk: Disk, folder: str) -> None:
    """Makes renames durable; SyncError if the disk does not confirm."""
    try:
        disk.sync_dir(folder)
    except OSError as problem:
        raise SyncError(f"the disk did not confirm a sync of {folder}: {problem}") from problem


def _end_of_file(disk: Disk, path: str, base: int) -> int:
    """The offset after the last batch of a file; CorruptError if its headers lead nowhere."""
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
