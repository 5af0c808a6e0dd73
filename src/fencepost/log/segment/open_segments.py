"""Limits the open segment files of all logs that share this object.

A broker has thousands of partitions and may open far fewer files. A segment opens its file on
demand, and another segment's file may be closed for it:

- sealed segments, which are only read: the least recently used one is closed, and its index is
  dropped, because an index costs memory;
- growing segments, one per log: only the file is closed, because their index is only in memory.
  Appends are frequent, so an append only sets a mark (`was_used`). The search for a file to close
  clears the marks and chooses the first segment without one (second chance).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from fencepost.log.segment.segment import Segment

DEFAULT_OPEN_SEGMENTS: Final = 64
DEFAULT_GROWING_FILES: Final = 4_000


class OpenSegments:
    """Keeps the number of open files below the limits."""

    __slots__ = ("_growing", "_growing_limit", "_limit", "_open")

    def __init__(
        self, limit: int = DEFAULT_OPEN_SEGMENTS, growing: int = DEFAULT_GROWING_FILES
    ) -> None:
        assert limit > 0
        assert growing > 0
        self._limit = limit
        self._growing_limit = growing
        self._open: OrderedDict[Segment, None] = OrderedDict()
        self._growing: OrderedDict[Segment, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open) + len(self._growing)

    def use(self, segment: Segment) -> None:
        """Notes the use of a sealed segment; may close another."""
        self._open[segment] = None
        self._open.move_to_end(segment)
        if len(self._open) > self._limit:
            self._open.popitem(last=False)[0].release()

    def grow(self, segment: Segment) -> None:
        """Notes that a growing segment opens its file; may close another's."""
        if segment not in self._growing:
            while len(self._growing) >= self._growing_limit:
                self._close_one()
            self._growing[segment] = None

    def _close_one(self) -> None:
        growing = self._growing
        for _ in range(len(growing)):
            segment, _ = growing.popitem(last=False)
            if not segment.was_used:
                segment.release_file()
                return
            segment.was_used = False
            growing[segment] = None
        growing.popitem(last=False)[0].release_file()

    def make_room(self) -> bool:
        """Closes half of the open files, when the system has no descriptor left; False if none."""
        if not self._open and not self._growing:
            return False
        for _ in range((len(self._growing) + 1) // 2):
            self._close_one()
        for _ in range((len(self._open) + 1) // 2):
            self._open.popitem(last=False)[0].release()
        return True

    def forget(self, segment: Segment) -> None:
        """Removes a segment that is closed, deleted, activated or sealed."""
        self._open.pop(segment, None)
        self._growing.pop(segment, None)
