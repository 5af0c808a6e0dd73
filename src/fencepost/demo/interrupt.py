"""Ctrl-C at any moment.

It raises where the program is, except in a shielded part, which is finished first.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType
from typing import Any, Final, Self

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """Somebody wants us to stop."""


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
        """A part that must not be left half done: a start, or the end."""
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
            # Once: the way out must not be interrupted again.
            self._shields += 1
            raise Interrupted
