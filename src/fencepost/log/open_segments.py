"""The few sealed segments that are open at the moment, over all logs that share this object.

A broker holds thousands of partitions, each with one active segment that must stay open; the older ones are
opened when somebody reads them and closed when others are read more.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, Protocol

DEFAULT_OPEN_SEGMENTS: Final = 64


class Closable(Protocol):
    """What can give back its file and its index, and open them again by itself."""

    def release(self) -> None: ...


class OpenSegments:
    """Least recently used goes first."""

    __slots__ = ("_limit", "_open")

    def __init__(self, limit: int = DEFAULT_OPEN_SEGMENTS) -> None:
        assert limit > 0
        self._limit = limit
        self._open: OrderedDict[Closable, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def use(self, segment: Closable) -> None:
        """The segment was just used; another may be closed for it."""
        self._open[segment] = None
        self._open.move_to_end(segment)
        if len(self._open) > self._limit:
            self._open.popitem(last=False)[0].release()

    def forget(self, segment: Closable) -> None:
        """The segment is closed, deleted or active now: it is no business of ours any more."""
        self._open.pop(segment, None)
