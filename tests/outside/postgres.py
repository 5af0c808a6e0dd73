"""A real PostgreSQL server per test: started in a third of a second, killed and started again.

The files of an empty server are made once per machine, in build/postgres, and copied for each
server. `fencepost_examples.postgres` says where its programs are, and as whom it runs. `kill`
returns when the child processes of a server are gone too.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

import psutil

from fencepost_examples.postgres import (
    READY,
    RUNS_AS,
    SETTINGS,
    SUPERUSER,
    binaries,
    configure,
    give_away,
    make_files,
    server_command,
)
from tools.processes import POLL_SECONDS, ServerProcess, free_port

ROOT: Final = Path(__file__).resolve().parents[2]
START_SECONDS: Final = 60.0


def _template() -> Path:
    """The files of a server without any data, made once and never started."""
    folder = ROOT / "build" / "postgres"
    folder.mkdir(parents=True, exist_ok=True)
    version = subprocess.run(
        [binaries() / "postgres", "--version"], capture_output=True, text=True, check=True
    ).stdout.split()[2]
    made = folder / f"{version}-{RUNS_AS or os.geteuid()}"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            with tempfile.TemporaryDirectory(prefix="fencepost-initdb-") as place:
                give_away(Path(place))
                make_files(Path(place, "data"))
                _copy(Path(place, "data"), made)
    return made


def _copy(source: Path, target: Path) -> None:
    # Not shutil.copytree: owners have to stay.
    subprocess.run(["cp", "-a", source, target], check=True)


class PostgresServer:
    """One server on a free loopback port, with its own copy of the files."""

    def __init__(self, *, is_foreign: bool = False, **settings: str) -> None:
        """Starts it. `settings` are those of postgresql.conf, beside SETTINGS.

        Copies of the template have its system identifier; a foreign server has another one.
        """
        self.folder = Path(tempfile.mkdtemp(prefix="fencepost-postgres-"))
        atexit.register(self.close)
        give_away(self.folder)
        self.data = self.folder / "data"
        self.port = free_port()
        self._process: ServerProcess | None = None
        if is_foreign:
            make_files(self.data)
        else:
            _copy(_template(), self.data)
        self.configure({**SETTINGS, **settings, "port": str(self.port)})
        self.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def dsn(self, user: str = SUPERUSER, database: str = "postgres", **more: str) -> str:
        """A connection string over TCP; `more` are other parameters of libpq."""
        given = {"host": "127.0.0.1", "port": str(self.port), "user": user, "dbname": database}
        return " ".join(f"{name}={value}" for name, value in {**given, **more}.items())

    @property
    def pid(self) -> int:
        """The process id of the postmaster."""
        assert self._process is not None
        return self._process.pid

    def configure(self, settings: Mapping[str, str]) -> None:
        """Adds settings, which count from the next start."""
        configure(self.data, settings)

    def replace_access_rules(self, *lines: str) -> None:
        """Replaces pg_hba.conf, which counts from the next start."""
        (self.data / "pg_hba.conf").write_text("".join(f"{line}\n" for line in lines))

    def start(self, *, as_standby: bool = False) -> None:
        """Starts it, and returns when it accepts connections; those of a standby only read."""
        assert self._process is None
        if as_standby:
            (self.data / "standby.signal").touch()
        command = server_command(self.data, self.folder)
        self._process = ServerProcess(command, user=RUNS_AS, folder=self.folder)
        self._process.wait_for_line(_reads if as_standby else _ready, START_SECONDS)

    def stop(self) -> int | None:
        """Stops it as an administrator would: connections are ended. Returns the exit status."""
        if (process := self._process) is None:
            return None
        self._process = None
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGINT)
        process.wait_for_end()
        return process.status

    def kill(self) -> None:
        """kill -9 of all its processes, the postmaster first."""
        if (process := self._process) is not None:
            self._process = None
            children = _children(process.pid)
            process.kill()
            for child in children:
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
            while any(_is_alive(child) for child in children):
                time.sleep(POLL_SECONDS)

    def restart(self) -> None:
        """Stops and starts it."""
        self.stop()
        self.start()

    def snapshot(self) -> Path:
        """Copies the files of a stopped server, as a backup of its disk would."""
        assert self._process is None
        place = self.folder / "snapshot"
        shutil.rmtree(place, ignore_errors=True)
        _copy(self.data, place)
        return place

    def restore(self, place: Path) -> None:
        """Puts a snapshot in the place of the files of a stopped server."""
        assert self._process is None
        shutil.rmtree(self.data)
        _copy(place, self.data)

    def close(self) -> None:
        """Ends it and deletes its files."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
        atexit.unregister(self.close)


def _children(pid: int) -> list[psutil.Process]:
    try:
        return list(psutil.Process(pid).children(recursive=True))
    except psutil.NoSuchProcess:
        return []


def _is_alive(process: psutil.Process) -> bool:
    """A zombie holds nothing; whoever adopted it may take its time."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _ready(line: str) -> str | None:
    return line if READY in line else None


def _reads(line: str) -> str | None:
    return line if "database system is ready to accept read-only connections" in line else None
