"""Directories that a broker cannot use, and more connections than the shell allows files.

Each gets one sentence and an exit code, and nothing in the directory changes.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

from fencepost.base.failures import ConfigError
from fencepost.broker.storage.directory_lock import DirectoryLock
from tests.broker.raw import RawClient
from tests.broker.requests import batch_of, create_topic, produce, read_topic
from tests.cli.running import fencepost_command
from tools.fencepost_process import ROOT, FencepostProcess

PATIENCE_SECONDS: Final = 60
NOBODY: Final = 65_534
SERVE: Final = ("serve", "--listen", "127.0.0.1:0", "--data")

AS_ORDINARY_USER: Final = f"""
import contextlib, encodings.idna, io, os, sys, uvloop
import fencepost.broker.process, fencepost.broker.storage.repair, fencepost.cli.commands.serve
from fencepost.cli.main import run
if os.geteuid() == 0:  # Root may write anywhere.
    with contextlib.redirect_stdout(io.StringIO()):
        run(["check", sys.argv[-1]])  # Imports: the interpreter may be in a folder of root's.
    os.setgroups([])
    os.setgid({NOBODY})
    os.setuid({NOBODY})
sys.exit(run(sys.argv[1:-1]))
"""


def run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, env=environment
    )


def refused(ended: subprocess.CompletedProcess[str]) -> str:
    """The one sentence of a command that was refused."""
    assert ended.returncode == 1, ended.stderr
    assert "Traceback" not in ended.stderr
    (line,) = [line for line in ended.stderr.splitlines() if line.startswith("fencepost: ")]
    return line


OrdinaryUser = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def by_ordinary_user(tmp_path_factory: pytest.TempPathFactory) -> OrdinaryUser:
    """Runs a command as a user with few rights."""
    sound = tmp_path_factory.mktemp("sound")
    with FencepostProcess(sound):
        pass

    def command(*arguments: str) -> subprocess.CompletedProcess[str]:
        return run([sys.executable, "-c", AS_ORDINARY_USER, *arguments, str(sound)])

    return command


def content(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that every user can look into; those of pytest are only for their owner."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def data(public: Path) -> Iterator[Path]:
    """The directory of a broker that was stopped cleanly."""
    folder = public / "data"
    with FencepostProcess(folder) as broker, RawClient(broker.bootstrap_servers) as client:
        create_topic(client, "t")
        assert produce(client, "t", batch_of(b"kept")).error_code == 0
    yield folder
    with FencepostProcess(folder) as broker, RawClient(broker.bootstrap_servers) as client:
        assert read_topic(client, "t") == [b"kept"], "nothing is lost"


def protect(folder: Path, mode: int) -> None:
    """Takes the right to write from everybody, and with it from the folders below."""
    for path in folder.rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    folder.chmod(mode)


def give_back(folder: Path) -> None:
    folder.chmod(0o755)
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)


@pytest.mark.parametrize("mode", [0o555, 0o000])
def test_a_directory_that_the_user_may_not_write_to_is_refused_and_unchanged(
    data: Path, mode: int, by_ordinary_user: OrdinaryUser
) -> None:
    before = content(data)
    protect(data, mode)
    line = refused(by_ordinary_user(*SERVE, str(data)))
    checked = by_ordinary_user("check", str(data))
    repaired = refused(by_ordinary_user("repair", str(data), "t-0"))
    give_back(data)
    assert f"The data directory {data} cannot be used: Permission denied." in line
    assert "Permission denied" in repaired
    if mode:  # To read is enough for a check.
        assert checked.returncode == 0, checked.stderr
        assert "is sound" in checked.stdout
    else:
        assert "cannot be read: Permission denied" in refused(checked)
    assert content(data) == before


def test_a_directory_that_can_not_be_made_is_refused(
    public: Path, by_ordinary_user: OrdinaryUser
) -> None:
    public.chmod(0o555)
    line = refused(by_ordinary_user(*SERVE, str(public / "new")))
    assert "cannot be used: Permission denied. Choose another one with --data." in line


@pytest.mark.parametrize("command", ["serve", "check", "repair"])
@pytest.mark.parametrize("below", ["", "/data"])
def test_a_file_in_place_of_the_directory_is_refused_and_kept(
    tmp_path: Path, command: str, below: str
) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"something else")
    path = f"{file}{below}"
    arguments = {"serve": [*SERVE, path], "check": ["check", path]}.get(
        command, ["repair", path, "t-0"]
    )
    line = refused(fencepost_command(*arguments))
    assert ("it is a file" if command == "serve" else "is not a directory") in line
    assert file.read_bytes() == b"something else"


# -- file systems, in a mount namespace of their own
# ------------------------------------------------------


def in_namespace(mounts: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a command after some mounts that only it can see."""
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("unshare is not installed, so no read-only file system can be made")
    options = ["-m"] if os.geteuid() == 0 else ["-rm"]
    script = f'{mounts} || exit 99; exec "$@"'
    command = [sys.executable, "-m", "fencepost", *arguments]
    ended = run([unshare, *options, "sh", "-c", script, "sh", *command])
    if ended.returncode == 99 or "unshare" in ended.stderr:
        pytest.skip(f"mounts are not allowed on this machine: {ended.stderr.strip()}")
    return ended


