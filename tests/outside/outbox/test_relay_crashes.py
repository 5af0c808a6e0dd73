"""kill -9 of the relay, of PostgreSQL and of the broker between any two effects of the relay.

Method: the relay calls a hook with a name between any two effects (`STEPS`). For each name, at its
first and its second call, one of the three is killed there; then everything is started again, and
relayed until nothing is left. The workload has a transaction larger than a chunk, so some kills are
in the middle of it. Every row must be in Kafka once, and in order per key.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fencepost.base.failures import FencepostError
from fencepost.outside.outbox.relay import STEPS
from fencepost.outside.outbox.rules import Release
from tests.outside.outbox.stage import Mode, OutboxStage, kill_at
from tests.outside.postgres import PostgresServer
from tests.spark.conftest import environment
from tools.fencepost_process import FencepostProcess

ONCE_PER_RUN = ("checked", "fenced", "begun", "streaming", "noted")
MODES: tuple[Mode, ...] = ("wal", "table")
POINTS = [
    (mode, step, ordinal)
    for mode in MODES
    for step in STEPS
    for ordinal in (1, 2)
    if ordinal == 1 or step not in ONCE_PER_RUN
    # A table has no slot to tell.
    if mode == "wal" or step not in ("noted", "confirmed")
]
# Kafka's side of the relay is the same in both modes.
BROKER_POINTS = [point for point in POINTS if point[0] == "wal" or point[2] == 2]


class Broker:
    """A broker on one folder and port."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.process = FencepostProcess(folder)
        self.bootstrap_servers = self.process.bootstrap_servers

    def kill_and_start(self) -> None:
        self.process.kill()
        self.process = FencepostProcess(self._folder, listen=self.bootstrap_servers)


@pytest.fixture(scope="module")
def restarted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = Broker(tmp_path_factory.mktemp("broker"))
    yield broker
    broker.process.stop()


@pytest.fixture(autouse=True)
def notes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Release, "BYTES", 1)


@pytest.fixture
def crashing(outbox: OutboxStage, step: str) -> OutboxStage:
    """An outbox with the workload; a part was relayed, unless it dies at its first start."""
    if step != "begun":
        outbox.insert(2)
        outbox.relay()
    work(outbox)
    return outbox


def work(outbox: OutboxStage) -> None:
    """Something that is not relayed comes last: that is noted for the slot."""
    outbox.workload()
    outbox.execute("CREATE TABLE not_ours (i int)")


def relay_to_the_end(outbox: OutboxStage) -> None:
    for _ in range(3):
        outbox.relay()
    outbox.insert(2)
    outbox.relay()
    outbox.audit()


@pytest.mark.parametrize(("mode", "step", "ordinal"), POINTS)
def test_a_relay_that_is_killed_loses_and_repeats_nothing(
    crashing: OutboxStage, mode: Mode, step: str, ordinal: int
) -> None:
    command = [sys.executable, "-m", "tests.outside.outbox.stage", crashing.dsn]
    command += [crashing.bootstrap_servers, mode, crashing.outbox.transactional_id]
    command += [step, str(ordinal)]
    died = subprocess.run(command, env=environment(), check=False, timeout=50)
    assert died.returncode == -9
    relay_to_the_end(crashing)


@pytest.mark.parametrize(("mode", "step", "ordinal"), POINTS)
def test_a_database_that_is_killed_loses_and_repeats_nothing(
    crashing: OutboxStage, postgres: PostgresServer, step: str, ordinal: int
) -> None:
    fell = kill_and_relay(crashing, postgres.kill, step, ordinal)
    postgres.start()
    # Its last effect may have been behind it.
    assert fell or step in ("noted", "confirmed")
    relay_to_the_end(crashing)


@pytest.mark.parametrize(("mode", "step", "ordinal"), BROKER_POINTS)
def test_a_broker_that_is_killed_loses_and_repeats_nothing(
    dsn: str, restarted: Broker, mode: Mode, step: str, ordinal: int
) -> None:
    outbox = OutboxStage(dsn, restarted.bootstrap_servers, mode=mode)
    work(outbox)
    kill_and_relay(outbox, restarted.kill_and_start, step, ordinal)
    relay_to_the_end(outbox)


def kill_and_relay(outbox: OutboxStage, kill: Callable[[], None], step: str, ordinal: int) -> bool:
    """Relays until it ends; returns whether that was with an error, which is one sentence."""
    killed: list[str] = []

    def note() -> None:
        killed.append(step)
        kill()

    failure: FencepostError | None = None
    try:
        outbox.relay(on_step=kill_at(step, ordinal, note))
    except FencepostError as problem:
        failure = problem
    assert killed
    assert "\n" not in str(failure)
    return failure is not None
