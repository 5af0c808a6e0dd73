"""A broker of the cluster does not answer: the rest is shown, the broker named, the exit code 1.

The second broker is only a name here: it is missing from every list of transactional ids.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from fencepost.cli import main
from fencepost.client.steps import Steps
from fencepost.client.survey import coordinators
from fencepost.client.survey.asking import Missing, ask_all_brokers
from tests.forensics.situations.open_transactions import (
    forgotten_hanging_transaction,
    pinned_partition,
)

DEAD = Missing("broker 2 at 192.0.2.1:9092 did not answer: Connection refused", broker=2)


@pytest.fixture(autouse=True)
def _one_broker_is_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(*arguments: Any) -> Steps[dict[int, Any]]:
        found = yield from ask_all_brokers(*arguments)
        return {**found, 2: DEAD}

    monkeypatch.setattr(coordinators, "ask_all_brokers", ask)


def run(
    capsys: pytest.CaptureFixture[str], servers: str, *arguments: str
) -> tuple[int, list[dict[str, Any]], str]:
    code = main.run([*arguments, "--json", "--bootstrap-servers", servers])
    shown = capsys.readouterr()
    return code, json.loads(shown.out), shown.err


SAID = f"fencepost: {DEAD.reason}. What it leads or coordinates is not shown; the rest is.\n"


@pytest.mark.parametrize("words", [("txn", "list"), ("pins",)])
def test_the_rest_is_shown_and_the_dead_broker_named(
    servers: str, name: str, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    with pinned_partition(servers, name, name):
        code, rows, said = run(capsys, servers, *words)
        assert (code, said) == (1, SAID)
        assert name in [row["transactional_id"] for row in rows]


def test_what_the_dead_broker_may_know_is_not_called_absent(
    servers: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with forgotten_hanging_transaction(servers, name):
        code, (pin,), said = run(capsys, servers, "pins", name)
        assert (code, said, pin["kind"]) == (1, SAID, "cannot tell")
        assert "broker 2" in pin["why"]
        code, (row,), _ = run(capsys, servers, "txn", "find-hanging", name)
        assert (code, row["verdict"]) == (1, "cannot tell")
        code, _, _ = run(capsys, servers, "txn", "find-hanging", name, "--check")
        assert code == 3
        arguments = ["txn", "abort", f"{name}:0", "--start-offset", "0", "--yes"]
        assert main.run([*arguments, "--bootstrap-servers", servers]) == 1
        assert "It cannot be told" in capsys.readouterr().err
        assert main.run([*arguments, "--force", "--bootstrap-servers", servers]) == 0
