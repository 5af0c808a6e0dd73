"""`make compat` runs tests of other folders again, by name. Every test that it names exists."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SELECTING = (
    "test_audit_on_kafka",
    "test_kit_on_kafka",
    "test_outbox_on_kafka",
    "test_spark_on_kafka",
    "test_spark_versions",
)


def selections(value: object) -> Iterator[str]:
    """The names of tests in the constants of a module."""
    if isinstance(value, str):
        # Not the beginnings of names, from which others are made.
        is_test = ".py::test_" in value and not value.endswith("_")
        is_file = "/test_" in value and value.endswith(".py") and not Path(value).is_absolute()
        if is_test or is_file:
            yield value if value.startswith("tests/") else f"tests/spark/{value}"
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from selections(each)
    elif isinstance(value, Mapping):
        yield from selections(list(value.values()))


def test_every_test_that_make_compat_selects_exists() -> None:
    pytest.importorskip("pyspark", reason="the spark extra is not installed")
    modules = [importlib.import_module(f"tests.compat.{name}") for name in SELECTING]
    found = sorted({name for module in modules for name in selections(list(vars(module).values()))})
    assert len(found) > 40
    collect = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:xdist"]
    done = subprocess.run([*collect, *found], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3_000:] + done.stderr[-3_000:]
