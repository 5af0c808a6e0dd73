"""The worked examples of the outbox and of the consumer, run word for word in a new folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from fencepost_examples.postgres import binaries
from tests.outside.outbox.conftest import kafka
from tests.outside.postgres import ROOT

__all__ = ["kafka"]

HEADING: Final = "## An example"
BLOCK: Final = re.compile(r"```(\w*)[^\n]*\n(.*?)```", re.DOTALL)


def blocks(page: str) -> list[tuple[str, str]]:
    """Languages and contents of the blocks of the example."""
    text = (ROOT / "docs" / page).read_text()
    return BLOCK.findall(text.partition(HEADING)[2].partition("\n## ")[0])


class Terminal:
    """Runs what a reader of the page would type."""

    def __init__(self, folder: Path, dsn: str, servers: str) -> None:
        self.folder, self.dsn, self.servers = folder, dsn, servers
        paths = [str(Path(sys.executable).parent), os.environ["PATH"]]
        self.environment = {**os.environ, "PATH": os.pathsep.join(paths)}

    def type(self, commands: str) -> str:
        """Their standard output."""
        for there, here in (
            ("host=localhost dbname=shop user=postgres", self.dsn),
            ("localhost:9092", self.servers),
        ):
            commands = commands.replace(there, here)
        return self._run(["bash", "-euc", commands])

    def ask(self, sql: str) -> str:
        found = self._run([str(binaries() / "psql"), "-XqP", "pager=off", "-c", sql, self.dsn])
        return "".join(f"{line.rstrip()}\n" for line in found.strip("\n").splitlines())

    def _run(self, command: list[str]) -> str:
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def terminal(tmp_path: Path, dsn: str, kafka: str) -> Terminal:
    return Terminal(tmp_path, dsn, kafka)


def lines(text: str) -> list[str]:
    """Without the padding of a table."""
    return [line.rstrip() for line in text.splitlines()]


def test_the_example_of_the_outbox_works(terminal: Terminal) -> None:
    setup, sql, relay, expected = (text for _, text in blocks("outside-outbox.md"))
    variables, commands = setup.split("fencepost topic", 1)
    terminal.type(f"{variables}fencepost topic{commands}")
    for statement in filter(str.strip, sql.split("\n\n")):
        with psycopg.connect(terminal.dsn, autocommit=True) as connection:
            connection.execute(statement.encode())
    assert lines(terminal.type(variables + relay)) == lines(expected)
    again = terminal.type(variables + relay)
    assert lines(again)[0].split() == ["rows", "0"]
    assert lines(again)[-1] == lines(expected)[-1]
    with psycopg.connect(terminal.dsn) as connection:
        found = connection.execute("SELECT state FROM orders ORDER BY id").fetchall()
    assert found == [("paid",), ("shipped",)]


def test_the_example_of_the_consumer_works(terminal: Terminal) -> None:
    page = (ROOT / "docs" / "outside-consumer.md").read_text()
    program: Any = dict(reversed(BLOCK.findall(page)))["python"]
    for there, here in (
        ("postgresql://app@db.example/shop", terminal.dsn),
        ("broker.example:9092", terminal.servers),
        ("idle_seconds=10", "idle_seconds=1"),
    ):
        assert there in program
        program = program.replace(there, here)
    (terminal.folder / "stock.py").write_text(program)
    tables, commands, question, expected = (text for _, text in blocks("outside-consumer.md"))
    terminal.ask(tables)
    terminal.type(commands)
    assert terminal.ask(question) == expected
    terminal.type("python stock.py")
    assert terminal.ask(question) == expected
