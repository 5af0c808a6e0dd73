"""The first bootstrap server does not answer: every command asks the second one.

Each command gets a server that accepts connections and never answers, then a broker. What it prints
shows that the broker was asked: its result, or an error about what the command named.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import fencepost
from fencepost.base.failures import FencepostError
from fencepost.cli import main
from fencepost.cli.app import app
from fencepost.client import calls, reaching
from fencepost.client.admin import NewTopic
from fencepost.client.blocking import connect
from fencepost_examples.demo.cluster import SHORT_TIMEOUTS, require_brokers
from tests.client.silent_servers import closed, mute
from tests.forensics.tap.traces import a_timeout

DEADLINE = ("--client-config", "default.api.timeout.ms=8000")
"""Less than socket.connection.setup.timeout.ms, so that one server could use it up."""

NOT_COMMANDED = "cannot be commanded"
NO_AUTHORIZER = "authorizer.class.name"

COMMANDS: dict[str, tuple[int, str]] = {
    "pins": (0, "No partition is pinned"),
    "top --once --interval 100ms --json": (0, '"Empty"'),
    "lag nobody": (1, "There is no group 'nobody'"),
    "records payments:0": (0, ""),
    "audit --input nowhere --output payments": (1, "nowhere"),
    "txn list": (0, "refunds-1"),
    "txn describe refunds-1": (0, "refunds-1"),
    "txn producers payments": (0, "No producer is known there."),
    "txn find-hanging": (0, "No transaction hangs"),
    "txn fence nobody --yes": (1, "No coordinator knows"),
    "txn abort refunds-1 --yes": (0, "Nothing was changed."),
    "txn commit refunds-1 --yes": (0, "Nothing was changed."),
    "txn why refunds-1": (0, "not fenced"),
    "txn timeline refunds-1": (0, "Empty"),
    "topic list": (0, "payments"),
    "topic create payments": (1, "exists"),
    "topic describe payments": (0, "payments"),
    "topic alter nowhere --partitions 2": (1, "There is no topic"),
    "topic delete nowhere --yes": (1, "There is no topic"),
    "topic produce payments /dev/null": (0, ""),
    "topic consume payments": (0, ""),
    "produce payments /dev/null": (0, ""),
    "consume payments": (0, ""),
    "group list": (0, "There are no groups."),
    "group describe nobody": (1, "There is no group"),
    "group reset nobody --topic nowhere --to-earliest --yes": (1, "There is no topic"),
    "group delete nobody --yes": (1, "There is no group"),
    "config get --topic payments": (0, "topic 'payments'"),
    "config set retention.ms=5 --topic nowhere": (1, "There is no topic"),
    "cluster status": (0, "serving"),
    "cluster move nowhere:0 --to 1": (1, "There is no topic"),
    "cluster roll": (1, NOT_COMMANDED),
    "cluster kill 1": (1, NOT_COMMANDED),
    "cluster restart 1": (1, NOT_COMMANDED),
    "cluster pause 1": (1, NOT_COMMANDED),
    "cluster resume 1": (1, NOT_COMMANDED),
    "ledger create": (0, "fencepost-ledger"),
    "ledger list --topic nowhere": (1, "nowhere"),
    "ledger show nobody": (1, "nobody"),
    "ledger adopt nobody --query-id q --last-batch 4 --topic nowhere --yes": (1, "nowhere"),
    "ledger forget nobody --yes": (1, "nobody"),
    "acl list": (1, NO_AUTHORIZER),
    "acl add User:a read topic:t": (1, NO_AUTHORIZER),
    "acl remove User:a read topic:t": (1, NO_AUTHORIZER),
    "acl check User:a read topic:t": (1, NO_AUTHORIZER),
    "acl grant producer User:a --topic t": (1, NO_AUTHORIZER),
    "acl grant consumer User:a --from t --group g": (1, NO_AUTHORIZER),
    "acl grant transactional User:a --transactional-id x --topic t": (1, NO_AUTHORIZER),
    "acl grant spark-sink User:a --transactional-id x --topic t": (1, NO_AUTHORIZER),
    "user list": (0, "There are no users."),
    f"user add alice --password-file {__file__}": (0, "alice can log in"),
    "user remove nobody --yes": (1, "There is no user 'nobody'"),
}


def names_of(command: Any, words: tuple[str, ...] = ()) -> Iterator[str]:
    """All commands with the option --bootstrap-servers."""
    if any(each.name == "bootstrap_servers" for each in command.params):
        yield " ".join(words)
    for name, inner in getattr(command, "commands", {}).items():
        yield from names_of(inner, (*words, name))


ELSEWHERE = {"demo", "tap show", "outbox relay", "outbox status"}
"""Commands with their own tests below; and those that look at a database before."""


def test_every_command_that_connects_is_tried_here() -> None:
    known = set(names_of(typer.main.get_command(app)))
    tried = {name for name in known for each in COMMANDS if f"{each} ".startswith(f"{name} ")}
    assert tried == known - ELSEWHERE


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with fencepost.Broker() as broker:
        with connect(broker.bootstrap_servers) as cluster:
            cluster.create_topics([NewTopic("payments", partitions=1)])
            cluster.init_producer_id("refunds-1")
        yield broker.bootstrap_servers


@pytest.mark.parametrize("command", COMMANDS)
def test_a_first_server_that_accepts_and_never_answers_is_passed_over(
    servers: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    # Each of them would wait half a second.
    monkeypatch.setattr(reaching, "FIRST_SETUP_MS", 100)
    monkeypatch.setattr(calls, "FIRST_SETUP_MS", 100)
    code, words = COMMANDS[command]
    with mute() as silent:
        place = ("--bootstrap-servers", f"{silent},{servers}")
        ended = main.run([*command.split(), *place, *DEADLINE])
    said = capsys.readouterr()
    assert (ended, words in said.out + said.err) == (code, True), said


def test_the_markers_of_a_trace_are_read_from_the_second_server(
    servers: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(json.dumps(line) + "\n" for line in a_timeout().lines))
    with mute() as silent:
        place = ("--bootstrap-servers", f"{silent},{servers}")
        assert main.run(["tap", "show", str(trace), *place]) == 0
    assert "refunds-1" in capsys.readouterr().out


def test_the_demo_finds_the_second_server(servers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with mute() as silent:
        require_brokers(f"{silent},{servers}")
        monkeypatch.setattr("fencepost_examples.demo.cluster.CONNECT_TIMEOUTS", SHORT_TIMEOUTS)
        with pytest.raises(FencepostError, match=f"no broker answers at {silent}"), closed() as too:
            require_brokers(f"{silent},{too}")
