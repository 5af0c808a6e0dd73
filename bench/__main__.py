"""python -m bench: measures, shows a table, writes JSON."""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.load import Load, Scale
from bench.loads import LOADS
from bench.report import as_json, busy, show, verdict, write_json
from bench.run import Result, run_load, steps
from bench.sides import Side, available

RESULTS = Path(__file__).resolve().parent / "results"


def main() -> int:
    wishes = _arguments()
    console = Console(width=None if sys.stdout.isatty() else 170)
    if wishes.list:
        for load in LOADS:
            console.print(f"{load.name:20} {load.title}")
        return 0
    sides = available(wishes.sides.split(","), console.print)
    loads = [
        load for load in LOADS if any(load.name.startswith(word) for word in wishes.only or [""])
    ]
    if not sides or not loads:
        console.print("nothing to measure")
        return 2
    if warning := busy():
        console.print(warning)
    scale = Scale(quick=wishes.quick)
    results = _run_all(loads, sides, scale, console)
    show(results, sides, console)
    for result in results:
        for name, failure in result.failures.items():
            console.print(f"{name} failed at {result.load.name}: {failure}", markup=False)
    write_json(wishes.json, as_json(results, sides, quick=scale.quick))
    console.print(f"the numbers of every round are in {wishes.json}")
    missed = any(verdict(r, m) not in ("", "yes") for r in results for m in r.load.measures)
    return 1 if wishes.strict and (missed or any(r.failures for r in results)) else 0


def _arguments() -> argparse.Namespace:
    stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%S")
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller and fewer rounds")
    parser.add_argument("--only", action="append", metavar="NAME", help="loads that begin with it")
    parser.add_argument("--sides", default="fencepost,kafka", help="default: fencepost,kafka")
    parser.add_argument("--json", type=Path, default=RESULTS / f"{stamp}.json", metavar="FILE")
    parser.add_argument("--strict", action="store_true", help="fail when a target is missed")
    parser.add_argument("--list", action="store_true", help="show the loads and end")
    return parser.parse_args()


def _run_all(loads: list[Load], sides: list[Side], scale: Scale, console: Console) -> list[Result]:
    """Runs each load, with a bar at a terminal and with lines anywhere else."""
    results = []
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

            results.append(run_load(load, sides, scale, progress))
    return results


if __name__ == "__main__":
    sys.exit(main())
