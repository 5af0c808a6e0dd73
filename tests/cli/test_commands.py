"""What all commands share: exit codes, error messages, help."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import fencepost
from fencepost.cli import main
from fencepost.cli.commands import bench
from tools.fencepost_process import ROOT

COMMANDS = [
    (),
    ("serve",),
    ("txn",),
    ("txn", "list"),
    ("txn", "describe"),
    ("txn", "producers"),
    ("txn", "find-hanging"),
    ("txn", "fence"),
    ("txn", "abort"),
    ("txn", "commit"),
    ("pins",),
    ("audit",),
    ("txn", "why"),
    ("txn", "timeline"),
    ("records",),
    ("dump",),
    ("cluster",),
    ("cluster", "status"),
    ("cluster", "move"),
    ("cluster", "roll"),
    ("cluster", "kill"),
    ("cluster", "restart"),
    ("cluster", "pause"),
    ("cluster", "resume"),
    ("topic",),
    ("topic", "list"),
    ("topic", "create"),
    ("topic", "describe"),
    ("topic", "alter"),
    ("topic", "delete"),
    ("topic", "produce"),
    ("topic", "consume"),
    ("group",),
    ("group", "list"),
    ("group", "describe"),
    ("group", "reset"),
    ("group", "delete"),
    ("config",),
    ("config", "get"),
    ("config", "set"),
    ("lag",),
    ("top",),
    ("completion",),
    ("tap",),
    ("tap", "show"),
    ("ledger",),
    ("ledger", "create"),
    ("ledger", "list"),
    ("ledger", "show"),
    ("ledger", "adopt"),
    ("ledger", "forget"),
    ("demo",),
    ("check",),
    ("repair",),
]


def fencepost_command(*arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "COLUMNS": "80"}
    command = [sys.executable, "-m", "fencepost", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, env=environment, **more
    )


def exit_code(arguments: list[str]) -> object:
    try:
        return main.run(arguments)
    except SystemExit as end:
        return end.code


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("option", ["--help", "-h"])
def test_all_help_pages_have_the_same_layout(
    command: tuple[str, ...], option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code([*command, option]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith(f"Usage: {' '.join(['fencepost', *command])} [OPTIONS]")
    assert "..." not in shown.out.partition("\nCommands:")[2], "a help text is cut off"
    assert re.search(r"^Options:$", shown.out, re.MULTILINE)
    is_group = "\nCommands:" in shown.out
    assert is_group or "\n  Example: " in shown.out or command == ("serve",)
    assert re.search(r"^  -h, --help +Show this message and exit\.$", shown.out, re.MULTILINE)
    assert shown.err == ""


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


def test_bench_is_available_only_with_a_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bench.can_measure()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench, "__file__", str(tmp_path / "site-packages" / "bench.py"))
    assert not bench.can_measure()
    with pytest.raises(bench.NoBenchError, match="needs the source"):
        bench.bench([])


def test_python_m_fencepost_runs_the_command(tmp_path: Path) -> None:
    shown = fencepost_command("--version", cwd=tmp_path)
    assert (shown.returncode, shown.stdout) == (0, f"fencepost {fencepost.__version__}\n")


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
