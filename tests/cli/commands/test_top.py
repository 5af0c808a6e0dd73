"""`fencepost top` on an embedded broker: one frame, JSON lines, and the live screen."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator

import pytest

import fencepost
from fencepost.base.ids import TopicPartition
from fencepost.client.blocking import Cluster, connect
from tests.cli.running import Commands
from tests.cli.screen import assert_screen, on_terminal
from tests.forensics.situations.open_transactions import (
    begin,
    create_topic,
    hanging_transaction,
    pinned_partition,
)
from tools.fencepost_process import ROOT

PATIENCE_SECONDS = 60.0


ENTERED = b"\x1b[?1049h"


LEFT = b"\x1b[?1049l"


@pytest.fixture
def broker() -> Iterator[fencepost.Broker]:
    """Frames show everything, so each test has its own broker."""
    with fencepost.Broker() as running:
        yield running


@pytest.fixture
def servers(broker: fencepost.Broker) -> str:
    return broker.bootstrap_servers


def command(servers: str, *arguments: str) -> list[str]:
    where = ["--bootstrap-servers", servers]
    return [sys.executable, "-m", "fencepost", "top", *arguments, *where]


ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "TERM": "xterm", "NO_COLOR": "1"}


@contextlib.contextmanager
def commits(servers: str, partition: TopicPartition) -> Iterator[None]:
    """Commits transactions one after the other until the block ends."""
    is_over = threading.Event()

    def work() -> None:
        with connect(servers) as cluster:
            while not is_over.is_set():
                opened = begin(cluster, "busy", [partition])
                cluster.end_txn(opened.identity, commit=True)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def test_a_frame_has_states_rates_the_oldest_transactions_and_pins(
    servers: str, commands: Commands, cluster: Cluster
) -> None:
    with pinned_partition(servers, "refunds", "refunds-1"), hanging_transaction(servers, "orders"):
        create_topic(cluster, "busy")
        with commits(servers, TopicPartition("busy", 0)):
            (frame,) = commands.lines("top", "--once", "--interval", "300ms")
    assert frame["states"]["Ongoing"] >= 1
    assert frame["committed_per_second"]["value"] > 0
    assert frame["committed_per_second"]["certainty"] == "exact"
    assert frame["commit_p99_ms"]["certainty"] == "exact"
    assert frame["commit_p50_ms"]["value"] <= frame["commit_max_ms"]["value"]
    oldest = frame["open"][0]
    assert oldest["transactional_id"] == "refunds-1"
    assert oldest["age_ms"]["certainty"] == "estimated"
    assert oldest["left_ms"]["value"] > 0
    assert oldest["client"].endswith(" at 127.0.0.1")
    kinds = {row["partition"]: row["kind"] for row in frame["pinned"]}
    assert kinds["refunds-0"] == "open"
    assert kinds["orders-0"] == "hanging"
    assert frame["notes"] == []


def test_without_any_transaction_rates_are_unknown_and_the_reason_is_a_note(
    commands: Commands,
) -> None:
    (frame,) = commands.lines("top", "--once", "--interval", "100ms")
    assert frame["committed_per_second"]["certainty"] == "unknown"
    assert frame["open_count"] == frame["pinned_count"] == 0
    assert "no transaction was ever begun" in frame["notes"][0]


@pytest.mark.parametrize("columns", [80, 120])
def test_the_screen(broker: fencepost.Broker, columns: int) -> None:
    servers = broker.bootstrap_servers
    with (
        pinned_partition(servers, "refunds", "refunds-1"),
        pinned_partition(servers, "payments", "a-" + "very-" * 9 + "long-id", partitions=2),
    ):
        options = ("--once", "--interval", "100ms", "--bootstrap-servers", servers)
        code, shown = on_terminal("top", *options, columns=columns)
    assert code == 0, shown
    assert all(len(line) <= columns for line in shown.splitlines())
    shown = re.sub(r"\d+\.\d (committed|aborted)", r"<rate> \1", shown)
    shown = re.sub(r"commits +.*", "commits  <latency>", shown)
    shown = re.sub(r"[\w.-]+…", "<shortened>…", shown)  # By how much, depends on the durations.
    assert_screen(f"top-{columns}", shown, servers=servers)


class Terminal:
    """`fencepost top` on a terminal of 80 x 24."""

    def __init__(self, servers: str) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self._theirs = theirs
        self.before = termios.tcgetattr(theirs)
        self.shown = b""
        self.process = subprocess.Popen(
            command(servers, "--interval", "200ms"),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=ENVIRONMENT,
            start_new_session=True,
        )

    def wait_for(self, wanted: bytes) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while wanted not in self.shown:
            assert time.monotonic() < deadline, self.shown
            assert self._read(0.2) or self.process.poll() is None, self.shown

    def press(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def end(self) -> int:
        code = self.process.wait(PATIENCE_SECONDS)
        while self._read(0.1):
            pass
        return code

    def _read(self, seconds: float) -> bool:
        if not select.select([self._ours], [], [], seconds)[0]:
            return False
        self.shown += os.read(self._ours, 65536)
        return True

    @property
    def is_restored(self) -> bool:
        left = self.shown.rstrip().endswith(LEFT) or LEFT in self.shown
        return left and termios.tcgetattr(self._theirs)[3] == self.before[3]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)
        os.close(self._theirs)


@pytest.fixture
def terminal(broker: fencepost.Broker) -> Iterator[Terminal]:
    terminal = Terminal(broker.bootstrap_servers)
    yield terminal
    terminal.close()


def test_q_ends_the_screen_and_restores_the_terminal(terminal: Terminal) -> None:
    terminal.wait_for(b"pinned partitions")
    assert ENTERED in terminal.shown
    terminal.press(b"xyz\x1b[A q")
    assert terminal.end() == 0
    assert terminal.is_restored


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_screen_without_a_traceback(
    terminal: Terminal, number: signal.Signals
) -> None:
    terminal.wait_for(b"pinned partitions")
    terminal.process.send_signal(number)
    code = terminal.end()
    assert b"Traceback" not in terminal.shown
    assert code == 128 + number
    assert terminal.is_restored


def test_a_broker_that_goes_away_is_said_on_the_screen_and_the_next_one_is_shown(
    broker: fencepost.Broker, terminal: Terminal
) -> None:
    terminal.wait_for(b"pinned partitions")
    broker.stop()
    terminal.wait_for(b"! ")
    broker.start()
    terminal.shown = b""
    terminal.wait_for(b"pinned partitions: 0")
    terminal.press(b"q")
    assert terminal.end() == 0


def test_a_dead_cluster_and_a_silly_interval_are_one_line(
    broker: fencepost.Broker, commands: Commands
) -> None:
    broker.stop()
    assert "127.0.0.1" in commands.refusal("top", "--once")
    assert "--interval" in commands.refusal("top", "--interval", "1ms")
