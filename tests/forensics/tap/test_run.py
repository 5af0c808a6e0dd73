"""The tap as a process: usage errors, signals, and lines without a terminal."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import fencepost
from fencepost.client.blocking import connect
from tests.cli.running import fencepost_command
from tests.client.silent_servers import SILENT, closed, mute
from tests.forensics.tap.running import read_exactly
from tests.forensics.tap.talk import asked
from tools.tap_process import TapProcess


def test_a_port_that_is_taken_is_refused_with_a_sentence() -> None:
    with fencepost.Broker() as broker, socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        done = fencepost_command("tap", "--listen", listen, "--to", broker.bootstrap_servers)
    assert done.returncode == 1
    assert done.stderr.startswith(f"fencepost: Cannot listen on {listen}: Address already in use.")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--to", "127.0.0.1:1"), "The cluster cannot be used: no broker can be reached"),
        (("--to", "nonsense"), "which is not host:port"),
        (("--to", "127.0.0.1:1", "--listen", "0.0.0.0:0"), "add --allow-remote"),
        (("--to", "127.0.0.1:1", "--listen", "here"), "write HOST:PORT"),
        (("--to", "127.0.0.1:1", "--config", "/nowhere/x"), "cannot be read"),
    ],
)
def test_a_users_mistake_is_one_sentence(options: tuple[str, ...], said: str) -> None:
    done = fencepost_command("tap", *options)
    assert done.returncode == 1
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("kind", SILENT)
def test_of_several_servers_clients_are_led_to_one_that_answers(tmp_path: Path, kind: str) -> None:
    with SILENT[kind]() as silent, fencepost.Broker() as broker:
        servers = f"{silent},{broker.bootstrap_servers}"
        with (
            TapProcess(servers, tmp_path / "trace.jsonl") as tap,
            connect(tap.bootstrap_servers) as cluster,
        ):
            assert cluster.describe_cluster().brokers


def test_if_none_of_several_servers_answers_each_is_named() -> None:
    with mute() as one, closed() as two:
        done = fencepost_command("tap", "--to", f"{one},{two}", "--listen", "127.0.0.1:0")
    assert done.returncode == 1
    assert f"{one}: no answer within 1 s; {two}: Connection refused" in done.stderr


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with fencepost.Broker() as broker:
        out = str(tmp_path / "nowhere" / "trace.jsonl")
        done = fencepost_command("tap", "--to", broker.bootstrap_servers, "--out", out)
    assert (done.returncode, "Cannot write to" in done.stderr) == (1, True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_stops_cleanly_with_a_summary(tmp_path: Path, number: int) -> None:
    with fencepost.Broker() as broker:
        tap = TapProcess(broker.bootstrap_servers, tmp_path / "trace.jsonl")
        host, _, port = tap.bootstrap_servers.rpartition(":")
        with socket.create_connection((host, int(port))) as client:
            client.sendall(asked(1))
            read_exactly(client, 4)
            os.kill(tap.process.pid, number)
            tap.process.wait_for_end()
        assert tap.stop() == 0
    assert "1 requests on 1 connections" in tap.process.output
    assert "errors: NOT_COORDINATOR 1" in tap.process.output
    assert "Traceback" not in tap.process.output
    last = tap.lines()[-1]
    assert (last["kind"], last["requests"]) == ("summary", 1)


def test_without_a_terminal_it_prints_json_lines() -> None:
    with fencepost.Broker() as broker:
        command = [sys.executable, "-m", "fencepost", "tap", "--listen", "127.0.0.1:0"]
        command += ["--to", broker.bootstrap_servers]
        # Only the output: a notice on the error stream may end up in the middle of a line.
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as tap:
            assert tap.stdout is not None
            first = tap.stdout.readline()
            tap.terminate()
    assert json.loads(first).items() >= {"format": "fencepost-tap", "version": 1}.items()
