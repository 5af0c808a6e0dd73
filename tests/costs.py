"""Processor seconds per folder and per file: `make test ARGS="-p tests.costs"`.

Seconds on the clock depend on what runs beside a test; processor seconds hardly do. A test is
charged with what its test process and all processes below it (JVMs, brokers, Python workers) have
used since the test before it ended, so a shared Spark session is charged to the tests that use it,
and its start to the first of them. Not counted are processes that have left the tree (a daemon),
and those that have ended and that their parent does not wait for (a Python worker of Spark).
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Generator
from contextlib import suppress
from operator import itemgetter
from pathlib import Path
from typing import Final

import pytest

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PROPERTY: Final = "processor_seconds"
_LEAST: Final = 1.0
"""Files below it are not listed."""
_last = 0.0
_costs: defaultdict[str, float] = defaultdict(float)


def tree_seconds() -> float:
    """What this process, its descendants and those it waited for have used."""
    ticks, found = 0, [str(os.getpid())]
    while found:
        process = Path("/proc", found.pop())
        with suppress(OSError):  # It ended while we looked.
            fields = (process / "stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))
            for thread in os.listdir(process / "task"):
                found += (process / "task" / thread / "children").read_text().split()
    return ticks / _TICKS


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    global _last
    report = yield
    if call.when == "teardown":
        now = tree_seconds()
        report.user_properties.append((_PROPERTY, now - _last))
        _last = now
    return report


def pytest_collection_finish() -> None:
    global _last
    _last = tree_seconds()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    for name, value in report.user_properties:
        if name == _PROPERTY and isinstance(value, float):
            _costs[report.nodeid.partition("::")[0]] += value


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    folders: defaultdict[str, float] = defaultdict(float)
    for file, seconds in _costs.items():
        folders["/".join(file.split("/")[:2])] += seconds
    terminalreporter.section(f"processor seconds: {sum(folders.values()):.0f}")
    for costs in (folders, _costs):
        for place, seconds in sorted(costs.items(), key=itemgetter(1), reverse=True):
            if seconds >= _LEAST:
                terminalreporter.line(f"{seconds:8.1f}  {place}")
