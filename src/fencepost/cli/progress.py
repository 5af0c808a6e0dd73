"""A progress line on standard error for commands that read much."""

from __future__ import annotations

import sys
import time
from typing import Final

_FIRST_SECONDS: Final = 1.0
"""A command that is done within this time says nothing."""
_EVERY_SECONDS: Final = 0.2
_EVERY_SECONDS_IN_A_FILE: Final = 5.0


class ProgressLine:
    """Reports how far a reader has come; on a terminal the line is overwritten."""

    def __init__(self) -> None:
        self._next = time.monotonic() + _FIRST_SECONDS
        self._is_terminal = sys.stderr.isatty()
        self._width = 0

    def __call__(self, what: str, offset: int, end: int) -> None:
        """Shows a position, if it is time to."""
        self.show(f"reading {what}, offset {offset:,} of {end:,}")

    def show(self, what: str) -> None:
        """Shows what is being done, if it is time to."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + (_EVERY_SECONDS if self._is_terminal else _EVERY_SECONDS_IN_A_FILE)
        line = f"fencepost: {what}"
        if self._is_terminal:
            print(f"\r{line:<{self._width}}", end="", file=sys.stderr, flush=True)
            self._width = len(line)
        else:
            print(line, file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Removes the line from a terminal."""
        if self._width:
            print(f"\r{'':<{self._width}}\r", end="", file=sys.stderr, flush=True)
            self._width = 0
