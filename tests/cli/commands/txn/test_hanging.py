"""`fencepost txn find-hanging` on an embedded broker."""

from __future__ import annotations

from fencepost.cli import main
from tests.cli.running import Commands
from tests.forensics.situations.open_transactions import (
    forgotten_hanging_transaction,
    pinned_partition,
)


def test_find_hanging_has_the_verdict_and_the_command(
    servers: str, commands: Commands, name: str
) -> None:
    with forgotten_hanging_transaction(servers, name) as opened:
        (row,) = commands.json("txn", "find-hanging", name, "--check", code=3)
        assert row["verdict"] == "hanging"
        assert row["producer_id"] == opened.identity.producer_id
        assert row["last_write_age_ms"]["value"] >= 3_600_000
        assert commands.json("txn", "find-hanging", name, "--max-timeout", "2h")[0]["verdict"] == (
            "suspect"
        )
        assert len(commands.json("txn", "find-hanging", "--broker", "1")) >= 1
        _, *arguments = row["command"].split()
        assert main.run([*arguments, "--yes"]) == 0
        assert commands.json("txn", "find-hanging", name, "--check") == []


def test_find_hanging_of_a_broker_that_does_not_exist_is_refused(commands: Commands) -> None:
    said = commands.refusal("txn", "find-hanging", "--broker", "9")
    assert "no live broker 9; its brokers are 1" in said


def test_an_open_transaction_is_never_called_hanging(
    servers: str, commands: Commands, name: str
) -> None:
    with pinned_partition(servers, name, name):
        assert commands.json("txn", "find-hanging", name, "--max-timeout", "0s") == []
