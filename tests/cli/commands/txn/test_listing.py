"""`fencepost txn list` and `describe` on an embedded broker."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import pytest

import fencepost
from tests.cli.running import Commands


@pytest.fixture(scope="module")
def servers(broker: fencepost.Broker) -> Iterator[str]:
    """A broker with an open transaction, a committed one, and an initialised id."""
    with fencepost.Broker() as broker:
        producers = {
            name: confluent_kafka.Producer(
                {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": name}
            )
            for name in ("open", "committed", "fresh")
        }
        for producer in producers.values():
            producer.init_transactions(30)
        for name in ("open", "committed"):
            producers[name].begin_transaction()
            producers[name].produce("refunds", b"v")
            producers[name].flush(30)
        producers["committed"].commit_transaction(30)
        yield broker.bootstrap_servers
        producers["open"].abort_transaction(30)


def listed(commands: Commands, *arguments: str) -> dict[str, dict[str, Any]]:
    return {row["transactional_id"]: row for row in commands.json("txn", "list", *arguments)}


def test_list_shows_state_and_age_of_every_id(commands: Commands) -> None:
    rows = listed(commands)
    assert {name: row["state"] for name, row in rows.items()} == {
        "open": "Ongoing",
        "committed": "CompleteCommit",
        "fresh": "Empty",
    }
    assert rows["open"]["age_ms"]["value"] >= 0
    assert rows["open"]["age_ms"]["certainty"] == "estimated"
    assert rows["committed"]["age_ms"] is None
    assert rows["open"]["partitions"] == 1


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--state", "Ongoing"], {"open"}),
        (["--state", "completecommit"], {"committed"}),
        (["--state", "Ongoing", "--state", "Empty"], {"open", "fresh"}),
        (["--pattern", "com.*"], {"committed"}),
        (["--older-than", "1h"], set()),
        (["--older-than", "0ms"], {"open"}),
        (["--older-than-ms", "3600000"], set()),
    ],
)
def test_list_filters(commands: Commands, arguments: list[str], expected: set[str]) -> None:
    assert set(listed(commands, *arguments)) == expected


def test_list_filters_by_producer_id(commands: Commands) -> None:
    wanted = listed(commands)["fresh"]["producer_id"]
    assert set(listed(commands, "--producer-id", str(wanted))) == {"fresh"}


def test_the_table_has_a_row_per_id_and_a_message_if_none_match(commands: Commands) -> None:
    table = commands.run("txn", "list")
    assert "Ongoing" in table
    assert len(table.strip().splitlines()) == 4
    nothing = commands.run("txn", "list", "--pattern", "nobody")
    assert nothing.strip() == "No transactional id matches."


def test_describe_combines_the_coordinators_state_and_its_log_record(commands: Commands) -> None:
    shown = commands.json("txn", "describe", "open")
    assert shown["state"] == "Ongoing"
    assert shown["partitions"] == ["refunds-0"]
    assert 0 < shown["times_out_in_ms"]["value"] <= shown["timeout_ms"]
    latest = shown["times_out_in_at_most_ms"]["value"]
    assert latest == shown["times_out_in_ms"]["value"] + 10_000
    assert (shown["coordinator"], shown["client_id"]) == (1, "rdkafka")
    assert shown["client_host"] == "127.0.0.1"
    assert shown["log_partition"].startswith("__transaction_state-")
    assert shown["log_offset"] >= 1
    assert shown["last_producer_id"] == shown["producer_id"]
    assert shown["client_transaction_version"] == 0


def test_describe_prints_times_in_readable_form(commands: Commands) -> None:
    lines = commands.run("txn", "describe", "open").splitlines()
    shown = dict(re.split(r"\s{2,}", line.strip(), maxsplit=1) for line in lines)
    assert shown["timeout"] == "1 min 0 s"
    assert re.fullmatch(r"~[0-9.]+ m?s", shown["age"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} UTC", shown["start"])
    assert shown["last update"] >= shown["start"]
    assert shown["next producer id"] == "-"


def test_describe_of_an_unknown_id_explains_why_it_may_be_unknown(commands: Commands) -> None:
    said = commands.refusal("txn", "describe", "nobody")
    assert "transactional.id.expiration.ms" in said


def test_an_unknown_state_is_refused_with_the_list_of_valid_ones(commands: Commands) -> None:
    said = commands.refusal("txn", "list", "--state", "Open")
    assert re.search(r"no state 'Open'.*Ongoing, PrepareCommit", said)
