"""Where progress is shown: a table in a terminal, lines in a file, or the cell of a notebook.

    terminal  drawn four times a second by a thread of rich, whatever the events do
    lines     one per query when it starts and ends, and in between at most one per interval
    notebook  one cell output, replaced at most twice a second

IPython is not a dependency: there is a notebook only if the program runs in one, and then IPython
is loaded.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TextIO

from fencepost.spark.progress.board import QueryStatus
from fencepost.spark.progress.words import html_of, line_of, table_of

if TYPE_CHECKING:
    from rich.console import Group

NOTEBOOK_SECONDS: Final = 0.5
LINE_SECONDS: Final = 10.0
_REFRESHES_PER_SECOND: Final = 4

Snapshot = Callable[[], Sequence[QueryStatus]]


class TerminalScreen:
    """A table that is updated in place. It stays when it is closed."""

    def __init__(self, snapshot: Snapshot, output: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        self._snapshot = snapshot
        self._console = Console(file=output, highlight=False)
        self._live = Live(
            console=self._console,
            get_renderable=self._draw,
            refresh_per_second=_REFRESHES_PER_SECOND,
            # What the program prints appears above the table; but what goes to a file stays there.
            redirect_stdout=sys.stdout.isatty(),
            redirect_stderr=sys.stderr.isatty(),
        )

    def open(self) -> None:
        self._live.start()

    def update(self, status: QueryStatus) -> None:
        """Nothing to do: it is drawn anyway."""

    def close(self) -> None:
        self._live.stop()

    def _draw(self) -> Group:
        return table_of(self._snapshot(), max(3, self._console.height - 1))


class LineScreen:
    """One line per query and interval."""

    def __init__(
        self,
        snapshot: Snapshot,
        output: TextIO,
        interval_seconds: float = LINE_SECONDS,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._snapshot = snapshot
        self._output = output
        self._interval = interval_seconds
        self._seconds = seconds
        self._shown: dict[str, tuple[float, QueryStatus]] = {}

    def open(self) -> None:
        for status in self._snapshot():
            self.update(status)

    def update(self, status: QueryStatus) -> None:
        at, before = self._shown.get(status.query_id, (0.0, None))
        is_new = before is None or before.run_id != status.run_id
        is_over = before is not None and status.state.is_over and not before.state.is_over
        if is_new or is_over or self._seconds() - at >= self._interval:
            self._print(status)

    def close(self) -> None:
        """Shows what has changed since the last lines."""
        for status in self._snapshot():
            _, before = self._shown.get(status.query_id, (0.0, None))
            if before != status:
                self._print(status)

    def _print(self, status: QueryStatus) -> None:
        self._shown[status.query_id] = (self._seconds(), status)
        moment = datetime.fromtimestamp(status.updated_ms / 1_000).astimezone()
        print(f"{moment:%H:%M:%S} {line_of(status)}", file=self._output, flush=True)


class NotebookScreen:
    """One cell output. `display` is IPython's function."""

    def __init__(
        self,
        snapshot: Snapshot,
        display: Callable[..., Any],
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._snapshot = snapshot
        self._display = display
        self._seconds = seconds
        self._handle: Any = None
        self._shown = 0.0

    def _repr_html_(self) -> str:
        return html_of(self._snapshot())

    def open(self) -> None:
        self._handle = self._display(self, display_id=True)

    def update(self, status: QueryStatus) -> None:
        now = self._seconds()
        if status.state.is_over or now - self._shown >= NOTEBOOK_SECONDS:
            self._shown = now
            self._draw()

    def close(self) -> None:
        self._draw()

    def _draw(self) -> None:
        if self._handle is not None:
            self._handle.update(self)


Screen = TerminalScreen | LineScreen | NotebookScreen
"""Shows the queries. Spark's thread calls `update`: it must be quick."""


def choose_screen(snapshot: Snapshot, output: TextIO, interval_seconds: float) -> Screen:
    """A notebook's cell if there is one, else a table or lines, depending on the output."""
    if (display := _notebook_display()) is not None:
        return NotebookScreen(snapshot, display)
    if output.isatty():
        return TerminalScreen(snapshot, output)
    return LineScreen(snapshot, output, interval_seconds)


def _notebook_display() -> Callable[..., Any] | None:
    """IPython's `display` if this is a notebook: a kernel, and not IPython in a terminal."""
    module: Any = sys.modules.get("IPython")
    shell = None if module is None else module.get_ipython()
    if shell is None or not hasattr(shell, "kernel"):
        return None
    from IPython.display import display  # type: ignore[import-not-found]

    found: Callable[..., Any] = display
    return found
