"""Memory budgets that all connections share: how much is taken, and who waits for some.

A bound per connection does not bound a hundred of them. So two budgets cover all connections:

- replies that clients have not read (`queued.max.response.bytes`). Only the broker's own memory
  counts; a view of a file in the page cache is free;
- large requests, from their first bytes until they have taken effect
  (`queued.max.request.bytes`).

A budget may be overdrawn once: the size of a reply is known only when it has been built. A
connection that needs memory checks `is_full` first, and waits with `when_free` if it is. Small
requests take nothing from a budget, so waiting connections do not hold them up.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from fencepost.base.limits import LEAST_REPLY_BYTES, SHARE_OF_MEMORY

Callback = Callable[[], None]

NO_LIMIT: Final = 2**62

MUCH_BYTES: Final = 64 * 1024 * 1024
LITTLE_BYTES: Final = 4 * 1024 * 1024
CALLBACKS_PER_TURN: Final = 16
"""Waiting connections that are called back in one turn of the loop: each builds a reply or reads a
request."""


class MemoryBudget:
    """One of the two budgets; see the module's docstring."""

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
        """A limit of 0 or less means no limit, as in Kafka."""
        self.limit_bytes = limit_bytes
        self.taken_bytes = 0
        self.on_wait: Callback | None = None
        """Called when a connection begins to wait."""
        self.on_emptied: Callback | None = None
        """Called when nearly all of a large amount has been given back."""
        self._most_bytes = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: OrderedDict[Callback, None] = OrderedDict()
        self._is_serving = False

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Sets the loop that calls back those who wait."""
        self._loop = loop

    def __repr__(self) -> str:
        return (
            f"MemoryBudget({self.taken_bytes} of {self.limit_bytes} bytes, "
            f"{len(self._waiting)} wait)"
        )

    @property
    def is_full(self) -> bool:
        """Whether nothing is left."""
        return self.taken_bytes >= self.limit_bytes > 0

    def share(self) -> int:
        """How much one more reply may take, leaving some for others; 0 when nothing is left."""
        if self.limit_bytes <= 0:
            return NO_LIMIT
        if self.is_full:
            return 0
        return max(LEAST_REPLY_BYTES, (self.limit_bytes - self.taken_bytes) // SHARE_OF_MEMORY)

    @property
    def is_waited_for(self) -> bool:
        """Whether a connection waits for memory."""
        return bool(self._waiting)

    def take(self, size_bytes: int) -> None:
        """Counts memory that is now in use."""
        self.taken_bytes += size_bytes
        if self.taken_bytes > self._most_bytes:
            self._most_bytes = self.taken_bytes

    def give(self, size_bytes: int) -> None:
        """Gives memory back; those who wait are called in the next turn of the loop."""
        self.taken_bytes -= size_bytes
        assert self.taken_bytes >= 0, "more was given back than was taken"
        if self._most_bytes >= MUCH_BYTES and self.taken_bytes <= LITTLE_BYTES:
            self._most_bytes = 0
            if self.on_emptied is not None:
                self.on_emptied()
        if self._waiting and not self.is_full:
            self._serve_soon()

    def when_free(self, callback: Callback) -> None:
        """Calls back once when there is memory, in the order of the calls."""
        self._waiting[callback] = None
        if not self.is_full:
            self._serve_soon()
        elif self.on_wait is not None:
            self.on_wait()

    def forget(self, callback: Callback) -> None:
        """Stops waiting with this callback."""
        self._waiting.pop(callback, None)

    def _serve_soon(self) -> None:
        if not self._is_serving and self._loop is not None:
            self._is_serving = True
            self._loop.call_soon(self._serve)

    def _serve(self) -> None:
        self._is_serving = False
        for _ in range(CALLBACKS_PER_TURN):
            if not self._waiting or self.is_full:
                return
            callback, _nothing = self._waiting.popitem(last=False)
            callback()
        if self._waiting:
            self._serve_soon()
