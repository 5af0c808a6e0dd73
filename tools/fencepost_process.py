"""`fencepost serve` as a process, used only from outside."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

import fencepost
from tools.processes import STOP_SECONDS, ServerProcess

ROOT: Final = Path(__file__).resolve().parent.parent
READY: Final = re.compile(r"^fencepost is ready at (\S+:\d+)\s*$")
READY_SECONDS: Final = 60.0


class FencepostProcess:
    """One broker process on one data folder, which it leaves behind."""

    def __init__(
        self,
        data: Path,
        *,
        listen: str = "127.0.0.1:0",
        options: Sequence[str] = (),
        python: Sequence[str] = (sys.executable,),
        wait: bool = True,
    ) -> None:
        """`python` may run a profiler; without `wait`, `listen` must name the port."""
        self.data = data
        self.bootstrap_servers = listen
        command = [*python, "-m", "fencepost", "serve"]
        command += ["--listen", listen, "--data", str(data), *options]
        # The fencepost that is imported here, interpreted or compiled; it need not be installed.
        paths = [str(Path(fencepost.__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
        environment = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONUNBUFFERED": "1"}
        self.process = ServerProcess(command, environment=environment)
        if not wait:
            return
        try:
            self.bootstrap_servers = self.process.wait_for_line(_address, READY_SECONDS)
        except BaseException:
            self.process.kill()
            raise

    def stop(self, seconds: float = STOP_SECONDS) -> int:
        """Stops it with SIGTERM; returns the exit status."""
        return self.process.stop(seconds)

    def kill(self) -> None:
        """Kills it with SIGKILL."""
        self.process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _address(line: str) -> str | None:
    found = READY.match(line)
    return found[1] if found else None
