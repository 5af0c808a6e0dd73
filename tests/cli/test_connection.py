"""How a command finds its cluster."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

import fencepost
from fencepost.cli import connection, main
from tests.cli.running import Commands
from tools.processes import free_port


def test_a_malformed_client_setting_is_refused(commands: Commands) -> None:
    assert "name=value" in commands.refusal("txn", "list", "--client-config", "nonsense")


@pytest.mark.parametrize("name", ["sasl.password", "sasl.jaas.config", " ssl.keystore.key "])
def test_a_secret_is_refused_as_an_argument(commands: Commands, name: str) -> None:
    said = commands.refusal("txn", "list", "--client-config", f"{name}=planted-secret")
    assert "--config" in said
    assert "planted-secret" not in said


def test_a_refused_connection_is_reported_at_once_with_what_to_do(
    capsys: pytest.CaptureFixture[str],
) -> None:
    closed = f"127.0.0.1:{free_port()}"
    said = Commands(f"{closed},no-such-host.invalid:9092", capsys).refusal("txn", "list")
    assert re.search(f"{closed}: Connection refused.*fencepost serve", said)
    assert "no-such-host.invalid:9092: " in said


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
    assert "with TLS or passwords" in last
    assert "Start one" not in last
    assert said.out == ""


def test_a_config_file_gives_brokers_and_client_settings(
    tmp_path: Path, fencepost_broker: fencepost.Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "client.properties"
    file.write_text(f"bootstrap.servers={fencepost_broker.bootstrap_servers}\nclient.id = night\n")
    assert main.run(["txn", "list", "--config", str(file)]) == 0
    assert capsys.readouterr().out == "No transactional id matches.\n"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read: No such file or directory."),
        (b"\xff\xfe", "cannot be read: it is not UTF-8 text."),
        (b"sasl.mechanisme=PLAIN", "sasl.mechanism"),
    ],
)
def test_a_bad_config_file_is_reported_in_one_line(
    tmp_path: Path, content: bytes | None, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "client.properties"
    if content is not None:
        file.write_bytes(content)
    assert main.run(["txn", "list", "--config", str(file)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_the_cluster_comes_from_the_option_then_the_file_then_the_environment(
    tmp_path: Path,
    fencepost_broker: fencepost.Broker,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here, nowhere = fencepost_broker.bootstrap_servers, "127.0.0.1:1"
    names_here, names_nowhere = tmp_path / "here", tmp_path / "nowhere"
    names_here.write_text(f"bootstrap.servers={here}")
    names_nowhere.write_text(f"bootstrap.servers={nowhere}")
    for variable, arguments in (
        (here, []),
        (nowhere, ["-b", here]),
        (nowhere, ["--config", str(names_here)]),
        (nowhere, ["--config", str(names_nowhere), "--bootstrap-servers", here]),
    ):
        monkeypatch.setenv("FENCEPOST_BOOTSTRAP_SERVERS", variable)
        assert main.run(["txn", "list", *arguments]) == 0, capsys.readouterr().err
    monkeypatch.setenv("FENCEPOST_BOOTSTRAP_SERVERS", here)
    assert main.run(["txn", "list", "-b", nowhere]) == 1
    assert main.run(["txn", "list", "--config", str(names_nowhere)]) == 1


@pytest.mark.parametrize("variable", ["nonsense", "a..b:1", "\udcff:9092", ",", "h:99999"])
def test_a_bad_address_in_the_environment_is_reported_in_one_line(
    variable: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FENCEPOST_BOOTSTRAP_SERVERS", variable)
    assert main.run(["topic", "list"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("fencepost: ")
    line.encode()


def test_an_empty_variable_is_no_address(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FENCEPOST_BOOTSTRAP_SERVERS", "")
    monkeypatch.setattr("fencepost.cli.connection.HOME", "127.0.0.1:1")
    assert main.run(["topic", "list"]) == 1
    assert "127.0.0.1:1: Connection refused" in capsys.readouterr().err
    assert main.run(["tap"]) == 2
    assert "name a broker of the cluster with --to HOST:PORT" in capsys.readouterr().err
