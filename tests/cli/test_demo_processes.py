"""Nothing that the demo has started outlives it, not even what a killed program leaves behind."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fencepost.base.failures import FencepostError
from fencepost.demo.interrupt import Interruption
from fencepost.demo.processes import Household, await_line, last_words, list_processes


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def lives(pid: int) -> bool:
    """A process that has ended and waits to be reaped has no command line."""
    return bool(list_processes().get(pid))


def test_the_orphans_of_a_killed_program_are_killed_too(tmp_path: Path) -> None:
    family = "sleep 600 & echo child $!; (sleep 600; true) & echo child $!; echo all; sleep 600"
    with (
        Interruption() as interruption,
        Household(interruption, tmp_path, os.environ) as household,
    ):
        program = household.start("family", ["sh", "-c", family])
        await_line(program, "all", 0)
        said = household.log_of("family").read_text().split()
        children = [int(word) for word in said if word.isdecimal()]
        program.kill()
        assert len(children) == 2
        assert all(lives(child) for child in children)
    wait_until(lambda: not any(lives(child) for child in children))


def test_a_program_that_does_not_start_is_told_with_its_last_words(tmp_path: Path) -> None:
    words = "echo begin; echo 'SomeError: no room' >&2; echo end; exit 3"
    with (
        Interruption() as interruption,
        Household(interruption, tmp_path, os.environ) as household,
        pytest.raises(FencepostError, match="SomeError: no room"),
    ):
        await_line(household.start("broken", ["sh", "-c", words]), "ready", 0)
    assert last_words(household.log_of("broken")) == "SomeError: no room"
