"""Goal: `fencepost txn` prints the same on Apache Kafka and on fencepost.

Method: twin runs (see the package's docstring); the command runs in this process.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from typer.testing import CliRunner

from fencepost.cli.app import app
from tests.compat.twin.likeness import moment
from tests.compat.twin.transactional import finish, init, start, write
from tests.transactions.protocol import TV1, TV2

if TYPE_CHECKING:
    from tests.compat.twin.talk import Talk, Twins

NAMES = ("cmd-empty", "cmd-open", "cmd-committed", "cmd-aborted", "cmd-again")


def run(talk: Talk, *arguments: str) -> Any:
    servers = ("--bootstrap-servers", talk.side.bootstrap_servers)
    result = CliRunner().invoke(app, ["txn", *arguments, *servers, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def seen(talk: Talk, row: dict[str, Any]) -> dict[str, Any]:
    """A row in comparable form: relative producer ids, times as words, ages as yes or no.

    Only fencepost names the client.
    """
    producers = ("producer_id", "last_producer_id", "next_producer_id")
    times = ("start_ms", "last_update_ms")
    ages = ("age_ms", "times_out_in_ms", "times_out_in_at_most_ms", "log_offset")
    return {
        name: value
        if value is None
        else talk.eyes.producer(value)
        if name in producers
        else moment(value)
        if name in times
        else (value["value"] if isinstance(value, dict) else value) >= 0
        if name in ages
        else value
        for name, value in row.items()
        if name not in ("client_id", "client_host", "client_connection")
    }


def test_the_txn_command_prints_the_same_on_both_brokers(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        talk.topic("cmd", 2)
        ids = {name: start(talk, name) for name in NAMES}
        for name in NAMES[1:]:
            protocol = TV1 if name == "cmd-aborted" else TV2
            for index in (0, 1):
                write(talk, ids[name], protocol, "cmd", b"x", index=index)
        finish(talk, ids["cmd-committed"], TV2, commit=True)
        finish(talk, ids["cmd-aborted"], TV1, commit=False)
        again = ids["cmd-again"]
        finish(talk, again, TV2, commit=True)
        talk.ask(
            "its own epoch", init("cmd-again", producer_id=again.producer_id, epoch=again.epoch)
        )
        for filters in (
            ("--pattern", "cmd-.*"),
            ("--pattern", "cmd-.*", "--state", "Ongoing"),
            ("--pattern", "cmd-.*", "--older-than", "0s"),
            ("--pattern", "cmd-nobody"),
            ("--producer-id", str(ids["cmd-open"].producer_id)),
        ):
            rows = run(talk, "list", *filters)
            talk.note(f"listed by {filters[::2]}", [seen(talk, row) for row in rows])
        for name in NAMES:
            row = seen(talk, run(talk, "describe", name))
            last_epoch = row.pop("last_producer_epoch")
            talk.note(f"{name} described", row)
            # The others have none: no producer has a second epoch.
            kept = name in ("cmd-committed", "cmd-again")
            differs = "`__transaction_state`" if kept else None
            talk.note(f"{name}, its last epoch", last_epoch, differs=differs)

    twins.compare(script, at_once=False)  # Two commands at a time would share one standard output.
