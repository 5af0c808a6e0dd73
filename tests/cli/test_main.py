"""Exit codes and error messages of all commands."""

from __future__ import annotations

from pathlib import Path

import pytest

import fencepost
from fencepost.cli import main
from tests.cli.running import exit_code, fencepost_process


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nonsense"], "No such command 'nonsense'. See `fencepost --help`."),
        (["txn", "nonsense"], "No such command 'nonsense'. See `fencepost txn --help`."),
        (
            ["txn", "list", "--nonsense"],
            "No such option: --nonsense. See `fencepost txn list --help`",
        ),
        (["txn", "list", "--older-than", "soon"], "Invalid value for '--older-than'"),
        (["pins", "--older-than", "10"], "Invalid value for '--older-than'"),
        (["txn", "fence"], "See `fencepost txn fence --help`"),
        (["txn", "abort", "a:0", "--producer-id", "x"], "Invalid value for '--producer-id'"),
        (["txn", "list", "--producer-id", str(2**63)], "Invalid value for '--producer-id'"),
        (["txn", "describe"], "See `fencepost txn describe --help`"),
        (["cluster", "move", "refunds:0"], "See `fencepost cluster move --help`"),
        (["cluster", "kill"], "See `fencepost cluster kill --help`"),
        (["cluster", "kill", "two"], "Invalid value for 'ID'"),
        (["topic", "consume", "t", "--isolation", "none"], "Invalid value for '--isolation'"),
        (["topic", "produce", "t", "--acks", "0"], "Invalid value for '--acks'"),
        (["lag"], "See `fencepost lag --help`"),
        (["serve", "--nonsense"], "--nonsense. See `fencepost serve --help`."),
        (["serve", "--durability", "maybe"], "See `fencepost serve --help`."),
        (["serve", "--dura", "fsync"], "See `fencepost serve --help`."),
        (["demo", "--kills", "-1"], "Invalid value for '--kills'"),
    ],
    ids=str,
)
def test_a_usage_error_prints_one_line_and_exits_with_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    (line,) = shown.err.splitlines()
    assert line.startswith("fencepost: ")
    assert said in line


@pytest.mark.parametrize("command", [[], ["txn"], ["cluster"]], ids=str)
def test_without_a_command_help_is_printed(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(command) == 2
    assert "Commands:" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["serve", "--config", "num.partition=3"],
        ["serve", "--listen", "192.0.2.1:0"],
        ["serve", "--config-file", "/no/such/file"],
        ["txn", "list", "--bootstrap-servers", "127.0.0.1:1"],
        ["txn", "list", "--bootstrap-servers", "127.0.0.1:1", "--json"],
        ["txn", "list", "--bootstrap-servers", "nonsense"],
        ["txn", "why", "refunds", "--bootstrap-servers", "127.0.0.1:1"],
        ["txn", "timeline", "refunds", "--bootstrap-servers", "127.0.0.1:1"],
        ["records", "refunds:0", "--bootstrap-servers", "127.0.0.1:1"],
        ["dump", "/no/such/folder"],
        ["txn", "list", "--client-config", "nonsense"],
        ["topic", "list", "--bootstrap-servers", "127.0.0.1:1"],
        ["topic", "produce", "t", "/dev/null", "--bootstrap-servers", "127.0.0.1:1"],
        ["topic", "produce", "t", "/no/such/file"],
        ["topic", "produce", "t", "/"],
        ["topic", "consume", "t", "--bootstrap-servers", "127.0.0.1:1"],
        ["topic", "create", "t", "--config", "retention.ms=1"],
        ["topic", "describe", "\udcff"],
        ["group", "list", "--bootstrap-servers", "127.0.0.1:1"],
        ["lag", "g", "--bootstrap-servers", "127.0.0.1:1"],
        ["config", "get", "--broker", "1", "--bootstrap-servers", "127.0.0.1:1"],
        ["pins", "--bootstrap-servers", "127.0.0.1:1"],
        ["txn", "fence", "a", "--bootstrap-servers", "127.0.0.1:1"],
        ["txn", "abort", "no-partition", "--producer-id", "1"],
        ["txn", "abort", "a", "--force"],
        ["txn", "find-hanging", "topic", "--broker", "1"],
        ["cluster", "status", "--bootstrap-servers", "127.0.0.1:1"],
        ["cluster", "status", "--data", "/no/such/directory"],
        ["cluster", "roll", "--data", "/no/such/directory"],
        ["cluster", "kill", "1", "--data", "/no/such/directory"],
        ["cluster", "move", "refunds", "--to", "1"],
        ["cluster", "move", "refunds:-1", "--to", "1"],
    ],
    ids=str,
)
def test_a_refused_command_prints_one_line_and_exits_with_1(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(arguments) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    (line,) = shown.err.splitlines()
    assert line.startswith("fencepost: ")


def test_an_interrupted_command_exits_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    for place in ("fencepost.cli.connection.read_connection", "fencepost.broker.process.run"):
        monkeypatch.setattr(place, interrupt)
    assert main.run(["txn", "list"]) == 130
    assert main.run(["serve"]) == 130


def test_python_m_fencepost_runs_the_command(tmp_path: Path) -> None:
    shown = fencepost_process("--version", cwd=tmp_path)
    assert (shown.returncode, shown.stdout) == (0, f"fencepost {fencepost.__version__}\n")
