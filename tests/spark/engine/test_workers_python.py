"""Importing `fencepost.spark` chooses the Python of Spark's workers only if it must.

And which processes are Spark's.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from fencepost.base.failures import FencepostError
from fencepost.spark.engine.workers_python import is_started_by_spark
from fencepost.spark.sentences import plain_errors
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
        "import os; before = dict(os.environ); "
        "import fencepost.spark, fencepost.spark.doors.foreach_batch; "
        "print(sorted(name for name in before.keys() | os.environ.keys() "
        "if before.get(name) != os.environ.get(name)))"
    )
    given = environment() | {"PATH": str(tmp_path)}
    del given["PYSPARK_PYTHON"]
    done = subprocess.run(
        [sys.executable, "-c", code], env=given, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "['PYSPARK_PYTHON']"


@pytest.mark.parametrize(
    ("module", "is_sparks"),
    [
        ("pyspark.daemon", True),
        ("pyspark.sql.worker.plan_data_source_read", True),
        ("pytest.__main__", False),
        ("pyspark_fencepost", False),
        (None, False),
    ],
)
def test_a_process_is_sparks_if_it_runs_a_module_of_pyspark(
    monkeypatch: pytest.MonkeyPatch, module: str | None, is_sparks: bool
) -> None:
    spec = module and ModuleSpec(module, None)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", spec)
    assert is_started_by_spark() is is_sparks
    monkeypatch.delenv("SPARK_HIDE_TRACEBACK", raising=False)
    with pytest.raises(FencepostError), plain_errors():
        raise FencepostError("a sentence")
    # It must not be set in a driver: the workers that it starts would inherit it.
    assert ("SPARK_HIDE_TRACEBACK" in os.environ) is is_sparks
    os.environ.pop("SPARK_HIDE_TRACEBACK", None)
