"""The answer to a request of the controller: its result, or what is known when its time is over.

A change is answered when every live broker has applied it. A broker that is stuck would hold it up,
so a client sets a timeout. When it is over, the client gets REQUEST_TIMED_OUT: the change is in the
log, and brokers will apply it, but not all of them have.

A single broker sets no deadlines: what its client would wait for is its own work.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, Generic, TypeVar

from fencepost.broker.runtime import TimerHandle, Timers

T = TypeVar("T")

TIMED_OUT: Final = "The change is decided, but not every broker has applied it in time."


class Answer(Generic[T]):
    """Calls back once; what comes later is dropped."""

    __slots__ = ("_done", "_timer")

    def __init__(self, done: Callable[[T], None]) -> None:
        self._done: Callable[[T], None] | None = done
        self._timer: TimerHandle | None = None

    def give(self, result: T) -> None:
        """Delivers the result, unless the time was over before."""
        done, self._done = self._done, None
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        if done is not None:
            done(result)

    def expire_after(self, timers: Timers, timeout_ms: int, late: Callable[[], T]) -> None:
        """Delivers what `late` returns when the time is over, unless there is a result by then."""
        if self._done is not None:
            self._timer = timers.call_later(max(0, timeout_ms), partial(self._expire, late))

    def _expire(self, late: Callable[[], T]) -> None:
        self._timer = None
        if self._done is not None:
            self.give(late())
