"""docs/guide/security.md is followed as a reader would, from nothing to clients that log in.

The port is another one, because that of the page may be in use. The broker is started twice: as the
page says, and on the same directory with the options of its systemd unit.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from fencepost.base.ids import TopicPartition
from fencepost.client.blocking import Cluster, connect
from fencepost.client.users import describe_users
from tools.fencepost_process import READY
from tools.processes import ServerProcess, free_port

pytest.importorskip("confluent_kafka", reason="the page uses it")
pytest.importorskip("kafka", reason="the page uses it")
pytest.importorskip("aiokafka", reason="the page uses it")
if shutil.which("openssl") is None:
    pytest.skip("the page uses openssl", allow_module_level=True)

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = (ROOT / "docs" / "guide" / "security.md").read_text()
BLOCK: Final = re.compile(r'^```\w*(?: title="([\w.]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
UNIT_FOLDERS: Final = {"/var/lib/fencepost": "fencepost-data", "/etc/fencepost/": ""}
"""The folders of the unit, and where the files of the page are."""


class Reader:
    """A user with an empty folder, and a terminal in which `fencepost` is installed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        program = folder / "bin" / "fencepost"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m fencepost "$@"\n')
        program.chmod(0o755)
        path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
        self.environment = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT / "src")}

    def here(self, text: str) -> str:
        return text.replace("9093", str(self.port))

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", "-e", "-c", self.here(command)],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def as_admin(self) -> Cluster:
        lines = (self.folder / "admin.properties").read_text().splitlines()
        settings = dict(line.split("=", 1) for line in lines)
        return connect(settings.pop("bootstrap.servers"), settings)

    def serve(self, command: str) -> ServerProcess:
        words = [sys.executable, "-m", *shlex.split(self.here(command))]
        started = ServerProcess(words, environment=self.environment, folder=self.folder)
        started.wait_for_line(lambda line: line if READY.match(line) else None, 60)
        return started


@pytest.mark.slow
def test_the_page_leads_from_nothing_to_clients_that_log_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = Reader(tmp_path)
    found = BLOCK.findall(PAGE)
    files = {name: content for name, content in found if name}
    for name, content in files.items():
        (tmp_path / name).write_text(reader.here(content))
    blocks = [content for name, content in found if not name]
    (serving,) = (block for block in blocks if block.startswith("fencepost serve"))
    before, after = blocks[: blocks.index(serving)], blocks[blocks.index(serving) + 1 :]
    printed = [follow(reader, block) for block in before]
    with reader.serve(serving):
        printed += [follow(reader, block) for block in after]
        for program in (name for name in files if name.endswith(".py")):
            done = reader.run(f"{sys.executable} {program}")
            assert done.returncode == 0, done.stderr
        monkeypatch.chdir(tmp_path)
        with reader.as_admin() as admin:
            written = [
                record.value or b""
                for partition in range(4)
                for record in admin.records(TopicPartition("orders", partition))
            ]
    assert sorted(written) == [b"42", b"aiokafka", b"confluent-kafka", b"kafka-python"]
    assert "42\n" in "".join(printed)
    with reader.serve(command_of_the_unit(files["fencepost.service"])), reader.as_admin() as admin:
        assert {each.user for each in admin.run(describe_users(admin.core))} == {"admin", "alice"}


def follow(reader: Reader, block: str) -> str:
    """Runs a block; one that begins with a prompt shows what the command says as it fails."""
    if block.startswith("$ "):
        command, _, expected = block.removeprefix("$ ").partition("\n")
        done = reader.run(command)
        assert (done.returncode != 0, done.stderr) == (True, expected)
        return ""
    done = reader.run(block)
    assert done.returncode == 0, f"{block}\n{done.stderr}"
    return done.stdout


def command_of_the_unit(unit: str) -> str:
    (command,) = re.findall(r"^ExecStart=\S+/(fencepost serve .*)$", unit, re.MULTILINE)
    (credential,) = re.findall(r"^LoadCredential=(\w+):/etc/fencepost/(\S+)$", unit, re.MULTILINE)
    command = command.replace(f"%d/{credential[0]}", credential[1])
    for there, here in UNIT_FOLDERS.items():
        command = command.replace(there, here)
    return str(command)
