"""Kills the demo's programs if the demo itself was killed with SIGKILL.

    demo --pipe--> reaper      one line per started program, and a last one when all have ended

The kernel closes the pipe when the demo dies. If that happens before the last line, the reaper
kills every session it has received and deletes the folders of the run that are temporary. It is a
small process in its own session, so a kill of the demo's process group does not reach it.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from fencepost_examples.demo.sessions import kill_session, members

ALL_GONE: Final = "all gone"
FORGET_SECONDS: Final = 5.0
"""How often to drop empty sessions, whose ids the system may reuse."""


class Reaper:
    """The demo's end of the pipe. If the reaper dies, the demo continues without it."""

    def __init__(
        self, folder: Path, environment: Mapping[str, str], deletes: Sequence[Path]
    ) -> None:
        command = [sys.executable, "-m", "fencepost_examples.demo.reaper"]
        self._process = subprocess.Popen(
            [*command, *map(str, deletes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            cwd=folder,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._tell(ALL_GONE)
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.wait()

    def watch(self, session: int) -> None:
        """Adds a session that must not outlive the demo."""
        self._tell(str(session))

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(f"{line}\n".encode())
            self._process.stdin.flush()


def wait_for_end(pipe: int) -> set[int] | None:
    """Returns the sessions left when the pipe was closed; None if the demo ended by itself."""
    sessions: set[int] = set()
    rest = ""
    while True:
        readable, _, _ = select.select([pipe], [], [], FORGET_SECONDS)
        if not readable:
            sessions = {session for session in sessions if members(session)}
            continue
        if not (said := os.read(pipe, 4096)):
            return sessions
        *lines, rest = (rest + said.decode()).split("\n")
        if ALL_GONE in lines:
            return None
        sessions.update(map(int, lines))


def main() -> None:
    """Waits for the end of the demo and cleans up after it."""
    left_behind = wait_for_end(sys.stdin.fileno())
    if left_behind is None:
        return
    for session in left_behind:
        kill_session(session)
    for folder in sys.argv[1:]:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
