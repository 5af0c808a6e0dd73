"""Commands as processes: for signals, pipes and input that pauses."""

from __future__ import annotations

import os
import subprocess
import sys

from tools.fencepost_process import ROOT


class Processes:
    """Commands as processes, with pipes to all three streams."""

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[str]] = []

    def __call__(self, *arguments: str, servers: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "fencepost", *arguments, "--bootstrap-servers", servers]
        pipe = subprocess.PIPE
        self._started.append(
            subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment()
            )
        )
        return self._started[-1]

    def close(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
                process.communicate()


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT / "src")}
