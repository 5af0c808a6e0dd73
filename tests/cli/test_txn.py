"""`fencepost txn` on an embedded broker."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import pytest
from typer.testing import CliRunner

import fencepost
from fencepost.base.failures import FencepostError
from fencepost.cli import connection, main
from fencepost.cli.app import app
from fencepost.cli.units import for_people, moment_for_people, parse_duration
from tools.processes import free_port


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
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


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["txn", *arguments])
    if result.exception is not None:
        raise result.exception
    return result.stdout


def listed(servers: str, *arguments: str) -> dict[str, dict[str, Any]]:
    rows = json.loads(run("list", "--json", "--bootstrap-servers", servers, *arguments))
    return {row["transactional_id"]: row for row in rows}


def test_list_shows_state_and_age_of_every_id(servers: str) -> None:
    rows = listed(servers)
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
def test_list_filters(servers: str, arguments: list[str], expected: set[str]) -> None:
    assert set(listed(servers, *arguments)) == expected


def test_list_filters_by_producer_id(servers: str) -> None:
    wanted = listed(servers)["fresh"]["producer_id"]
    assert set(listed(servers, "--producer-id", str(wanted))) == {"fresh"}


def test_the_table_has_a_row_per_id_and_a_message_if_none_match(servers: str) -> None:
    table = run("list", "--bootstrap-servers", servers)
    assert "Ongoing" in table
    assert len(table.strip().splitlines()) == 4
    nothing = run("list", "--bootstrap-servers", servers, "--pattern", "nobody")
    assert nothing.strip() == "No transactional id matches."


def test_describe_combines_the_coordinators_state_and_its_log_record(servers: str) -> None:
    shown = json.loads(run("describe", "open", "--json", "--bootstrap-servers", servers))
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


def test_describe_prints_times_in_readable_form(servers: str) -> None:
    lines = run("describe", "open", "--bootstrap-servers", servers).splitlines()
    shown = dict(re.split(r"\s{2,}", line.strip(), maxsplit=1) for line in lines)
    assert shown["timeout"] == "1 min 0 s"
    assert re.fullmatch(r"~[0-9.]+ m?s", shown["age"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} UTC", shown["start"])
    assert shown["last update"] >= shown["start"]
    assert shown["next producer id"] == "-"


def test_describe_of_an_unknown_id_explains_why_it_may_be_unknown(servers: str) -> None:
    with pytest.raises(FencepostError, match=r"transactional\.id\.expiration\.ms"):
        run("describe", "nobody", "--bootstrap-servers", servers)


def test_a_malformed_client_setting_is_refused(servers: str) -> None:
    with pytest.raises(FencepostError, match="name=value"):
        run("list", "--bootstrap-servers", servers, "--client-config", "nonsense")


def test_an_unknown_state_is_refused_with_the_list_of_valid_ones(servers: str) -> None:
    with pytest.raises(FencepostError, match=r"no state 'Open'.*Ongoing, PrepareCommit"):
        run("list", "--bootstrap-servers", servers, "--state", "Open")


def test_a_refused_connection_is_reported_at_once_with_what_to_do() -> None:
    closed = f"127.0.0.1:{free_port()}"
    with pytest.raises(
        FencepostError, match=f"{closed}: Connection refused.*fencepost serve"
    ) as said:
        run("list", "--bootstrap-servers", f"{closed},no-such-host.invalid:9092")
    assert "no-such-host.invalid:9092: " in str(said.value)


def test_a_live_broker_among_dead_ones_is_found(servers: str) -> None:
    closed = f"127.0.0.1:{free_port()}"
    assert "open" in listed(f"{closed},{servers}")


def test_a_broker_that_accepts_but_does_not_answer_is_given_up_for_a_live_one(
    servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "LOOK_MS", 200)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        assert "open" in listed(f"{address},{servers}")


def test_a_broker_that_accepts_but_does_not_answer_is_named_while_waiting(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(connection, "_SILENCE_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        patience = "--client-config=default.api.timeout.ms=400"
        code = main.run(["txn", "list", f"--bootstrap-servers={address}", patience])
    said = capsys.readouterr()
    assert code == 1
    first, last = said.err.splitlines()
    assert first == f"fencepost: waiting for an answer from {address} ..."
    assert last.startswith(f"fencepost: No broker answered within 400 ms ({address}: ")
    assert said.out == ""


@pytest.mark.parametrize(
    ("duration_ms", "words"),
    [
        (0, "<1 ms"),
        (1, "1 ms"),
        (850, "850 ms"),
        (12_345, "12.3 s"),
        (250_000, "4 min 10 s"),
        (11_100_000, "3 h 5 min"),
        (187_200_000, "2 d 4 h"),
    ],
)
def test_durations_are_printed_in_short_form(duration_ms: int, words: str) -> None:
    assert for_people(duration_ms) == words


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [
        ("500ms", 500),
        ("10s", 10_000),
        ("5m", 300_000),
        ("2h", 7_200_000),
        ("1.5 s", 1_500),
        ("1d", 86_400_000),
        ("0s", 0),
    ],
)
def test_durations_are_read_with_their_unit(text: str, duration_ms: int) -> None:
    assert parse_duration(text) == duration_ms


@pytest.mark.parametrize(
    "text", ["", "10", "s", "-1s", "10 minutes", "1e3s", "9" * 30 + "h", "nan s"]
)
def test_what_is_no_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="500ms"):
        parse_duration(text)


def test_timestamps_are_printed_to_the_millisecond() -> None:
    assert moment_for_people(1_700_000_000_007) == "2023-11-14 22:13:20.007 UTC"
