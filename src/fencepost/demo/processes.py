"""Programs in sessions of their own.

A Spark driver starts a Java process, which starts executors, which start Python workers; some of them found process
groups of their own, but all stay in the session of the first. So a session is what is looked at and killed, and
whatever a killed driver leaves behind is found again.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from fencepost.base.failures import FencepostError
from fencepost.demo.interrupt import Interruption

EXECUTOR: Final = "CoarseGrainedExecutorBackend"
DRIVER_JVM: Final = "org.apache.spark.deploy.SparkSubmit"

READY_SECONDS: Final = 30
GONE_SECONDS: Final = 5


def list_processes() -> dict[int, str]:
    """Every process that we may see, with its command line."""
    if not Path("/proc/self/cmdline").exists():
        return _list_by_ps()
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            with contextlib.suppress(OSError):
                command = Path(f"/proc/{entry}/cmdline").read_bytes()
                found[int(entry)] = command.replace(b"\0", b" ").decode(errors="replace")
    return found


def _list_by_ps() -> dict[int, str]:
    listing = subprocess.run(
        ["ps", "-A", "-o", "pid=,command="], capture_output=True, text=True, check=True
    )
    lines = (line.split(None, 1) for line in listing.stdout.splitlines())
    return {int(parts[0]): parts[1] for parts in lines if len(parts) == 2}


def members(session: int) -> dict[int, str]:
    """The living processes of a session. One that has ended and waits to be reaped has no command line."""
    found = {}
    for pid, command in list_processes().items():
        with contextlib.suppress(OSError):
            if command and os.getsid(pid) == session:
                found[pid] = command
    return found


def kill(pid: int) -> None:
    """SIGKILL, if it still lives."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


class Program:
    """A running program, and all that it has started."""

    def __init__(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str], folder: Path
    ) -> None:
        self.log = log
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=folder,
                start_new_session=True,
            )

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    def _family(self) -> dict[int, str]:
        """What lives of this program.

        The number of its first process cannot be given to another one while the session has members. So if we have
        seen that process end and there is one of its number, then nothing is left, and that one is a stranger.
        """
        family = members(self._process.pid)
        has_ended = self._process.returncode is not None
        return {} if has_ended and self._process.pid in family else family

    def executors(self) -> list[int]:
        """The executors of a Spark driver."""
        return sorted(pid for pid, line in self._family().items() if EXECUTOR in line)

    def kill_driver(self) -> None:
        """Kills the driver, its Java side too, and leaves its executors to themselves, as on a cluster."""
        for pid, line in self._family().items():
            if DRIVER_JVM in line:
                kill(pid)
        self.kill()

    def kill(self) -> None:
        """Kills the first process of the program only."""
        self._process.kill()
        self._process.wait()

    def kill_all(self) -> None:
        """Kills everything that this program has started, and waits until it is gone."""
        deadline = time.monotonic() + GONE_SECONDS
        while (family := self._family()) and time.monotonic() < deadline:
            for pid in family:
                kill(pid)
            time.sleep(0.01)
        self._process.wait()


class Household:
    """Every program of a run. None outlives it."""

    def __init__(
        self, interruption: Interruption, folder: Path, environment: Mapping[str, str]
    ) -> None:
        self._interruption = interruption
        self._folder = folder
        self._environment = environment
        self._programs: list[Program] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._interruption.shield():
            for program in self._programs:
                program.kill_all()

    def log_of(self, name: str) -> Path:
        """Where a program of this name leaves what it says."""
        return self._folder / f"{name}.log"

    def start(self, name: str, command: Sequence[str]) -> Program:
        """Starts a program under a name."""
        with self._interruption.shield():
            program = Program(command, self.log_of(name), self._environment, self._folder)
            self._programs.append(program)
            return program


def await_line(program: Program, beginning: str, position: int) -> str:
    """The first line after a position of a program's log that begins so; FencepostError when it ends before."""
    deadline = time.monotonic() + READY_SECONDS
    while True:
        has_ended = program.exit_code is not None
        for line in _lines_from(program.log, position):
            if line.startswith(beginning):
                return line
        if has_ended or time.monotonic() > deadline:
            raise FencepostError(f"a process did not start: {last_words(program.log)}")
        time.sleep(0.02)


def _lines_from(log: Path, position: int) -> list[str]:
    with log.open("rb") as file:
        file.seek(position)
        text = file.read().decode(errors="replace")
    return text.splitlines() if text.endswith("\n") else text.splitlines()[:-1]


def last_words(log: Path) -> str:
    """What a program said when it failed: the last line that tells of an error, or the last of all."""
    lines = [line.strip() for line in _lines_from(log, 0) if line.strip()]
    telling = [line for line in lines if "Error:" in line or line.startswith("fencepost.")]
    return (telling or lines or ["nothing"])[-1][:400]
