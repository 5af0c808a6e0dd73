"""python -m bench: measures, prints a table, writes JSON and, on request, the page in docs/."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.document import read_runs, write_page
from bench.load import Load, Scale
from bench.loads import LOADS
from bench.report import as_json, busy, show, verdict, write_json
from bench.run import Result, run_load, steps
from bench.sides import Side, available
from bench.spark import close_stage

INTERRUPTED: Final = 130
"""The exit code of shells for a command that Ctrl-C has ended."""
SIDES: Final = "fencepost,kafka,kfake"
RESULTS: Final = Path(__file__).resolve().parent / "results"


def main() -> int:
    wishes = _arguments()
    console = Console(width=None if sys.stdout.isatty() else 200)
    if wishes.list:
        for load in LOADS:
            console.print(f"{load.name:26} {load.title}")
        return 0
    if wishes.page_from:
        for path in write_page(read_runs(wishes.page_from)):
            console.print(f"{path}")
        return 0
    return _measure(wishes, console)


def _measure(wishes: argparse.Namespace, console: Console) -> int:
    sides = available(wishes.sides.split(","), console.print)
    loads = _wanted(wishes)
    if not sides or not loads:
        console.print("nothing to measure: --list shows the loads")
        return 2
    if warning := busy():
        console.print(warning)
    scale = Scale(quick=wishes.quick, rounds=wishes.rounds)
    results: list[Result] = []

    def keep(result: Result) -> None:
        # After each load, so that an interrupted run keeps its results.
        results.append(result)
        write_json(wishes.json, as_json(results, sides, quick=scale.quick))

    # However the run ends, the brokers are stopped and the folders deleted.
    signal.signal(signal.SIGTERM, _interrupt)
    interrupted = False
    with ExitStack() as ends:
        for side in sides:
            ends.callback(side.close)
        ends.callback(close_stage)
        try:
            _run_all(loads, sides, scale, console, keep)
        except KeyboardInterrupt:
            interrupted = True
            console.print("interrupted: brokers stopped, data deleted")
    if results:
        _tell(results, sides, console)
        console.print(f"the numbers of every round are in {wishes.json}")
    if interrupted:
        return INTERRUPTED
    if wishes.write_docs:
        write_page(read_runs([wishes.json]))
    return 1 if wishes.strict and _has_missed(results) else 0


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _wanted(wishes: argparse.Namespace) -> list[Load]:
    """The loads that begin with one of the words; without words, those that fit into the run."""
    if wishes.only:
        return [load for load in LOADS if load.name.startswith(tuple(wishes.only))]
    return [load for load in LOADS if load.in_quick or not wishes.quick]


def _arguments() -> argparse.Namespace:
    stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%S")
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    add = parser.add_argument
    add("--quick", action="store_true", help="smaller and fewer rounds: about five minutes")
    add("--only", action="append", metavar="NAME", help="loads that begin with it")
    add("--sides", default=SIDES, help=f"default: {SIDES}")
    add("--rounds", type=int, metavar="N", help="rounds of every load, instead of its own number")
    add("--json", type=Path, default=RESULTS / f"{stamp}.json", metavar="FILE")
    add("--strict", action="store_true", help="fail when a target is missed")
    add("--list", action="store_true", help="show the loads and end")
    add(
        "--write-docs", action="store_true", help="put the figures into docs/performance-details.md"
    )
    add(
        "--page-from",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="measure nothing: write docs/performance-details.md from the JSON of these runs",
    )
    return parser.parse_args()


def _run_all(
    loads: list[Load],
    sides: list[Side],
    scale: Scale,
    console: Console,
    keep: Callable[[Result], None],
) -> None:
    """Runs each load, with a progress bar on a terminal and with lines elsewhere."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    total = sum(steps(load, sides, scale) for load in loads)
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=total)
        for load in loads:

            def progress(what: str, load: Load = load) -> None:
                bar.update(task, description=f"{load.name}: {what}", advance=1)
                if not console.is_terminal:
                    console.print(f"{load.name}: {what}")

            result = run_load(load, sides, scale, progress)
            keep(result)
            if not console.is_terminal:
                console.print(f"{load.name}: {result.seconds:.0f} s")


def _tell(results: list[Result], sides: list[Side], console: Console) -> None:
    show(results, sides, console)
    for result in results:
        if result.left_out:
            console.print(f"{result.load.name} was skipped: {result.left_out}", markup=False)
        for name, failure in result.failures.items():
            console.print(f"{name} failed at {result.load.name}: {failure}", markup=False)


def _has_missed(results: list[Result]) -> bool:
    missed = (verdict(r, m) not in ("", "yes") for r in results for m in r.load.measures)
    return any(missed) or any(result.failures for result in results)


if __name__ == "__main__":
    sys.exit(main())
