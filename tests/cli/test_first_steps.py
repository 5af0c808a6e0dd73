"""What newcomers type, and what they are told: names from other tools, and what was left out."""

from __future__ import annotations

from pathlib import Path

import pytest

import fencepost
from fencepost.base.failures import ConfigError
from fencepost.base.options import suggest
from fencepost.broker.settings.config import BrokerConfig
from fencepost.cli import main
from fencepost.cli.connection import with_ports
from fencepost.client.blocking import connect
from fencepost.wire.apis import ApiKey
from tests.cli.running import Commands
from tests.forensics import situations


@pytest.fixture(scope="module")
def broker() -> object:
    with fencepost.Broker() as running:
        with connect(running.bootstrap_servers) as cluster:
            cluster.init_producer_id("refunds-1")
        yield running


@pytest.fixture
def servers(broker: fencepost.Broker) -> str:
    return broker.bootstrap_servers


def said_by(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = main.run(list(arguments))
    return code, capsys.readouterr().err.strip()


@pytest.mark.parametrize("word", ["describe", "show", "status"])
def test_describe_show_and_status_are_one_where_only_one_exists(
    commands: Commands, word: str
) -> None:
    commands.run("topic", "create", "shown", "--if-not-exists")
    assert commands.json("topic", word, "shown")["topic"] == "shown"
    assert commands.json("txn", word, "refunds-1")["state"] == "Empty"
    assert commands.json("cluster", word)["brokers"]


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("localhost", "localhost:9092"),
        ("a, b:9093,[::1]", "a:9092,b:9093,[::1]:9092"),
        ("[::1]:9093", "[::1]:9093"),
        ("a:port", "a:port"),
    ],
)
def test_a_server_without_a_port_is_at_kafkas(given: str, meant: str) -> None:
    assert with_ports(given) == meant


@pytest.mark.parametrize("form", [("--bootstrap-server", "{}"), ("--bootstrap-server={}",)])
def test_the_option_of_kafkas_tools_names_the_servers(
    servers: str, capsys: pytest.CaptureFixture[str], form: tuple[str, ...]
) -> None:
    assert main.run(["txn", "list", *(each.format(servers) for each in form)]) == 0
    assert "refunds-1" in capsys.readouterr().out


def test_servers_from_an_empty_variable_are_refused_and_not_replaced_by_the_default(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, said = said_by(capsys, "topic", "delete", "orders", "--yes", "-b", "")
    assert code == 1
    assert "--bootstrap-servers is empty" in said


@pytest.mark.parametrize(
    ("to", "offset"), [("earliest", 0), ("latest", 0), ("0", 0), ("2026-01-01", 0)]
)
def test_a_group_is_reset_to_a_place_in_one_option(
    commands: Commands, to: str, offset: int
) -> None:
    commands.run("topic", "create", "read", "--if-not-exists")
    reset = ("group", "reset", "readers", "--topic", "read", "--dry-run")
    assert [row["new_offset"] for row in commands.json(*reset, "--to", to)] == [offset]
    assert "--shift-by -5" in commands.refusal(*reset, "--to", "-5")
    assert "Say where to" in commands.refusal(*reset, "--to", to, "--to-latest")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["tnx", "list"], "fencepost: No such command 'tnx'. Did you mean 'txn'? See `fencepost"),
        (
            ["txn", "list", "--older-than", "5"],
            "fencepost: Invalid value for '--older-than': '5' is not a duration: write",
        ),
    ],
)
def test_a_usage_error_is_one_plain_sentence(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    code, found = said_by(capsys, *arguments)
    assert code == main.USAGE_ERROR
    assert found.startswith(said)


def test_a_topic_that_exists_is_said_once(commands: Commands) -> None:
    commands.run("topic", "create", "once", "--if-not-exists")
    said = commands.refusal("topic", "create", "once")
    assert said.count("exist") == 2, said  # That it does, and the option --if-not-exists.
    assert "Nothing was changed" in said


def test_acls_of_brokers_without_an_authorizer_name_the_page(commands: Commands) -> None:
    said = commands.refusal("acl", "list")
    assert "docs/guide/security-acls.md" in said
    assert (Path(__file__).parents[2] / "docs/guide/security-acls.md").exists()


def test_a_broker_for_other_machines_is_told_of_security_before_its_name() -> None:
    with pytest.raises(ConfigError) as refused:
        BrokerConfig({"listeners": "PLAINTEXT://0.0.0.0:9092"})
    said = str(refused.value)
    assert 0 <= said.index("TLS and passwords") < said.index("advertised.listeners")
    assert "docs/guide/security.md" in said


def test_an_api_is_found_by_the_long_form_of_its_name() -> None:
    names = [key.name.title().replace("_", "") for key in ApiKey]
    assert suggest("EndTransaction", names) == "; did you mean EndTxn?"
    assert suggest("AddOffsetsToTransaction", names) == "; did you mean AddOffsetsToTxn?"


def test_tap_show_takes_the_id_as_an_argument_or_an_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.jsonl"
    with fencepost.Broker(trace=trace) as broker:
        found = situations.committed(broker.bootstrap_servers)
        situations.committed(broker.bootstrap_servers)
    name = found.transactional_id
    assert main.run(["tap", "show", str(trace), name]) == 0
    drawn = capsys.readouterr().out
    assert name in drawn
    assert main.run(["tap", "show", str(trace), "--transactional-id", name]) == 0
    assert capsys.readouterr().out == drawn
    code, said = said_by(capsys, "tap", "show", str(trace), name, "--transactional-id", "other")
    assert (code, "Two ids are named" in said) == (1, True)
