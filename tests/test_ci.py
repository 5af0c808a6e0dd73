"""What `.ci/run` and the Makefile say about what they did not run."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PYTHON = """#!/bin/sh
case "$*" in
*compile_hot_path*--why-not*) echo "$NO_COMPILER"; test -n "$NO_COMPILER" ;;
*apache_kafka*) printf "%s" "$NO_KAFKA" ;;
esac
"""
MAKE = """#!/bin/sh
echo "made $*, new seeds from $FENCEPOST_FRESH_SEEDS"
test "$1" != "$FAILING"
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout whose Python and whose make do nothing."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci" / "run")
    for path, text in ((".venv/bin/python", PYTHON), ("bin/make", MAKE)):
        program = tmp_path / path
        program.parent.mkdir(parents=True)
        program.write_text(text)
        program.chmod(0o755)
    return tmp_path


def run(checkout: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": f"{checkout / 'bin'}:/usr/bin:/bin", **variables}
    return subprocess.run(
        [str(checkout / ".ci" / "run")],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_last_line_of_a_green_run_names_what_was_left_out(checkout: Path) -> None:
    ended = run(checkout, NO_COMPILER="no C compiler", NO_KAFKA="mvn")
    assert ended.returncode == 0, ended.stderr
    last = ended.stdout.splitlines()[-1]
    assert last.startswith("all passed; left out: ")
    for left_out in ("make test-compiled (no C compiler)", "make compat (not found: mvn)"):
        assert left_out in last
    assert "make test-every-call" in last
    everything = run(checkout).stdout
    assert "made compat" in everything
    assert "make compat" not in everything.splitlines()[-1]


def test_every_run_takes_new_seeds_and_a_red_one_prints_them_again(checkout: Path) -> None:
    ended = run(checkout, FAILING="test")
    assert ended.returncode == 1
    *_, failed, seeds = ended.stdout.splitlines()
    assert failed == "FAILED: make test"
    number = seeds.rpartition(" ")[2]
    assert number.isdecimal()
    assert f"made test, new seeds from {number}" in ended.stdout
    assert "new seeds from 7" in run(checkout, FENCEPOST_FRESH_SEEDS="7").stdout


def test_testing_other_pythons_fails_where_there_is_none() -> None:
    ended = subprocess.run(
        ["make", "--no-print-directory", "test-pythons", "PYTHONS=python3.99"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode != 0
    assert "nothing was tested" in ended.stdout
