"""Completion of commands and options in a shell."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.cli.running import fencepost_command
from tools.fencepost_process import ROOT

HEAVY = ("asyncio", "rich", "crc32c", "fencepost.broker", "fencepost.client", "pyspark")
"""Not imported to complete a word: the user has pressed a key and waits."""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A shell that finds a command named fencepost."""
    folder = tmp_path_factory.mktemp("bin")
    command = folder / "fencepost"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m fencepost "$@"\n')
    command.chmod(0o755)
    paths = f"{folder}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": paths, "PYTHONPATH": str(ROOT / "src")}


def bash(script: str, environment: dict[str, str]) -> str:
    done = subprocess.run(
        ["bash", "--norc", "-c", script], capture_output=True, text=True, timeout=60,
        env=environment,
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("fencepost ", {"serve", "topic", "group", "lag", "config", "txn"}),
        ("fencepost top", {"topic"}),
        ("fencepost topic ", {"list", "create", "produce", "consume"}),
        ("fencepost topic consume --fo", {"--follow"}),
        ("fencepost topic consume t --isolation ", {"read_committed", "read_uncommitted"}),
        ("fencepost group reset g --to-", {"--to-earliest", "--to-latest", "--to-offset"}),
        ("fencepost serve --dur", {"--durability"}),
        ("fencepost serve --durability ", {"os", "fsync"}),
        ("fencepost serve --li", {"--listen"}),
        ("fencepost completion ", {"bash", "zsh", "fish"}),
    ],
)
def test_bash_completes_commands_options_and_values(
    line: str, expected: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_FENCEPOST_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split()) - (not line.endswith(" "))))
    assert set(fencepost_command().stdout.split()) >= expected


def test_bash_asks_through_the_script_that_is_installed(environment: dict[str, str]) -> None:
    script = """
        eval "$(fencepost completion bash)"
        COMP_WORDS=(fencepost topic consume t --isolation '')
        COMP_CWORD=5
        _fencepost_completion fencepost
        printf '%s\\n' "${COMPREPLY[@]}"
    """
    assert set(bash(script, environment).split()) == {"read_committed", "read_uncommitted"}


@pytest.mark.parametrize(("shell", "word"), [("zsh", "compdef"), ("fish", "complete --command")])
def test_other_shells_have_a_script(shell: str, word: str) -> None:
    done = fencepost_command("completion", shell)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{word} " in done.stdout


def test_an_unknown_shell_is_a_usage_error() -> None:
    done = fencepost_command("completion", "tcsh")
    assert done.returncode == 2
    assert "See `fencepost completion --help`" in done.stderr


def test_completion_imports_nothing_heavy(environment: dict[str, str]) -> None:
    code = (
        "import sys\nfrom fencepost.cli.main import run\n"
        "try:\n    run([])\nexcept SystemExit:\n    pass\n"
        "print(*sys.modules, sep='\\n', file=sys.stderr)"
    )
    asked = {"COMP_WORDS": "fencepost serve --li", "COMP_CWORD": "2"}
    asked["_FENCEPOST_COMPLETE"] = "complete_bash"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60,
        env=environment | asked,
    )  # fmt: skip
    assert done.stdout == "--listen\n"
    assert not set(done.stderr.split()) & set(HEAVY)
