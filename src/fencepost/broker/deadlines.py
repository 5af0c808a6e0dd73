"""Deadlines that are all the same time ahead, with one timer for all of them.

Nearly every request that has a deadline is answered long before it. A timer of the loop for each
would cost more than the rest of the waiting. All deadlines here have the same length, so they come
due in the order in which they were set: one timer for the oldest is enough. It is not cancelled
with its deadline; it looks which one is the oldest when it fires.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fencepost.broker.runtime import Runtime


class Deadlines:
    """Calls back what was not cancelled within a time."""

    def __init__(self, runtime: Runtime, delay_ms: int) -> None:
        self._runtime: Final = runtime
        self._delay_ms: Final = delay_ms
        self._last_token = 0
        self._waiting: dict[int, tuple[int, Callable[[], None]]] = {}
        """By token, in the order of their deadlines, each with its time."""
        self._has_timer = False

    def set(self, callback: Callable[[], None]) -> int:
        """Calls back after the time, unless the token that it returns is cancelled before."""
        self._last_token += 1
        self._waiting[self._last_token] = self._runtime.steady_ms() + self._delay_ms, callback
        if not self._has_timer:
            self._has_timer = True
            self._runtime.call_later(self._delay_ms, self._look)
        return self._last_token

    def cancel(self, token: int) -> None:
        """Does nothing if the deadline has passed."""
        self._waiting.pop(token, None)

    def _look(self) -> None:
        now_ms = self._runtime.steady_ms()
        while self._waiting:
            token = next(iter(self._waiting))
            due_ms, callback = self._waiting[token]
            if due_ms > now_ms:
                self._runtime.call_later(due_ms - now_ms, self._look)
                return
            del self._waiting[token]
            callback()
        self._has_timer = False
