"""Notices that this process stood still (SIGSTOP, a suspended machine), before it reads requests.

A request that a client sent before the standstill may be stale: the client has given up on it, and
has done something else since. A delayed EndTxn, for instance, could end the next transaction of the
same producer (KAFKA-17754). So every connection from before the standstill is closed, and so are
those that waited to be accepted. Clients connect again and repeat what they still want.

A timer looks at the clock several times a second. On waking, the loop runs due timers before it
reads sockets (uvloop) or before it serves what it has read (asyncio).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

LOOK_SECONDS: Final = 0.25
STOOD_STILL_SECONDS: Final = 1.0
"""A gap between two looks beyond which the process must have stood still."""

BACKLOG_SECONDS: Final = 0.1
"""For how long after a standstill new connections are taken for those that waited in it."""


class Standstill:
    """Looks for gaps in the time of one loop."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, on_gap: Callable[[float, float], None]
    ) -> None:
        """`on_gap` gets the length of a gap, and the time until which connections are stale."""
        self._loop = loop
        self._on_gap = on_gap
        self._looked = loop.time()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Starts looking."""
        self._looked = self._loop.time()
        self._timer = self._loop.call_later(LOOK_SECONDS, self._look)

    def stop(self) -> None:
        """Stops looking."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        before, self._looked = self._looked, self._loop.time()
        gap = self._looked - before
        if gap >= STOOD_STILL_SECONDS:
            self._on_gap(gap, self._looked + BACKLOG_SECONDS)
        self._timer = self._loop.call_later(LOOK_SECONDS, self._look)
