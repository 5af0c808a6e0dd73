"""`fencepost user`: over the wire, and on a stopped data directory."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

import fencepost
from fencepost.cli import main
from fencepost.client.blocking import connect
from fencepost.client.failures import ClientError
from tests.cli.running import Commands

SECURED = {
    "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
}


def options(user: str, password: str, mechanism: str = "SCRAM-SHA-256") -> dict[str, str]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
    }


def gets_in(servers: str, user: str, password: str, mechanism: str = "SCRAM-SHA-256") -> bool:
    given = options(user, password, mechanism)
    with contextlib.suppress(ClientError), connect(servers, given) as cluster:
        return bool(cluster.metadata(()).brokers)
    return False


def file_of(tmp_path: Path, text: str) -> str:
    path = tmp_path / "password"
    path.write_text(text, "utf-8")
    return str(path)


@pytest.fixture
def broker(tmp_path: Path) -> Any:
    with fencepost.Broker(data=tmp_path / "data") as running:
        yield running


def test_a_user_is_added_listed_and_removed(
    broker: fencepost.Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = Commands(broker.bootstrap_servers, capsys)
    assert commands.json("user", "list") == []
    said = commands.run("user", "add", "alice", "--password-file", file_of(tmp_path, "pencil\n"))
    assert said == "alice can log in with SCRAM-SHA-256 and SCRAM-SHA-512.\n"
    commands.run(
        "user", "add", "bob", "--password-file", file_of(tmp_path, "chalk"),
        "--mechanism", "scram-sha-512", "--iterations", "8192",
    )  # fmt: skip
    assert commands.json("user", "list") == [
        {"user": "alice", "mechanism": "SCRAM-SHA-256", "iterations": 4096},
        {"user": "alice", "mechanism": "SCRAM-SHA-512", "iterations": 4096},
        {"user": "bob", "mechanism": "SCRAM-SHA-512", "iterations": 8192},
    ]
    commands.run("user", "remove", "alice", "--mechanism", "SCRAM-SHA-256", "--yes")
    commands.run("user", "remove", "bob", "--yes")
    assert [each["mechanism"] for each in commands.json("user", "list")] == ["SCRAM-SHA-512"]
    assert commands.refusal("user", "remove", "carol", "--yes") == (
        "There is no user 'carol'. Nothing was changed."
    )


@pytest.mark.parametrize(
    ("text", "said"), [("", "empty first line"), ("\nsecond", "empty first line")]
)
def test_a_password_file_without_a_password_is_refused(
    broker: fencepost.Broker,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    text: str,
    said: str,
) -> None:
    commands = Commands(broker.bootstrap_servers, capsys)
    assert said in commands.refusal(
        "user", "add", "alice", "--password-file", file_of(tmp_path, text)
    )
    assert "cannot be read" in commands.refusal(
        "user", "add", "alice", "--password-file", str(tmp_path / "none")
    )
    commands.run("user", "add", "a", "--iterations", "100", "--password-file", "x", code=2)
    assert commands.json("user", "list") == []


def test_without_a_terminal_the_password_is_not_asked_for(
    broker: fencepost.Broker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("pencil\n"))
    commands = Commands(broker.bootstrap_servers, capsys)
    assert "--password-file FILE" in commands.refusal("user", "add", "alice")
    commands.run("user", "add", "alice", "--password-file", "-")


def test_users_of_a_stopped_directory_are_changed_without_a_broker(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    with fencepost.Broker(data=data):
        pass
    given = ["--data", str(data)]
    file = file_of(tmp_path, "pencil\n")
    assert main.run(["user", "add", "alice", "--password-file", file, *given]) == 0
    assert main.run(["user", "add", "bob", "--password-file", file, *given]) == 0
    assert main.run(["user", "remove", "bob", "--yes", *given]) == 0
    capsys.readouterr()
    assert main.run(["user", "list", *given]) == 0
    shown = capsys.readouterr().out
    assert "alice" in shown
    assert "bob" not in shown
    with fencepost.Broker(data=data, config=SECURED) as broker:
        for mechanism in SECURED["sasl.enabled.mechanisms"].split(","):
            assert gets_in(broker.bootstrap_servers, "alice", "pencil", mechanism)
        assert not gets_in(broker.bootstrap_servers, "bob", "pencil")
        salts = broker.call(
            lambda node: [each.salt for each in node.metadata.users["alice"].values()]
        )
        # Like those that the broker makes up for users who do not exist.
        assert [bool(re.fullmatch(b"[0-9a-z]{20,26}", each)) for each in salts] == [True, True]
        assert main.run(["user", "list", *given]) == 1
        assert "Stop the broker first" in capsys.readouterr().err


def test_a_directory_that_no_broker_has_used_has_no_users(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["user", "list", "--data", str(tmp_path)]) == 1
    assert "--init-admin" in capsys.readouterr().err
    assert main.run(["user", "list", "--data", str(tmp_path / "none")]) == 1
    assert list(tmp_path.iterdir()) == []
