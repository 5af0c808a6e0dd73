"""The README is followed as a new user would: every block in order, in an empty folder. So are the
first example of the home page and that of the page on idempotence; the options for remote clients
on the page of the broker start one.

Only the address is another one, as the port of the README may be in use, and what pip and make do
is left out. A block after a program or a command shows its output.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from fencepost.client.blocking import connect
from tools.fencepost_process import FencepostProcess

ROOT: Final = Path(__file__).resolve().parent.parent
README: Final = (ROOT / "README.md").read_text()
BLOCK: Final = re.compile(r"^```(python|)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAME: Final = re.compile(r"Save this as `([\w.]+)`:\s*$")
COMMANDS: Final = ("fencepost ", "python ", "printf ")
ADDRESS: Final = "127.0.0.1:9092"


def commands(block: str) -> list[str]:
    """The command lines of a block; none if the block is output."""
    lines = [re.sub(r" +# .*", "", line) for line in block.splitlines()]
    return [line for line in lines if line.startswith(COMMANDS)]


def section(title: str, page: str = README) -> str:
    return page.partition(f"## {title}\n")[2].partition("\n## ")[0]


class Reader:
    """A user with an empty folder and a terminal in which `fencepost` is installed."""

    def __init__(self, folder: Path, servers: str = "") -> None:
        self.folder = folder
        self.servers = servers
        programs = folder / "bin"
        programs.mkdir()
        for name, words in {"python": "", "fencepost": "-m fencepost"}.items():
            given = f"--bootstrap-servers {servers}" if name == "fencepost" else ""
            program = programs / name
            program.write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@" {given}\n')
            program.chmod(0o755)
        self._environment = os.environ | {
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT / "src"),
            "SPARK_SUBMIT_OPTS": "",  # Spark's own defaults, without the settings of other tests.
        }

    def run(self, command: str) -> str:
        done = subprocess.run(
            command,
            shell=True,
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        return done.stdout

    def follow(self, text: str) -> int:
        """Runs the blocks of a section; returns how many of them show the output of another."""
        output, shown, end = "", 0, 0
        for block in BLOCK.finditer(text):
            before, end = text[end : block.start()], block.end()
            kind, code = block.groups()
            if kind == "python":
                named = NAME.search(before)
                program = self.folder / (named[1] if named else "example.py")
                program.write_text(code.replace(ADDRESS, self.servers))
                output = "" if named else self.run(f"python {program.name}")
            elif lines := commands(code):
                for line in lines:
                    output = self.run(line)
            else:
                assert output == code, "the README shows another output"
                shown += 1
        return shown


def test_the_first_example_of_the_readme_prints_what_the_readme_shows(tmp_path: Path) -> None:
    pytest.importorskip("confluent_kafka", reason="the example uses it")
    assert Reader(tmp_path).follow(section("In tests")) == 1


def test_the_first_example_of_the_home_page_works(tmp_path: Path) -> None:
    pytest.importorskip("confluent_kafka", reason="the example uses it")
    home = (ROOT / "docs" / "index.md").read_text()
    first = next(block for block in BLOCK.finditer(home) if block[1])
    Reader(tmp_path).follow(first[0])


def test_a_lost_reply_doubles_a_record_unless_the_producer_is_idempotent(tmp_path: Path) -> None:
    pytest.importorskip("confluent_kafka", reason="the example uses it")
    page = (ROOT / "docs" / "concepts" / "idempotence.md").read_text()
    assert Reader(tmp_path).follow(section("Try it", page)) == 1


def test_the_readme_installs_what_its_first_example_imports() -> None:
    assert "confluent-kafka" in section("Install")


def test_the_broker_of_the_readme_starts_and_its_commands_answer(tmp_path: Path) -> None:
    serve, *others = commands(section("As a broker").replace("\n```\n", "\n"))
    options = serve.removeprefix("fencepost serve --data ./fencepost-data").split()
    with FencepostProcess(tmp_path / "fencepost-data", options=options) as broker:
        reader = Reader(tmp_path, broker.bootstrap_servers)
        for command in others:
            reader.run(command)
    assert [command.split()[1] for command in others] == ["txn", "pins"]


def test_the_options_for_other_machines_start_a_broker_that_clients_reach(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "guide" / "broker.md").read_text()
    (shown,) = re.findall(r"^\| other machines to reach it \| `(.*?)`", page, re.MULTILINE)
    assert ":9092" in shown
    _, listen, *options = shown.replace(":9092", ":0").replace("NAME", "localhost").split()
    with FencepostProcess(tmp_path, listen=listen, options=options) as broker:
        port = broker.bootstrap_servers.rpartition(":")[2]
        with connect(f"localhost:{port}") as cluster:
            (found,) = cluster.describe_cluster().brokers.values()
    assert (found.host, found.port) == ("localhost", int(port))


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_spark_part_of_the_readme_works_as_described_twice_in_a_row(tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="the extra spark is not installed")
    with FencepostProcess(tmp_path / "fencepost-data") as broker:
        reader = Reader(tmp_path, broker.bootstrap_servers)
        assert reader.follow(section("On Spark")) == 1
        once = reader.run("fencepost topic consume approved-invoices")
        reader.run("python approve.py")  # again, with nothing new
        assert reader.run("fencepost topic consume approved-invoices") == once
        with connect(broker.bootstrap_servers) as cluster:
            offsets = cluster.offset_fetch("fencepost-approve-invoices")
    assert sum(committed.offset for committed in offsets.values()) == 2