def test_a_read_only_file_system_is_refused_by_a_broker_and_read_by_a_check(data: Path) -> None:
    before = content(data)
    read_only = f"mount --bind {data} {data} && mount -o remount,bind,ro {data}"
    line = refused(in_namespace(read_only, *SERVE, str(data)))
    assert "cannot be used: Read-only file system. Choose another one with --data." in line
    line = refused(in_namespace(read_only, "repair", str(data), "t-0"))
    assert "cannot be used: Read-only file system. A repair needs to write to it." in line
    checked = in_namespace(read_only, "check", str(data))
    assert (checked.returncode, "is sound" in checked.stdout) == (0, True), checked.stderr
    assert content(data) == before


@pytest.mark.parametrize("exists", [True, False])
def test_a_full_file_system_is_refused_with_a_sentence(tmp_path: Path, exists: bool) -> None:
    make = f"mkdir {tmp_path}/data && " if exists else ""
    full = f"mount -t tmpfs -o size=64k none {tmp_path} && {make}"
    fill = f"{{ head -c 70000 /dev/zero > {tmp_path}/rest 2>/dev/null; test -s {tmp_path}/rest; }}"
    line = refused(in_namespace(full + fill, *SERVE, str(tmp_path / "data")))
    assert "No space left on device. Nothing was lost by this attempt" in line


def test_a_lock_that_cannot_note_its_process_still_keeps_others_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    lock = DirectoryLock(str(tmp_path))
    with pytest.raises(ConfigError, match="is in use by another broker"):
        DirectoryLock(str(tmp_path))
    lock.release()


# -- connections
# ---------------------------------------------------------------------------------------------


CROWD: Final = 2_000
SOFT_LIMIT: Final = 1_024


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """This process is the crowd, so it needs descriptors, too."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] < 2 * CROWD:
        pytest.skip(f"a process may open only {before[1]} files here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def limited_broker(folder: Path, limit: str) -> FencepostProcess:
    kind = "-Sn" if limit == "soft" else "-n"
    shell = ("sh", "-c", f'ulimit {kind} {SOFT_LIMIT}; exec "$@"', "sh", sys.executable)
    return FencepostProcess(folder, python=shell)


@pytest.mark.usefixtures("many_descriptors")
@pytest.mark.parametrize("limit", ["soft", "hard"])
def test_two_thousand_connections_at_once_are_served_or_closed_and_lose_nothing(
    tmp_path: Path, limit: str
) -> None:
    """With a soft limit of 1,024 files all are served, as the hard one is higher; else some."""
    folder = tmp_path / "data"
    with limited_broker(folder, limit) as broker, contextlib.ExitStack() as stack:
        first = stack.enter_context(RawClient(broker.bootstrap_servers))
        create_topic(first, "t")
        assert produce(first, "t", batch_of(b"before")).error_code == 0
        host, _, port = broker.bootstrap_servers.rpartition(":")
        for _ in range(CROWD):
            member = stack.enter_context(socket.socket())
            member.settimeout(PATIENCE_SECONDS)
            member.connect((host, int(port)))
        assert produce(first, "t", batch_of(b"meanwhile")).error_code == 0
        if limit == "soft":
            last = stack.enter_context(RawClient(broker.bootstrap_servers))
            assert read_topic(last, "t") == [b"before", b"meanwhile"]
        else:
            with contextlib.suppress(ConnectionResetError):
                assert member.recv(1) == b"", "a connection too many is closed at once"
    with FencepostProcess(folder) as broker, RawClient(broker.bootstrap_servers) as client:
        assert read_topic(client, "t") == [b"before", b"meanwhile"]
