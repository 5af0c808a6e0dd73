"""The segments whose files are open at the moment, over all logs that share this object.

A broker holds thousands of partitions and may have far fewer files open, so no segment keeps its
file for good. Both kinds open theirs when they need it, and give it back when others need theirs:

- sealed segments, which are only read: the least recently used goes first, and its index with it,
  because there are few of them and an index costs memory;
- growing segments, one per log: the file alone is closed, their index exists nowhere else. Appends
  are many, so they do not move a segment in a list. Each leaves a mark (`was_used`), and whoever
  looks for a file to close passes over the segments that have one and takes it away (second
  chance).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, Protocol

DEFAULT_OPEN_SEGMENTS: Final = 64
DEFAULT_GROWING_FILES: Final = 4_000


class Closable(Protocol):
    """What can give back its file and its index, and open them again by itself."""

    was_used: bool

    def release(self) -> None: ...

    def release_file(self) -> None: ...


class OpenSegments:
    """How many files may be open, and which one is closed for another."""

    __slots__ = ("_growing", "_growing_limit", "_limit", "_open")

    def __init__(
        self, limit: int = DEFAULT_OPEN_SEGMENTS, growing: int = DEFAULT_GROWING_FILES
    ) -> None:
        assert limit > 0
        assert growing > 0
        self._limit = limit
        self._growing_limit = growing
        self._open: OrderedDict[Closable, None] = OrderedDict()
        self._growing: OrderedDict[Closable, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open) + len(self._growing)

    def use(self, segment: Closable) -> None:
        """The sealed segment was just used; another may be closed for it."""
        self._open[segment] = None
        self._open.move_to_end(segment)
        if len(self._open) > self._limit:
            self._open.popitem(last=False)[0].release()

    def grow(self, segment: Closable) -> None:
        """The growing segment is about to open its file; another's may be closed for it."""
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
        """The system has no descriptor left: closes half of what is open.

        False when there is nothing to close.
        """
        if not self._open and not self._growing:
            return False
        for _ in range((len(self._growing) + 1) // 2):
            self._close_one()
        for _ in range((len(self._open) + 1) // 2):
            self._open.popitem(last=False)[0].release()
        return True

    def forget(self, segment: Closable) -> None:
        """The segment is closed, deleted or about to change its kind."""
        self._open.pop(segment, None)
        self._growing.pop(segment, None)
