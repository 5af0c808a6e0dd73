"""Output during the run: progress bars on a terminal, plain lines in a pipe or file."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from rich.progress import TaskID

LINE_EVERY_SECONDS: Final = 10
STANDSTILL_EVERY_SECONDS: Final = 60
"""How often to repeat a progress line without progress."""


class Clock:
    """The time since the start of the demo."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started

    def __str__(self) -> str:
        minutes, seconds = divmod(int(self.seconds), 60)
        return f"{minutes}:{seconds:02}"


class Lines:
    """For a pipe, a file or a log: a line per event, and progress from time to time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._next = 0.0
        self._said_at = 0.0
        self._decided: Mapping[str, int] = {}
        self._phase = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def say(self, text: str) -> None:
        """Shows an event."""
        print(f"{self._clock!s:>5}  {text}", flush=True)

    def progress(self, decided: Mapping[str, int], total: int) -> None:
        """Shows how many settlements each query has decided."""
        now = self._clock.seconds
        is_old = now >= self._said_at + STANDSTILL_EVERY_SECONDS
        if now < self._next or (decided == self._decided and not is_old):
            return
        self._next, self._said_at, self._decided = now + LINE_EVERY_SECONDS, now, dict(decided)
        sides = ", ".join(f"{_words(side)} {count:,}" for side, count in decided.items())
        self.say(f"decided of {total:,}: {sides}")

    def phase(self, text: str) -> None:
        """Shows the current phase."""
        if text != self._phase:
            self._phase = text
            self.say(text)


class Bars:
    """For a terminal: events scroll above one bar per query and the current phase."""

    def __init__(self, clock: Clock) -> None:
        from rich.console import Console, Group
        from rich.live import Live
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.spinner import Spinner

        self._clock = clock
        self._console = Console(highlight=False)
        self._bars = Progress(
            TextColumn("{task.description:<14}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("settlements"),
            expand=True,
        )
        self._spinner = Spinner("line")
        self._live = Live(
            Group(self._bars, self._spinner),
            console=self._console,
            refresh_per_second=8,
            transient=True,
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def say(self, text: str) -> None:
        from rich.markup import escape

        self._console.print(f"[dim]{self._clock!s:>5}[/]  {escape(text)}")

    def progress(self, decided: Mapping[str, int], total: int) -> None:
        for side, count in decided.items():
            if side not in self._tasks:
                self._tasks[side] = self._bars.add_task(_words(side), total=total)
            self._bars.update(self._tasks[side], completed=count)

    def phase(self, text: str) -> None:
        self._spinner.update(text=f"{text} ...")


def _words(side: str) -> str:
    return side.replace("-", " ")


Display = Bars | Lines
"""Shows the progress of the demo."""


def display(clock: Clock) -> Display:
    """Returns the display for a terminal or for a file."""
    return Bars(clock) if sys.stdout.isatty() else Lines(clock)
