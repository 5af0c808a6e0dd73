"""Programs in their own sessions (`sessions.py`). None outlives the demo (`reaper.py`)."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from fencepost.base.failures import FencepostError
from fencepost_examples.demo.interrupt import Interruption
from fencepost_examples.demo.reaper import Reaper
from fencepost_examples.demo.sessions import kill, kill_session, members

EXECUTOR: Final = "CoarseGrainedExecutorBackend"
DRIVER_JVM: Final = "org.apache.spark.deploy.SparkSubmit"

READY_SECONDS: Final = 30

START_ON_LINE: Final = 'read -r told && exec "$@" </dev/null'
"""A program starts after it has read a line, which is sent once the reaper knows its session. If
the demo dies before that, the program never starts."""


class Program:
    """A running program, with all processes that it has started."""

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        environment: Mapping[str, str],
        folder: Path,
        reaper: Reaper,
        user: str | None = None,
    ) -> None:
        self.log = log
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", START_ON_LINE, "sh", *command],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=folder,
                start_new_session=True,
                user=user,
            )
        reaper.watch(self._process.pid)
        assert self._process.stdin is not None
        with self._process.stdin as told:
            told.write(b"begin\n")

    @property
    def exit_code(self) -> int | None:
        """The exit code of the first process; None while it runs."""
        return self._process.poll()

    def _family(self) -> dict[int, str]:
        """Returns the live processes of this program.

        The system does not reuse the id of the first process while its session has members. So if
        that process has ended and one with its id exists, then the session is empty and the process
        is unrelated.
        """
        family = members(self._process.pid)
        has_ended = self._process.returncode is not None
        return {} if has_ended and self._process.pid in family else family

    def executors(self) -> list[int]:
        """Returns the executors of a Spark driver."""
        return sorted(pid for pid, line in self._family().items() if EXECUTOR in line)

    def kill_driver(self) -> None:
        """Kills the driver and its JVM but not its executors, as on a cluster."""
        for pid, line in self._family().items():
            if DRIVER_JVM in line:
                kill(pid)
        self.kill()

    def kill(self) -> None:
        """Kills only the first process of the program."""
        self._process.kill()
        self._process.wait()

    def kill_all(self) -> None:
        """Kills all processes of the program and waits for them to end."""
        if self._family():
            kill_session(self._process.pid)
        self._process.wait()


class Supervisor:
    """Starts the programs of a run and kills them at its end."""

    def __init__(
        self,
        interruption: Interruption,
        folder: Path,
        environment: Mapping[str, str],
        *,
        deletes: Sequence[Path] = (),
    ) -> None:
        """`deletes`: folders that the reaper deletes if the demo is killed."""
        self._interruption = interruption
        self._folder = folder
        self._environment = dict(environment)
        self._programs: list[Program] = []
        with interruption.shield():
            self._reaper = Reaper(folder, environment, deletes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._interruption.shield(), self._reaper:
            for program in self._programs:
                program.kill_all()

    def log_of(self, name: str) -> Path:
        """Returns the log file of a program."""
        return self._folder / f"{name}.log"

    def share(self, name: str, value: str) -> None:
        """Adds a variable to the environment of the programs that are started from now on."""
        self._environment[name] = value

    def start(self, name: str, command: Sequence[str], *, user: str | None = None) -> Program:
        """Starts a program under a name, and as another user if root starts it."""
        with self._interruption.shield():
            log = self.log_of(name)
            program = Program(command, log, self._environment, self._folder, self._reaper, user)
            self._programs.append(program)
            return program


def await_line(program: Program, beginning: str, position: int) -> str:
    """Waits for a log line with this beginning; FencepostError if the program ends before."""
    deadline = time.monotonic() + READY_SECONDS
    while True:
        has_ended = program.exit_code is not None
        for line in _lines_from(program.log, position):
            if line.startswith(beginning):
                return line
        if has_ended or time.monotonic() > deadline:
            raise FencepostError(f"a process did not start: {last_error_line(program.log)}")
        time.sleep(0.02)


def _lines_from(log: Path, position: int) -> list[str]:
    with log.open("rb") as file:
        file.seek(position)
        text = file.read().decode(errors="replace")
    return text.splitlines() if text.endswith("\n") else text.splitlines()[:-1]


def last_error_line(log: Path) -> str:
    """Returns the last line of a log that looks like an error, or else the last line."""
    lines = [line.strip() for line in _lines_from(log, 0) if line.strip()]
    telling = [line for line in lines if "Error:" in line or line.startswith("fencepost")]
    return (telling or lines or ["nothing"])[-1][:400]
