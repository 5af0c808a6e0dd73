"""Commands in a pipeline: the reader leaves early, the output is closed, the disk is full."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Final, TextIO

import pytest

import fencepost
from fencepost.base.ids import TopicPartition
from fencepost.client.admin import NewTopic
from fencepost.client.blocking import connect
from fencepost.client.group_admin import list_groups
from fencepost.records.opened import Record
from tests.cli.running import exit_code
from tools.fencepost_process import ROOT

RECORDS: Final = 20_000
"""Their lines are more than a pipe holds, whatever the form."""

LONG: Final = [
    "consume t",
    "consume t --json",
    "records t:0",
    "records t:0 --json",
    "dump $DATA/t-0 --records",
    "top --interval 100ms --json",
]
"""Commands with many lines, or without an end."""
KINDS: Final = ["consume t", "records t:0", "txn list --json", "topic list", "consume -h"]
"""Output that is written as bytes, line by line, in one piece, by rich and by typer."""
COMMAND: Final = f"{sys.executable} -m fencepost"
READER_GONE: Final = 128 + signal.SIGPIPE


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of a shell, with a broker that has a topic `t`."""
    data = tmp_path_factory.mktemp("data")
    with fencepost.Broker(data=data) as broker, connect(broker.bootstrap_servers) as cluster:
        cluster.create_topics([NewTopic("t", 1)])
        with cluster.writer(cluster.init_producer_id(None)) as writer:
            records = [Record(timestamp_ms=0, value=b"%d" % n) for n in range(RECORDS)]
            writer.write_records(TopicPartition("t", 0), records)
            writer.flush()
        os_environment = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
        yield {
            **os_environment,
            "PYTHONPATH": str(ROOT / "src"),
            "FENCEPOST_BOOTSTRAP_SERVERS": broker.bootstrap_servers,
            "DATA": str(data),
        }


def shell(script: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, timeout=120, env=environment
    )


def run_into(
    out: TextIO, command: str, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> int:
    """Runs a command in this process, with this standard output."""
    for name in ("FENCEPOST_BOOTSTRAP_SERVERS", "DATA"):
        monkeypatch.setenv(name, environment[name])
    with monkeypatch.context() as patched:
        patched.setattr("sys.stdout", out)
        return exit_code(os.path.expandvars(command).split())


def test_the_reader_of_a_pipe_may_leave_early(environment: dict[str, str]) -> None:
    done = shell(f"{COMMAND} consume t | head -n 1; echo ${{PIPESTATUS[0]}}", environment)
    _, code = done.stdout.splitlines()
    assert (int(code), done.stderr) == (READER_GONE, "")


@pytest.mark.parametrize("command", LONG)
def test_a_reader_may_leave_after_the_first_line(
    command: str,
    environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    reading, writing = os.pipe()

    def read_a_line() -> None:
        with open(reading) as pipe:
            pipe.readline()

    reader = threading.Thread(target=read_a_line)
    reader.start()
    with open(writing, "w") as out:
        code = run_into(out, command, environment, monkeypatch)
    reader.join()
    assert (code, capsys.readouterr().err) == (READER_GONE, "")


@pytest.mark.parametrize("command", KINDS)
def test_a_pipe_without_a_reader_ends_the_command_as_it_ends_others(
    command: str,
    environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as out:
        code = run_into(out, command, environment, monkeypatch)
    assert (code, capsys.readouterr().err) == (READER_GONE, "")


def test_what_was_not_read_is_not_committed(environment: dict[str, str]) -> None:
    done = shell(f"{COMMAND} consume t --group g | true; echo ${{PIPESTATUS[0]}}", environment)
    assert (done.stdout, done.stderr) == (f"{READER_GONE}\n", "")
    with connect(environment["FENCEPOST_BOOTSTRAP_SERVERS"]) as cluster:
        assert cluster.run(list_groups(cluster.core)) == []


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="only Linux has a full device")
@pytest.mark.parametrize("command", KINDS)
def test_a_full_disk_is_one_line(
    command: str,
    environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with open("/dev/full", "w") as out:
        code = run_into(out, command, environment, monkeypatch)
    said = "fencepost: standard output could not be written: No space left on device\n"
    assert (code, capsys.readouterr().err) == (1, said)


def test_without_an_output_nothing_is_done(environment: dict[str, str]) -> None:
    done = shell(f"{COMMAND} topic create another >&-", environment)
    assert done.returncode == 1
    assert done.stderr == (
        "fencepost: standard output is closed; for no output, use > /dev/null. Nothing was done\n"
    )
    with connect(environment["FENCEPOST_BOOTSTRAP_SERVERS"]) as cluster:
        assert "another" not in cluster.metadata().topics


def test_an_error_is_not_written_to_standard_output_if_standard_error_is_closed(
    environment: dict[str, str],
) -> None:
    done = shell(f"{COMMAND} topic describe nothing 2>&-", environment)
    assert (done.returncode, done.stdout) == (1, "")
