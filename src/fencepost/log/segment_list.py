"""The segments of a log, in the order of their offsets.

There is always at least one. The last one is active, and every other one ends where the next one
begins. A segment leaves the list before its files are deleted, and joins it after its file exists.
"""

from __future__ import annotations

from bisect import bisect_right

from fencepost.log.segment.reading import LogSlice, read_segment
from fencepost.log.segment.segment import Segment


class SegmentList:
    """Finds the segment of an offset; `all` changes in place."""

    __slots__ = ("_bases", "all")

    def __init__(self, segments: list[Segment]) -> None:
        assert segments, "a log has a segment to append to"
        self.all = segments
        self._bases = [segment.base_offset for segment in segments]

    @property
    def active(self) -> Segment:
        """The last segment."""
        return self.all[-1]

    @property
    def base_offset(self) -> int:
        """Where the first segment begins."""
        return self._bases[0]

    @property
    def size_bytes(self) -> int:
        """The size of all segments."""
        return sum(segment.size_bytes for segment in self.all)

    def at(self, offset: int) -> Segment:
        """The segment that contains an offset; the first one if the offset is before it."""
        return self.all[max(0, bisect_right(self._bases, offset) - 1)]

    def starting_at(self, offset: int) -> list[Segment]:
        """The segment that contains an offset, and all later ones."""
        return self.all[max(0, bisect_right(self._bases, offset) - 1) :]

    def read(
        self, offset: int, max_bytes: int, upper_offset: int, at_least_one: bool
    ) -> LogSlice | None:
        """Reads the segment with the offset, or the next one that has a batch after it."""
        first = max(0, bisect_right(self._bases, offset) - 1)
        for index in range(first, len(self.all)):
            found = read_segment(self.all[index], offset, max_bytes, upper_offset, at_least_one)
            if found is not None:
                return found
        return None

    def add(self, segment: Segment) -> None:
        """Adds the new active segment."""
        assert segment.base_offset > self._bases[-1], "base offsets increase"
        self.all.append(segment)
        self._bases.append(segment.base_offset)

    def remove_oldest(self, count: int) -> list[Segment]:
        """Removes and returns the oldest segments."""
        assert count < len(self.all), "the active segment stays"
        taken = self.all[:count]
        del self.all[:count]
        del self._bases[:count]
        return taken

    def holds(self, group: list[Segment]) -> bool:
        """Whether these segments are still sealed neighbours here."""
        if group[0] not in self.all or self.active in group:
            return False
        first = self.all.index(group[0])
        return self.all[first : first + len(group)] == group

    def replace(self, group: list[Segment], new: Segment) -> None:
        """Puts one segment in the place of neighbours."""
        first = self._bases.index(new.base_offset)
        assert self.all[first : first + len(group)] == group
        self.all[first : first + len(group)] = [new]
        self._bases[first : first + len(group)] = [new.base_offset]
