"""The offset and time index of one segment, in memory.

Two arrays and a list: for the active segment they grow as batches are appended and reach the disk when
the segment is sealed or the log is closed; for a sealed one they are read when somebody asks. After a crash
the indexes of what was not sealed are made again by the scan that has to happen anyway.
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
    """Offsets here are relative to the segment's base offset, as in the files."""

    __slots__ = ("offsets", "positions", "times")

    def __init__(self) -> None:
        self.offsets: array[int] = array("i")
        self.positions: array[int] = array("i")
        self.times: list[tuple[int, int]] = []

    def add(self, last_offset: int, position: int, timestamp: int, timestamp_offset: int) -> None:
        """Notes the batch at `position`, and the newest time up to and including it."""
        assert not self.offsets or last_offset > self.offsets[-1], "index offsets increase"
        self.offsets.append(last_offset)
        self.positions.append(position)
        self.add_time(timestamp, timestamp_offset)

    def add_time(self, timestamp: int, offset: int) -> None:
        """Notes the newest time so far unless the last entry says the same."""
        if timestamp > (self.times[-1][0] if self.times else NO_TIMESTAMP):
            self.times.append((timestamp, offset))

    def is_full(self, max_bytes: int) -> bool:
        return (
            len(self.offsets) >= max_bytes // OFFSET_ENTRY_BYTES
            or len(self.times) >= max_bytes // TIME_ENTRY_BYTES - 1
        )

    def position_before(self, offset: int) -> int:
        """A place at or before the batch that holds `offset` (or the next one after it)."""
        entry = bisect_right(self.offsets, offset)
        return self.positions[entry - 1] if entry else 0

    def boundary(self, upper_offset: int, start: int, limit: int) -> int:
        """The last known beginning of a batch in [start, limit] with nothing at `upper_offset` before it."""
        entry = min(bisect_left(self.offsets, upper_offset), bisect_right(self.positions, limit))
        return max(start, self.positions[entry - 1]) if entry else start

    def offset_before_time(self, timestamp: int) -> int:
        """An offset before which everything is older than `timestamp`."""
        # The entry with the largest time below the one we look for: nothing up to it is new enough.
        entry = bisect_left(self.times, (timestamp, -1))
        return self.times[entry - 1][1] if entry else 0

    def newest(self) -> tuple[int, int]:
        """The largest time that was noted, and its offset."""
        return self.times[-1] if self.times else (NO_TIMESTAMP, 0)

    def truncate(self, next_offset: int, size_bytes: int) -> None:
        """Forgets what lies at or after an offset."""
        keep = min(bisect_left(self.offsets, next_offset), bisect_left(self.positions, size_bytes))
        del self.offsets[keep:]
        del self.positions[keep:]
        while self.times and self.times[-1][1] >= next_offset:
            self.times.pop()

    def encode(self) -> tuple[bytes, bytes]:
        """The contents of `.index` and `.timeindex`."""
        return encode_offset_index(self.offsets, self.positions), encode_time_index(self.times)

    @classmethod
    def decode(cls, offset_index: bytes, time_index: bytes, size_bytes: int) -> SegmentIndex:
        """The index of a segment of `size_bytes`; ValueError when the files cannot belong to it."""
        index = cls()
        index.offsets, index.positions = decode_offset_index(offset_index)
        index.times = decode_time_index(time_index)
        if index.offsets:
            _check_columns(index.offsets, index.positions, size_bytes)
        if index.times:
            _check_times(index.times)
        return index


def _check_columns(offsets: array[int], positions: array[int], size_bytes: int) -> None:
    if offsets[0] < 0 or positions[0] < 0 or positions[-1] >= size_bytes:
        raise ValueError("the offset index points outside the segment")
    # Kafka looks at the last entry only; two passes over an array cost little and find stale files.
    if any(map(int.__ge__, offsets, offsets[1:])) or any(map(int.__ge__, positions, positions[1:])):
        raise ValueError("the offset index does not increase")


def _check_times(times: list[tuple[int, int]]) -> None:
    last_time, last_offset = -1, -1
    for time, offset in times:
        if time <= last_time or offset < last_offset:
            raise ValueError("the time index does not increase")
        last_time, last_offset = time, offset
