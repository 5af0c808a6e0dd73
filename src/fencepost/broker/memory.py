"""Memory that all connections share: how much of it is taken, and who waits for some.

A bound per connection says nothing about a hundred of them. So there are two rooms for all
together:

- replies that clients have not read (`queued.max.response.bytes`). What counts is memory of our
  own; a view of a file in the page cache costs none;
- requests that are large, from their first part on until they have taken effect
  (`queued.max.request.bytes`).

A room may be overdrawn by the one who takes the last of it: to know the size of a reply one has to
make it. Whoever needs memory asks `is_full` first and otherwise waits for its turn with
`when_free`. Nobody who waits holds up small requests: these ask for no room.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from fencepost.base.limits import LEAST_REPLY_BYTES, SHARE_OF_ROOM

Callback = Callable[[], None]

NO_LIMIT: Final = 2**62

MUCH_BYTES: Final = 64 * 1024 * 1024
LITTLE_BYTES: Final = 4 * 1024 * 1024
TURNS_AT_ONCE: Final = 16
"""Who waited makes a reply or reads a request when it gets its turn: so many of them in one turn of
the loop."""


class Room:
    """One of the two; see the module's docstring."""

    __slots__ = (
        "_is_serving",
        "_loop",
        "_most_bytes",
        "_waiting",
        "limit_bytes",
        "on_emptied",
        "on_wait",
        "taken_bytes",
    )

    def __init__(self, limit_bytes: int) -> None:
        """A limit of 0 or less is none, as in Kafka."""
        self.limit_bytes = limit_bytes
        self.taken_bytes = 0
        self.on_wait: Callback | None = None
        """Called when somebody begins to wait."""
        self.on_emptied: Callback | None = None
        """Called when much was taken and nearly all of it has been given back."""
        self._most_bytes = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: OrderedDict[Callback, None] = OrderedDict()
        self._is_serving = False

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def __repr__(self) -> str:
        return f"Room({self.taken_bytes} of {self.limit_bytes} bytes, {len(self._waiting)} wait)"

    @property
    def is_full(self) -> bool:
        return self.taken_bytes >= self.limit_bytes > 0

    def share(self) -> int:
        """What one more reply may take, so that others find some too; 0 where there is none."""
        if self.limit_bytes <= 0:
            return NO_LIMIT
        if self.is_full:
            return 0
        return max(LEAST_REPLY_BYTES, (self.limit_bytes - self.taken_bytes) // SHARE_OF_ROOM)

    @property
    def is_waited_for(self) -> bool:
        return bool(self._waiting)

    def take(self, size_bytes: int) -> None:
        self.taken_bytes += size_bytes
        if self.taken_bytes > self._most_bytes:
            self._most_bytes = self.taken_bytes

    def give(self, size_bytes: int) -> None:
        """Gives back what was taken; those who wait get their turns in the next turn of the loop."""
        self.taken_bytes -= size_bytes
        assert self.taken_bytes >= 0, "more was given back than was taken"
        if self._most_bytes >= MUCH_BYTES and self.taken_bytes <= LITTLE_BYTES:
            self._most_bytes = 0
            if self.on_emptied is not None:
                self.on_emptied()
        if self._waiting and not self.is_full:
            self._serve_soon()

    def when_free(self, callback: Callback) -> None:
        """Calls back once when there is room; those who came first are called first."""
        self._waiting[callback] = None
        if not self.is_full:
            self._serve_soon()
        elif self.on_wait is not None:
            self.on_wait()

    def forget(self, callback: Callback) -> None:
        """Whoever waited with it does not any more."""
        self._waiting.pop(callback, None)

    def _serve_soon(self) -> None:
        if not self._is_serving and self._loop is not None:
            self._is_serving = True
            self._loop.call_soon(self._serve)

    def _serve(self) -> None:
        self._is_serving = False
        for _ in range(TURNS_AT_ONCE):
            if not self._waiting or self.is_full:
                return
            callback, _nothing = self._waiting.popitem(last=False)
            callback()
        if self._waiting:
            self._serve_soon()
