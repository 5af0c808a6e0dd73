"""What one of the two runs leaves out, the other takes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import halves

ROOT = Path(__file__).resolve().parents[1]
CALLS = range(1, 12)


def halves_of(patch: pytest.MonkeyPatch, *variation: str) -> list[list[int]]:
    """What `make test` takes, and what `make test-compiled` takes."""
    found = []
    for half in (1, 2):
        patch.setattr(halves, "HALF", half)
        found.append(list(halves.half_of(CALLS, *variation)))
    return found


@pytest.mark.parametrize("crash", ["kill", "lose_power"])
def test_both_runs_together_take_every_sample_once(
    monkeypatch: pytest.MonkeyPatch, crash: str
) -> None:
    monkeypatch.setattr(halves, "EVERY_CALL", False)
    interpreted, compiled = halves_of(monkeypatch, "roll", "os", crash)
    assert sorted(interpreted + compiled) == list(CALLS)
    assert abs(len(interpreted) - len(compiled)) == 1


def test_what_a_kill_leaves_out_a_power_loss_takes_in_the_same_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(halves, "EVERY_CALL", False)
    killed = halves_of(monkeypatch, "roll", "os", "kill")
    assert halves_of(monkeypatch, "roll", "os", "lose_power") == killed[::-1]


def test_each_run_takes_everything_if_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(halves, "EVERY_CALL", True)
    assert halves_of(monkeypatch, "roll") == [list(CALLS)] * 2


def test_the_makefile_gives_each_run_another_half() -> None:
    makefile = (ROOT / "Makefile").read_text()
    recipes = dict(
        re.findall(r"^(test|test-compiled):.*\n\t@FENCEPOST_HALF=(.)", makefile, re.MULTILINE)
    )
    assert recipes == {"test": "1", "test-compiled": "2"}


DRAW = """
from hypothesis import given, settings, strategies
import tests.conftest

@settings(max_examples=10)
@given(strategies.integers())
def test_draw(number):
    print(number)
"""


def drawn(folder: Path, half: int) -> str:
    """What a test draws in one of the two runs, with the options of the Makefile for it."""
    (folder / "test_draw.py").write_text(DRAW)
    recipe = re.search(rf"FENCEPOST_HALF={half} .*", (ROOT / "Makefile").read_text())
    assert recipe is not None
    options = re.findall(r"\$\(if \$\(CI\),(\S+)\)", recipe[0])
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-c", "pyproject.toml", *options]
    environment = os.environ | {"CI": "1", "FENCEPOST_HALF": str(half)}
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", folder / "test_draw.py"],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return re.sub(r"in [0-9.]+s", "", done.stdout)


def test_in_continuous_integration_each_half_draws_its_own_examples_the_same_each_time(
    tmp_path: Path,
) -> None:
    first, second = drawn(tmp_path, 1), drawn(tmp_path, 2)
    assert len(set(first.split()) | set(second.split())) > 20
    assert (drawn(tmp_path, 1), drawn(tmp_path, 2)) == (first, second)


def test_a_run_says_which_half_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(halves, "EVERY_CALL", False)
    monkeypatch.setattr(halves, "HALF", 2)
    assert halves.described() == "long matrices: half 2 of 2"
