"""Runs commands inside the test process, and reads what they print."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from typing import Any
from unittest.mock import patch

import pytest

from fencepost.cli import main
from tools.fencepost_process import ROOT


class Commands:
    """Commands against one broker."""

    def __init__(self, servers: str, capture: pytest.CaptureFixture[str]) -> None:
        self.servers = servers
        self._capture = capture

    def run(self, *arguments: str, code: int = 0) -> str:
        """Returns what a command prints: on standard error, if it is expected to fail."""
        self._capture.readouterr()
        ended = main.run([*arguments, "--bootstrap-servers", self.servers])
        shown = self._capture.readouterr()
        assert ended == code, shown.err or shown.out
        self.noted = shown.err
        return shown.err if code in (1, 2) else shown.out

    def json(self, *arguments: str, code: int = 0) -> Any:
        """Returns the JSON document that a command prints."""
        return json.loads(self.run(*arguments, "--json", code=code))

    def lines(self, *arguments: str) -> list[Any]:
        """Returns the JSON lines that a command prints."""
        return [json.loads(line) for line in self.run(*arguments, "--json").splitlines()]

    def refusal(self, *arguments: str) -> str:
        """Returns the one line with which a command fails."""
        (line,) = self.run(*arguments, code=1).splitlines()
        assert line.startswith("fencepost: ")
        return line.removeprefix("fencepost: ")


def fencepost_process(*arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """Runs a command as a process, where the process itself matters."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "COLUMNS": "80"}
    command = [sys.executable, "-m", "fencepost", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, env=environment, **more
    )


def fencepost_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a command in this process, with its own streams of 80 columns."""
    with (
        tempfile.TemporaryFile("w+") as out,
        tempfile.TemporaryFile("w+") as err,
        redirect_stdout(out),
        redirect_stderr(err),
        patch.dict(os.environ, COLUMNS="80"),
    ):
        code = exit_code([*arguments])
        for stream in (out, err):
            stream.seek(0)
        return subprocess.CompletedProcess(arguments, code, out.read(), err.read())


def exit_code(arguments: list[str]) -> int:
    """Runs a command that may exit by itself, such as --help."""
    try:
        return main.run(arguments)
    except SystemExit as end:
        return int(end.code or 0)
