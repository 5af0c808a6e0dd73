"""An asyncio loop that never waits: when nothing is ready, its clock jumps to the next timer.

Work for threads runs in a turn of the loop, so every run of a test is the same. No outside event
can wake the loop, so it fails if it is asked to continue without a timer.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

T = TypeVar("T")


class _NeverWaits(selectors.BaseSelector):
    """The real selector, which never blocks."""

    def __init__(self, pass_time: Callable[[float | None], None]) -> None:
        self._real = selectors.DefaultSelector()
        self._pass_time = pass_time

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.modify(fileobj, events, data)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = self._real.select(0)
        if not found and timeout != 0:
            self._pass_time(timeout)
        return found

    def close(self) -> None:
        self._real.close()

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return cast("Mapping[Any, selectors.SelectorKey]", self._real.get_map())


class VirtualLoop(asyncio.SelectorEventLoop):
    """See the module's docstring."""

    def __init__(self) -> None:
        self._virtual_seconds = 0.0
        super().__init__(_NeverWaits(self._pass_time))

    def time(self) -> float:
        return self._virtual_seconds

    def _pass_time(self, seconds: float | None) -> None:
        assert seconds is not None, "the loop would wait forever"
        self._virtual_seconds += seconds

    def run_in_executor(  # type: ignore[override]
        self, executor: object, function: Callable[..., T], *arguments: Any
    ) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self.create_future()

        def run() -> None:
            if future.cancelled():
                return
            try:
                future.set_result(function(*arguments))
            except Exception as problem:  # noqa: BLE001 - passed on through the future.
                future.set_exception(problem)

        self.call_soon(run)
        return future

    def turn(self) -> None:
        """Runs what is ready now, and nothing else."""
        self.call_soon(self.stop)
        self.run_forever()

    def settle(self) -> None:
        """Runs until nothing is ready or due; no time passes."""
        self.turn()
        while self._ready or self._is_due():  # type: ignore[attr-defined]
            self.turn()

    def _is_due(self) -> bool:
        timers = self._scheduled  # type: ignore[attr-defined]
        return bool(timers) and timers[0].when() <= self._virtual_seconds
