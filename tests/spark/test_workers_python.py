"""Importing `fencepost.spark` chooses the Python of Spark's workers only if it must."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.conftest import environment

CHOSEN = "import os, fencepost.spark; print(os.environ.get('PYSPARK_PYTHON', ''))"


def chosen_python(path: Path, **variables: str) -> str:
    """PYSPARK_PYTHON after the import, where `python3` is in this folder."""
    given = environment()
    del given["PYSPARK_PYTHON"]
    given |= {"PATH": str(path), **variables}
    done = subprocess.run(
        [sys.executable, "-c", CHOSEN], env=given, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_an_activated_environment_needs_no_setting() -> None:
    folder = Path(sys.executable).parent
    if not (folder / "python3").exists():
        pytest.skip("this Python is not called python3")
    assert chosen_python(folder) == ""


def test_the_drivers_python_is_chosen_if_workers_would_run_another(tmp_path: Path) -> None:
    os.symlink(sys.executable, tmp_path / "python3")
    assert chosen_python(tmp_path) == sys.executable


def test_the_drivers_python_is_chosen_if_workers_would_find_none(tmp_path: Path) -> None:
    assert chosen_python(tmp_path) == sys.executable


@pytest.mark.parametrize(
    ("name", "expected"), [("PYSPARK_PYTHON", "theirs"), ("PYSPARK_GATEWAY_PORT", "")]
)
def test_the_choice_of_the_user_or_spark_submit_is_kept(
    tmp_path: Path, name: str, expected: str
) -> None:
    assert chosen_python(tmp_path, **{name: "theirs"}) == expected


def test_importing_changes_no_other_variable(tmp_path: Path) -> None:
    code = (
        "import os; before = dict(os.environ); import fencepost.spark, fencepost.spark.sink.sink; "
        "print(sorted(name for name in before.keys() | os.environ.keys() "
        "if before.get(name) != os.environ.get(name)))"
    )
    given = environment() | {"PATH": str(tmp_path)}
    del given["PYSPARK_PYTHON"]
    done = subprocess.run(
        [sys.executable, "-c", code], env=given, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "['PYSPARK_PYTHON']"
