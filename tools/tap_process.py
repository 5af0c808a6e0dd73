"""`fencepost tap` as a real process."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Self

from tools.apache_kafka import ROOT
from tools.processes import POLL_SECONDS, ServerProcess

START_SECONDS: Final = 30.0
_READY: Final = " leads to "


class TapProcess:
    """A tap on a free port, whose lines go to a file."""

    def __init__(self, to: str, out: Path, *options: str) -> None:
        self.out = out
        command = [sys.executable, "-m", "fencepost", "tap", "--listen", "127.0.0.1:0"]
        self.process = ServerProcess(
            [*command, "--to", to, "--out", str(out), *options],
            environment={"PYTHONPATH": str(ROOT / "src")},
        )
        try:
            line = self.process.wait_for_line(
                lambda line: line if _READY in line else None, START_SECONDS
            )
        except BaseException:
            self.process.kill()
            raise
        self.bootstrap_servers = line.partition(_READY)[0].rpartition(" ")[2]

    def lines(self) -> list[dict[str, Any]]:
        """The complete lines that it has written so far."""
        text = self.out.read_text()
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def wait_for(self, wanted: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """The first line that is wanted: a tap sends a reply before it writes its line."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            for line in self.lines():
                if wanted(line):
                    return line
            time.sleep(POLL_SECONDS)
        raise AssertionError(f"no such line in {self.out}")

    def stop(self) -> int:
        """Stops it; returns its exit status."""
        return self.process.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
