"""Settings for all tests: of Hypothesis, and of the Java that Spark and Apache Kafka run on.

Machines differ and may be busy, so no example has a deadline. In continuous integration the
examples are the same on every run, so a failure comes from the change and not from chance.

A test's query ends before the optimising compiler of the JVM has paid for itself: without it, and
with the simplest garbage collector, Spark needs two thirds of the processor time.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile(
    "ci", parent=settings.get_profile("default"), derandomize=True, database=None
)
settings.load_profile("ci" if os.environ.get("CI") else "default")

# Every JVM reads it, also those of the programs that tests start.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


_LONG: Final = (
    "cli/test_demo.py",
    "spark/test_driver_deaths.py",
    "spark/test_executors.py",
    "cluster/chaos",
    "refunds",
    "test_start.py",
    "spark",
    "cluster",
    "bench",
)
"""Files and folders whose tests take long, the longest first. They begin before all others, so that
no test process is left with them alone at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_place)


def _place(item: pytest.Item) -> int:
    path = item.path.relative_to(Path(__file__).parent).as_posix()
    return next((place for place, long in enumerate(_LONG) if path.startswith(long)), len(_LONG))
