"""The longest stall of the event loop: how late a timer was.

A timer every 20 ms costs a few microseconds each and no more. A stall shows as the lateness of the
timer that it held up, so it is reported up to 20 ms too short, and stalls far below that are not
seen at all.
"""

from __future__ import annotations

import asyncio
from typing import Final

LOOK_SECONDS: Final = 0.02


class StallWatch:
    """Watches one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._longest = 0.0
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Starts looking."""
        self._schedule()

    def stop(self) -> None:
        """Stops looking."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def read_longest(self) -> float:
        """The longest stall since the last call, in seconds."""
        longest, self._longest = self._longest, 0.0
        return longest

    def _schedule(self) -> None:
        self._due = self._loop.time() + LOOK_SECONDS
        self._timer = self._loop.call_at(self._due, self._look)

    def _look(self) -> None:
        self._longest = max(self._longest, self._loop.time() - self._due)
        self._schedule()
