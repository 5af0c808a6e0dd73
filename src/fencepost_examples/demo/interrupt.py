"""Ctrl-C at any time: raises at once, or at the end of a shielded part."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType
from typing import Any, Final, Self

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """The user or the system asked the demo to stop."""


class Interruption:
    """Handles the signals while its `with` block runs."""

    def __init__(self) -> None:
        self._shields = 0
        self.is_requested = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in SIGNALS:
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextlib.contextmanager
    def shield(self) -> Iterator[None]:
        """Shields a part that must not be interrupted: a start, or the clean-up."""
        self._shields += 1
        try:
            yield
        finally:
            self._shields -= 1
        self._raise_if_requested()

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self.is_requested = True
        self._raise_if_requested()

    def _raise_if_requested(self) -> None:
        if self.is_requested and not self._shields:
            # Only once: the clean-up must not be interrupted.
            self._shields += 1
            raise Interrupted
