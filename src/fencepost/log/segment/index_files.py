"""The `.index` and `.timeindex` of one segment on the disk.

They are written as a whole: when the segment is sealed, when the log is closed, and when they had
to be rebuilt. A saved point adds the entries that those of the active segment lack. So these are
missing or end early most of the time, and a power loss may leave any other content. An index
that is read must therefore fit its segment; if it does not, the segment rebuilds it.
"""

from __future__ import annotations

from fencepost.base.seams import Disk, Readable
from fencepost.log.names import INDEX, TIME_INDEX, file_name
from fencepost.log.segment.index import SegmentIndex
from fencepost.log.segment.walk import NoBatchError, last_offset_at
from fencepost.records.batch import HEADER_BYTES, BatchError, read_header
from fencepost.records.index import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES


class IndexFiles:
    """The two files, and how far they reach."""

    __slots__ = ("_base_offset", "_disk", "_folder", "_written", "end_offset")

    def __init__(self, disk: Disk, folder: str, base_offset: int) -> None:
        self._disk = disk
        self._folder = folder
        self._base_offset = base_offset
        self._written = (0, 0)
        """How many entries of the index in memory the two files begin with."""
        self.end_offset = -1
        """Where the segment ended when the files were written; -1 if that is unknown."""

    def write(self, index: SegmentIndex, end_offset: int) -> None:
        """Writes a complete index, without a sync."""
        write_index(self._disk, f"{self._folder}/{file_name(self._base_offset, '')}", index)
        self._written = len(index.offsets), len(index.times)
        self.end_offset = end_offset

    def extend(self, index: SegmentIndex) -> None:
        """Adds the entries that the files lack, without a sync."""
        path = f"{self._folder}/{file_name(self._base_offset, '')}"
        offsets, times = self._written
        self._written = (0, 0)  # Unless both succeed.
        offset_index, time_index = index.encode(offsets, times)
        self._append(path + INDEX, offsets * OFFSET_ENTRY_BYTES, offset_index)
        self._append(path + TIME_INDEX, times * TIME_ENTRY_BYTES, time_index)
        self._written = len(index.offsets), len(index.times)

    def _append(self, path: str, known_bytes: int, data: bytes) -> None:
        file = self._disk.open(path, create=True)
        try:
            if file.size() != known_bytes:
                file.truncate(known_bytes)
            if data:
                file.append((data,))
        finally:
            file.close()

    def forget(self) -> None:
        """Notes that the index in memory no longer continues that of the files."""
        self._written = (0, 0)

    def keep(self, index: SegmentIndex) -> None:
        """Notes that the index in memory was read from the files, and maybe cut."""
        self._written = len(index.offsets), len(index.times)

    def read(self, size_bytes: int) -> SegmentIndex | None:
        """The index of a segment of `size_bytes`; None if the files are missing or wrong."""
        path = f"{self._folder}/{file_name(self._base_offset, '')}"
        try:
            return SegmentIndex.decode(
                self._disk.read_file(path + INDEX),
                self._disk.read_file(path + TIME_INDEX),
                size_bytes,
            )
        except (FileNotFoundError, ValueError, IsADirectoryError, PermissionError):
            return None


def write_index(disk: Disk, path: str, index: SegmentIndex, suffix: str = "") -> None:
    """Writes the two files of a segment; `path` and `suffix` stand before and after their names."""
    offset_index, time_index = index.encode()
    disk.write_file(path + INDEX + suffix, offset_index, sync=False)
    disk.write_file(path + TIME_INDEX + suffix, time_index, sync=False)


def is_plausible(index: SegmentIndex, file: Readable, base_offset: int) -> bool:
    """Whether an index fits a segment that has batches.

    The last entry of a stale index does not point at a batch with its offset. If there are no
    times, the first batch has none either; a first batch that cannot be read may have one.
    """
    try:
        if not index.times:
            first = read_header(file.read(0, HEADER_BYTES))
            if first.max_timestamp >= 0 and first.record_count > 0:
                return False
        if not index.offsets:
            return True
        return last_offset_at(file, index.positions[-1]) == index.offsets[-1] + base_offset
    except (BatchError, NoBatchError):
        return False
