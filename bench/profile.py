"""Profiles of a commit and of a megabyte in the broker.

By Python function (cProfile), by system call if strace is installed, and by function of machine
code, the kernel's included, if perf is installed and permitted. cProfile does not see compiled
code: of a compiled fencepost (`FENCEPOST_SRC`, see `sides.py`) it shows the interpreted part, and
perf the rest.

The load comes from our generator with many producers, so that the broker is always busy. cProfile
and strace slow everything down, small frequent calls most of all: read the shares and counts, and
take times from `make bench`.
"""

from __future__ import annotations

import argparse
import io
import os
import pstats
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.client import RECORD_BYTES
from bench.generate import generate
from bench.sides import Broker, fencepost_python
from tools.fencepost_process import FencepostProcess
from tools.processes import DiedEarlyError, free_port

MEGABYTES: Final = 1000
COMMIT_SECONDS: Final = 5.0
PRODUCERS: Final = 16
SHOWN: Final = 30
SHOWN_CALLS: Final = 12
SHOWN_SYMBOLS: Final = 25
SAMPLES_PER_SECOND: Final = 997


@dataclass(frozen=True, slots=True)
class Work:
    """One operation, many times."""

    what: str
    run: Callable[[Broker], float]
    """Runs it and returns the count."""


def _megabytes(broker: Broker) -> float:
    """Batches of 1,000 records of 1 KB with acks=1."""
    figures = generate(
        broker,
        "acks1",
        producers=4,
        records=1000,
        size=RECORD_BYTES,
        seconds=600,
        max_bytes=MEGABYTES * 1_000_000,
    )
    return figures["records"] * RECORD_BYTES / 1e6


def _commits(mode: str) -> Callable[[Broker], float]:
    def run(broker: Broker) -> float:
        figures = generate(
            broker, mode, producers=PRODUCERS, size=RECORD_BYTES, seconds=COMMIT_SECONDS
        )
        return figures["transactions"]

    return run


WORK: Final = {
    "commit": Work("transaction of one record (TV2)", _commits("tv2")),
    "commit-tv1": Work("transaction of one record (TV1)", _commits("tv1")),
    "megabyte": Work("megabyte produced", _megabytes),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.profile", description=__doc__)
    parser.add_argument("work", nargs="*", help=f"of {', '.join(WORK)}; default: commit megabyte")
    names = parser.parse_args().work or ["commit", "megabyte"]
    if unknown := set(names) - set(WORK):
        parser.error(f"no such work: {', '.join(unknown)}")
    for name in names:
        print(f"\n=== Where one {WORK[name].what} goes ===\n")
        _by_function(WORK[name])
        _by_system_call(WORK[name])
        _by_machine_code(WORK[name])
    return 0


def _by_function(work: Work) -> None:
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "profile"
        python = (*fencepost_python(), "-m", "cProfile", "-o", str(output))
        count = _run(Path(folder), python, work)
        text = io.StringIO()
        stats = pstats.Stats(str(output), stream=text)
    own = {place: entry[2] for place, entry in stats.stats.items()}  # type: ignore[attr-defined]
    # The loop is native code: its own time is waiting for clients and moving bytes through sockets.
    loop = sum(seconds for (_, _, name), seconds in own.items() if name == "run")
    each = (sum(own.values()) - loop) / count * 1e6
    stats.strip_dirs().sort_stats("tottime").print_stats(SHOWN)
    print(
        f"{count:,.0f} times; {each:,.0f} µs of Python for each, slowed by the profiler, start of"
    )
    print(
        f"the broker included; beside it {loop:.1f} s in the loop itself (`run`): sockets, waiting"
    )
    print("\n".join(line for line in text.getvalue().splitlines()[6:] if line.strip()))


def _by_system_call(work: Work) -> None:
    if shutil.which("strace") is None:
        print("\nsystem calls: skipped, strace is not installed")
        return
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "calls"
        tracer = ("strace", "-f", "-c", "-S", "time", "-o", str(output), *fencepost_python())
        count = _run(Path(folder), tracer, work)
        table = output.read_text()
    print(f"\nsystem calls, {count:,.0f} times one {work.what}; start and stop included, and")
    print("futex and epoll are mostly waiting\n")
    print(f"{'call':16} {'for each':>10} {'µs per call':>12}")
    for name, calls, microseconds in list(_calls(table))[:SHOWN_CALLS]:
        print(f"{name:16} {calls / count:10.2f} {microseconds:12.0f}")


def _by_machine_code(work: Work) -> None:
    if shutil.which("perf") is None:
        print("\nmachine code: skipped, perf is not installed")
        return
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "samples"
        recorder = ("perf", "record", "-q", "-F", str(SAMPLES_PER_SECOND), "-o", str(output))
        try:
            _run(Path(folder), (*recorder, "--", *fencepost_python()), work)
        except DiedEarlyError as refused:
            # Many systems permit it only to root.
            print(f"\nmachine code: skipped, perf is not permitted\n{refused}")
            return
        for sort in ("dso", "dso,symbol"):
            print(f"\nmachine code by {sort}; start and stop included, waiting is not\n")
            print("\n".join(_samples(output, sort)[:SHOWN_SYMBOLS]))


def _samples(output: Path, sort: str) -> list[str]:
    """The lines of perf's table, the most expensive first."""
    command = ["perf", "report", "-i", str(output), "--stdio", "--no-children", "--sort", sort]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = (line.rstrip(" -") for line in done.stdout.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def _calls(table: str) -> Iterator[tuple[str, int, float]]:
    """Name, count and microseconds per call from `strace -c`, the most expensive first."""
    for line in table.splitlines():
        cells = line.split()
        if len(cells) >= 5 and cells[0][:1].isdigit() and cells[-1] != "total":
            yield cells[-1], int(cells[3]), float(cells[2])


def _run(folder: Path, python: Sequence[str], work: Work) -> float:
    listen = f"127.0.0.1:{free_port()}"
    with FencepostProcess(folder / "data", listen=listen, python=python) as broker:
        count = work.run(broker)
        # A clean stop: the profiler writes its file at exit.
        _interrupt(broker)
    assert count, f"not one {work.what} was done"
    return count


def _interrupt(broker: FencepostProcess) -> None:
    """Stops the broker itself, which is a child if a tracer runs it."""
    children = Path(f"/proc/{broker.process.pid}/task/{broker.process.pid}/children")
    pids = children.read_text().split() if children.exists() else []
    if pids:
        os.kill(int(pids[0]), signal.SIGTERM)
        broker.process.wait_for_end()
    else:
        broker.stop()


if __name__ == "__main__":
    sys.exit(main())
