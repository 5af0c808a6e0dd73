"""A suite of small tests, from the start of pytest to its end.

On fencepost every test has a broker of its own (`fencepost_broker`). The other sides are one
process that all tests share, as teams use them, because their start takes too long for a test; the
time includes one start of it. Processor time counts the suite and the broker, whole processes.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Final

from bench.load import Load, Measure, Round, Scale, Values
from bench.sides import FENCEPOST, INTERPRETED, Side, fencepost_python
from tools.apache_kafka import ROOT

TESTS: Final = 500
QUICK_TESTS: Final = 50
SUITE: Final = ROOT / "bench" / "suite"
MOST_SECONDS: Final = 1_800
OURS: Final = {FENCEPOST.name: None, INTERPRETED.name: ROOT / "src"}
"""Sides that need no process, and where their source is if it is not the usual one."""


@contextmanager
def _session(side: Side, scale: Scale, folder: Path) -> Iterator[Round]:
    tests = scale.of(TESTS, QUICK_TESTS)

    def run(number: int) -> Values:
        data = folder / str(number)
        data.mkdir(parents=True)
        processor, began = _processor_seconds(), time.monotonic()
        with nullcontext() if side.name in OURS else side.start(data / "data") as broker:
            ready = time.monotonic()
            shared = {} if broker is None else {"FENCEPOST_KIT_BOOTSTRAP": broker.bootstrap_servers}
            run_suite(data, {"FENCEPOST_KIT_TESTS": str(tests), **shared}, OURS.get(side.name))
            ended = time.monotonic()
        shutil.rmtree(data)
        return {
            "suite": ended - began,
            "test": (ended - ready) / tests * 1000,
            "processor": (_processor_seconds() - processor) / tests * 1000,
        }

    yield run


def run_suite(folder: Path, environment: Mapping[str, str], source: Path | None = None) -> None:
    """Runs the suite in a pytest of its own; an error if not all of its tests pass."""
    command = [
        *fencepost_python(source),
        *("-m", "pytest", str(SUITE), "-q", f"--rootdir={SUITE}", f"-c={os.devnull}"),
        *("--import-mode=importlib", "--override-ini=addopts="),
        *("-p", "no:cacheprovider", "-p", "no:randomly", "-p", "fencepost.testing.pytest_plugin"),
    ]
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=MOST_SECONDS,
        check=False,
    )
    wanted = f"{environment['FENCEPOST_KIT_TESTS']} passed"
    if done.returncode or wanted not in done.stdout:
        raise RuntimeError(f"the suite did not pass: {done.stdout[-2000:]}")


def _processor_seconds() -> float:
    """Of all processes that this one has started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


LOAD: Final = Load(
    "kit",
    f"a suite of {TESTS} small tests: a broker for each, or one that they share",
    (
        Measure("suite", "s for the suite, with the start of the broker", "less", ratio=1.0),
        Measure("test", "ms per test after that start", "less"),
        Measure("processor", "ms of processor time per test, of tests and broker", "less"),
    ),
    _session,
    rounds=3,
    quick_rounds=1,
    quick_note=f"{QUICK_TESTS} tests",
    warmup_seconds=0,
    quick_warmup_seconds=0,
    on_kfake=True,
    compares_builds=True,
)
