"""A live screen on a terminal: drawn again at each interval, until q or Ctrl-C.

It uses the alternate screen, so that the terminal looks afterwards as it did before. Keys are read
without echo and without waiting for Enter; Ctrl-C keeps its meaning. However it ends, the terminal
is restored.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

WIDE: Final = 1_000
"""Columns of a file or pipe: nothing is shortened there."""

QUIT: Final = b"qQ\x04"
"""q, and Ctrl-D."""


def console() -> Console:
    """Returns a console as wide as the terminal, or as the text in a file or pipe."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else WIDE, highlight=False)


def run_live(shown: Console, draw: Callable[[], RenderableType], interval_seconds: float) -> None:
    """Draws until the user quits."""
    from rich.live import Live

    with (
        _ending_on_sigterm(),
        _keys() as is_quit,
        Live(console=shown, screen=True, auto_refresh=False) as live,
    ):
        while True:
            due = time.monotonic() + interval_seconds
            live.update(draw(), refresh=True)
            if is_quit(due):
                return


@contextmanager
def _ending_on_sigterm() -> Iterator[None]:
    """SIGTERM ends the command as Ctrl-C does, so that the terminal is restored."""

    def end(number: int, _frame: object) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _keys() -> Iterator[Callable[[float], bool]]:
    """Yields a function that waits until a time; it returns whether the user quits before."""
    if not sys.stdin.isatty():
        yield _wait_until
        return
    import termios
    import tty

    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal, termios.TCSADRAIN)  # Keys that were pressed before count.
    try:
        yield partial(_read_keys, terminal)
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _wait_until(due: float) -> bool:
    time.sleep(max(0.0, due - time.monotonic()))
    return False


def _read_keys(terminal: int, due: float) -> bool:
    while select.select([terminal], [], [], max(0.0, due - time.monotonic()))[0]:
        keys = os.read(terminal, 1024)
        if not keys or any(key in QUIT for key in keys):  # Nothing: the terminal is gone.
            return True
    return False
