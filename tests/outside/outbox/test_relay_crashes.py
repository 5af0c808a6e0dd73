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
from tests.outside.outbox.stage import OutboxStage, kill_at
from tests.outside.postgres import PostgresServer
from tests.spark.conftest import environment
from tools.fencepost_process import FencepostProcess

ONCE_PER_RUN = ("checked", "fenced", "begun", "streaming")
POINTS = [(step, 1) for step in STEPS] + [(step, 2) for step in STEPS if step not in ONCE_PER_RUN]


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


@pytest.fixture
def crashing(outbox: OutboxStage, step: str) -> OutboxStage:
    """An outbox with the workload; a part was relayed, unless it dies at its first start."""
    if step != "begun":
        outbox.insert(2)
        outbox.relay()
    outbox.workload()
    return outbox


def relay_to_the_end(outbox: OutboxStage) -> None:
    for _ in range(3):
        outbox.relay()
    outbox.insert(2)
    outbox.relay()
    outbox.audit()


@pytest.mark.parametrize(("step", "ordinal"), POINTS)
def test_a_relay_that_is_killed_loses_and_repeats_nothing(
    crashing: OutboxStage, step: str, ordinal: int
) -> None:
    command = [sys.executable, "-m", "tests.outside.outbox.stage", crashing.dsn]
    command += [crashing.bootstrap_servers, crashing.outbox.transactional_id, step, str(ordinal)]
    died = subprocess.run(command, env=environment(), check=False, timeout=50)
    assert died.returncode == -9
    relay_to_the_end(crashing)


@pytest.mark.parametrize(("step", "ordinal"), POINTS)
def test_a_database_that_is_killed_loses_and_repeats_nothing(
    crashing: OutboxStage, postgres: PostgresServer, step: str, ordinal: int
) -> None:
    fell = kill_and_relay(crashing, postgres.kill, step, ordinal)
    postgres.start()
    # Its last effect may have been behind it.
    assert fell or step == "confirmed"
    relay_to_the_end(crashing)


@pytest.mark.parametrize(("step", "ordinal"), POINTS)
def test_a_broker_that_is_killed_loses_and_repeats_nothing(
    dsn: str, restarted: Broker, step: str, ordinal: int
) -> None:
    outbox = OutboxStage(dsn, restarted.bootstrap_servers)
    outbox.workload()
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
