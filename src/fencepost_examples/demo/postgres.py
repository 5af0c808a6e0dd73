"""The demo's own PostgreSQL, which it kills.

It listens on loopback and wants a password, which no other user of the machine knows. Its files are
in the folder of the run; root's servers run as another user, who cannot enter that folder. They
have one of their own until they have ended.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from fencepost_examples.demo.interrupt import Interruption
from fencepost_examples.demo.processes import Program, Supervisor, await_line
from fencepost_examples.postgres import (
    READY,
    RUNS_AS,
    SETTINGS,
    SUPERUSER,
    configure,
    give_away,
    make_files,
    server_command,
)

ROOTS_PLACE: Final = "/tmp"  # noqa: S108 - mkdtemp makes a folder that nobody else can enter.


@contextlib.contextmanager
def folder_of_server(folder: Path, interruption: Interruption, *, keeps: bool) -> Iterator[Path]:
    """Yields an empty folder that the server may enter. `keeps`: in the end it is in `folder`."""
    kept = folder / "postgres"
    if RUNS_AS is None:
        kept.mkdir(mode=0o700)
        yield kept
        return
    made = ""
    try:
        with interruption.shield():
            made = tempfile.mkdtemp(prefix="fencepost-demo-postgres-", dir=ROOTS_PLACE)
            give_away(Path(made))
        yield Path(made)
    finally:
        with interruption.shield():
            if keeps and made:
                shutil.move(made, kept)
            else:
                shutil.rmtree(made, ignore_errors=True)


class OwnPostgres:
    """A server that can be killed and started again with its files, at its address."""

    def __init__(self, supervisor: Supervisor, folder: Path) -> None:
        self._supervisor = supervisor
        self._folder = folder
        self._data = folder / "data"
        self._program: Program | None = None
        password, port = secrets.token_urlsafe(), _free_port()
        make_files(self._data, password)
        configure(self._data, {**SETTINGS, "port": str(port), "log_line_prefix": ""})
        self.dsn = f"postgresql://{SUPERUSER}:{password}@127.0.0.1:{port}/postgres"
        self.address = f"127.0.0.1:{port}"

    def start(self) -> None:
        """Starts the server and waits until it accepts connections."""
        log = self._supervisor.log_of("postgres")
        position = log.stat().st_size if log.exists() else 0
        command = server_command(self._data, self._folder)
        self._program = self._supervisor.start("postgres", command, user=RUNS_AS)
        await_line(self._program, f"LOG:  {READY}", position)

    def kill(self) -> None:
        """Kills all processes of the server with SIGKILL."""
        assert self._program is not None
        self._program.kill_all()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
