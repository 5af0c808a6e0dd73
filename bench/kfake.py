"""kfake, the broker of franz-go's own tests: one process, in memory, nothing on disk.

The program is `go/kfake`, with the versions in its go.mod; Go builds it once, into build/. Topics
and transactions live until the process ends, and a restart begins empty, so only loads that neither
restart the broker nor look at its files can use it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final, Self

from tools.apache_kafka import ROOT, UnavailableError
from tools.processes import STOP_SECONDS, ServerProcess

SOURCE: Final = ROOT / "bench" / "go" / "kfake"
TARGET: Final = ROOT / "build" / "kfake"
BUILD_SECONDS: Final = 600.0
READY: Final = re.compile(r"^kfake is ready at (\S+:\d+)\s*$")
READY_SECONDS: Final = 30.0


def build_kfake() -> Path:
    """The program, built the first time and when its source or versions have changed."""
    if shutil.which("go") is None:
        raise UnavailableError("kfake needs go, not found on this machine")
    made_from = hashlib.sha256()
    for source in sorted(SOURCE.iterdir()):
        made_from.update(source.read_bytes())
    program = TARGET / f"kfake-{made_from.hexdigest()[:16]}"
    TARGET.mkdir(parents=True, exist_ok=True)
    with (TARGET / "lock").open("w") as lock:
        # Two runs may start at the same time.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            _build(program)
    return program


def _build(program: Path) -> None:
    unfinished = program.with_suffix(".unfinished")
    done = subprocess.run(
        ["go", "build", "-o", str(unfinished), "."],
        cwd=SOURCE,
        # The versions are those of go.mod, whatever workspace or flags surround the checkout.
        env=dict(os.environ, GOWORK="off", GOFLAGS="-mod=readonly"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=BUILD_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        raise UnavailableError(f"Go could not build kfake: {done.stdout.strip()}")
    # Renamed when complete, so that a broken program is never used.
    unfinished.rename(program)


class Kfake:
    """One kfake process."""

    def __init__(self, data: Path, *, port: int, partitions: int, wait: bool = True) -> None:
        """`data` stays empty."""
        self.data = data
        self.bootstrap_servers = f"127.0.0.1:{port}"
        command = [str(build_kfake()), f"-port={port}", f"-partitions={partitions}"]
        self.process = ServerProcess(command)
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
