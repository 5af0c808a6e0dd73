"""The offset and time index of one segment, in memory.

Batches get an entry at intervals (`index.interval.bytes`). The columns of the active segment grow
with its appends. Those of a sealed segment are read from its files on demand (`index_files.py`).
After a crash, recovery rebuilds the indexes of all segments that it scans.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right

from fencepost.base.ids import NO_TIMESTAMP
from fencepost.records.index import (
    OFFSET_ENTRY_BYTES,
    TIME_ENTRY_BYTES,
    decode_offset_index,
    decode_time_index,
    encode_offset_index,
    encode_time_index,
)


class SegmentIndex:
    """Four columns; offsets are relative to the segment's base offset, as in the files."""

    __slots__ = ("offsets", "positions", "time_offsets", "times")

    def __init__(self) -> None:
        self.offsets: array[int] = array("i")
        self.positions: array[int] = array("i")
        self.times: array[int] = array("q")
        self.time_offsets: array[int] = array("i")

    def add(self, last_offset: int, position: int, timestamp: int, timestamp_offset: int) -> None:
        """Adds the batch at `position`, and the largest time up to and including it."""
        assert not self.offsets or last_offset > self.offsets[-1], "index offsets increase"
        self.offsets.append(last_offset)
        self.positions.append(position)
        self.add_time(timestamp, timestamp_offset)

    def add_time(self, timestamp: int, offset: int) -> None:
        """Adds a time entry if the time is larger than the last one."""
        if timestamp > (self.times[-1] if self.times else NO_TIMESTAMP):
            self.times.append(timestamp)
            self.time_offsets.append(offset)

    def is_full(self, max_bytes: int) -> bool:
        """Whether the index files have reached `segment.index.bytes`."""
        return (
            len(self.offsets) >= max_bytes // OFFSET_ENTRY_BYTES
            or len(self.times) >= max_bytes // TIME_ENTRY_BYTES - 1
        )

    def position_before(self, offset: int) -> int:
        """A batch position at or before the batch with `offset`, or the next one after it."""
        entry = bisect_right(self.offsets, offset)
        return self.positions[entry - 1] if entry else 0

    def boundary(self, upper_offset: int, start: int, limit: int) -> int:
        """The last indexed position up to `limit` whose batch ends below `upper_offset`.

        At least `start`.
        """
        entry = min(bisect_left(self.offsets, upper_offset), bisect_right(self.positions, limit))
        return max(start, self.positions[entry - 1]) if entry else start

    def offset_before_time(self, timestamp: int) -> int:
        """An offset before which every record is older than `timestamp`."""
        # The last entry below the wanted time: no record up to it is new enough.
        entry = bisect_left(self.times, timestamp)
        return self.time_offsets[entry - 1] if entry else 0

    def newest(self) -> tuple[int, int]:
        """The largest time and its offset."""
        return (self.times[-1], self.time_offsets[-1]) if self.times else (NO_TIMESTAMP, 0)

    def truncate(self, next_offset: int, size_bytes: int) -> None:
        """Removes the entries at or after an offset."""
        keep = min(bisect_left(self.offsets, next_offset), bisect_left(self.positions, size_bytes))
        del self.offsets[keep:]
        del self.positions[keep:]
        keep = bisect_left(self.time_offsets, next_offset)
        del self.times[keep:]
        del self.time_offsets[keep:]

    def encode(self, first: int = 0, first_time: int = 0) -> tuple[bytes, bytes]:
        """The contents of `.index` and `.timeindex`, from an entry of each on."""
        return (
            encode_offset_index(self.offsets[first:], self.positions[first:]),
            encode_time_index(self.times[first_time:], self.time_offsets[first_time:]),
        )

    @classmethod
    def decode(cls, offset_index: bytes, time_index: bytes, size_bytes: int) -> SegmentIndex:
        """The index of a segment of `size_bytes`; ValueError when the files cannot belong to it.

        Only the ends are looked at, as Kafka does: a file that was not written to its end, or that
        the file system filled up with zeros, shows it there.
        """
        index = cls()
        index.offsets, index.positions = decode_offset_index(offset_index)
        index.times, index.time_offsets = decode_time_index(time_index)
        if index.positions and not 0 < index.positions[0] <= index.positions[-1] < size_bytes:
            raise ValueError("the offset index points outside the segment")
        for column in (index.offsets, index.positions, index.times, index.time_offsets):
            if column and (column[0] < 0 or (len(column) > 1 and column[-2] >= column[-1])):
                raise ValueError("the index does not increase")
        return index
