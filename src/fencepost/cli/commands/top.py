"""`fencepost top`: a live screen of the transactions of a cluster."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fencepost.base.failures import FencepostError
from fencepost.cli.connection import AsJson, Connection, connected
from fencepost.cli.limits import duration_option
from fencepost.cli.output import output

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fencepost.forensics.top import Watch

LEAST_INTERVAL_MS = 100


@connected
def top(
    connection: Connection,
    interval: Annotated[
        int,
        duration_option("Time between two looks.  [default: 1s]"),
    ] = "1s",  # type: ignore[assignment] # the parser makes it a number
    once: Annotated[bool, typer.Option("--once", help="One frame, after one interval.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what transactions do now: states, commits per second, the oldest, pinned partitions.

    Works on fencepost and Apache Kafka. q or Ctrl-C ends it. With --json, one line per interval.
    Commits per second and their latency need READ on __transaction_state.

    Example: fencepost top --interval 2s
    """
    from fencepost.forensics.top import Watch

    if interval < LEAST_INTERVAL_MS:
        raise FencepostError(f"--interval is too short: use {LEAST_INTERVAL_MS}ms or more.")
    seconds = interval / 1000
    title = f"fencepost top {connection.servers}"
    with connection.open(long_running=True) as cluster:
        watch = Watch(cluster)
        time.sleep(seconds)  # Rates need some time to be about.
        if as_json:
            output(as_json=True).stream(_rows(watch, seconds, once=once), ())
        elif once or not sys.stdout.isatty():
            _print_frames(watch, title, seconds, once=once)
        else:
            _run_live(watch, f"{title}  (q quits)", seconds)


def _rows(watch: Watch, seconds: float, *, once: bool) -> Iterator[dict[str, Any]]:
    from fencepost.cli.top_screen import frame_row

    while True:
        due = time.monotonic() + seconds
        yield frame_row(watch.look())
        if once:
            return
        time.sleep(max(0.0, due - time.monotonic()))


def _print_frames(watch: Watch, title: str, seconds: float, *, once: bool) -> None:
    from fencepost.cli.live import console
    from fencepost.cli.top_screen import screen

    shown = console()
    while True:
        shown.print(screen(watch.look(), title, shown.width, height=None))
        if once:
            return
        shown.print()
        time.sleep(seconds)


def _run_live(watch: Watch, title: str, seconds: float) -> None:
    from rich.console import Group
    from rich.text import Text

    from fencepost.cli.live import console, run_live
    from fencepost.cli.top_screen import screen

    shown = console()
    last: RenderableType = Text(title, style="bold")

    def draw() -> RenderableType:
        nonlocal last
        try:
            last = screen(watch.look(), title, shown.width, shown.height)
        except FencepostError as problem:
            # The brokers may come back; what was seen last stays on the screen.
            return Group(Text(f"! {problem}", style="red"), last)
        return last

    run_live(shown, draw, seconds)
