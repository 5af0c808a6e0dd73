"""Consumers in real processes: killed at every step, suspended, and with dying servers."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

import fencepost
from fencepost.outside import OutsideError
from fencepost.outside.consumer.consumer import STEPS
from tests.outside.consumer.scenarios import (
    SUSPENDED_AT,
    kill_at_every_step,
    suspend_at,
    wait_for,
)
from tests.outside.consumer.stage import DEADLINE_SECONDS, Stage, apply
from tests.outside.postgres import PostgresServer
from tools.fencepost_process import FencepostProcess
from tools.processes import free_port

OPTIONS = [
    "--config=group.min.session.timeout.ms=100",
    "--config=group.initial.rebalance.delay.ms=0",
]


def test_a_process_that_is_killed_at_any_step_applies_each_record_once(stage: Stage) -> None:
    kill_at_every_step(stage)


@pytest.mark.parametrize("step", SUSPENDED_AT)
def test_a_process_that_was_suspended_applies_nothing_twice(stage: Stage, step: str) -> None:
    suspend_at(stage, step)


class Broker:
    """A broker process that is killed, and started again on its port."""

    def __init__(self, data: Path) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self._data = data
        self.start()

    def start(self) -> None:
        self._process = FencepostProcess(self._data, listen=self.address, options=OPTIONS)

    def kill(self) -> None:
        self._process.kill()


def apply_while_dying(stage: Stage, restart: Callable[[], None]) -> None:
    """A server is restarted at every step of one consumer."""
    sent = []
    for step in STEPS:
        stage.send(f"{step} 1", f"{step} 2")
        sent += [f"{step} 1", f"{step} 2"]
        with stage.consumer() as consumer:
            wanted = [step]

            def at(reached: str, wanted: list[str] = wanted) -> None:
                if reached in wanted:
                    wanted.clear()
                    restart()

            consumer.on_step = at
            while len(stage.applied()) < len(sent):
                batch = next(consumer)
                try:
                    apply(batch)
                except (OutsideError, psycopg.OperationalError):
                    continue
            assert wanted == []
    assert stage.applied() == sent


def test_a_broker_that_is_killed_at_any_step_costs_nothing(dsn: str, tmp_path: Path) -> None:
    broker = Broker(tmp_path / "data")

    def restart() -> None:
        broker.kill()
        broker.start()

    with Stage(broker.address, dsn, "orders") as stage:
        apply_while_dying(stage, restart)
    broker.kill()


def test_a_database_that_is_killed_at_any_step_costs_nothing(stage: Stage) -> None:
    with PostgresServer() as mortal:

        def restart() -> None:
            mortal.kill()
            mortal.start()

        with Stage(stage.servers, mortal.dsn(), f"{stage.topic}-mortal") as fragile:
            apply_while_dying(fragile, restart)


def test_three_processes_of_which_two_die_apply_each_record_once_in_order(
    broker: fencepost.Broker, dsn: str
) -> None:
    sent: dict[int, list[str]] = {partition: [] for partition in range(6)}
    with Stage(broker.bootstrap_servers, dsn, "wide", partitions=6) as stage:

        def send() -> None:
            for partition, values in sent.items():
                values.append(f"{partition}-{len(values)}")
                stage.send(values[-1], partition=partition)

        send()
        dying = [
            stage.worker(step="before the commit", then="killed"),
            stage.worker(step="before the group commit", then="killed"),
        ]
        living = stage.worker()
        for each in dying:
            each.wait_for_end(DEADLINE_SECONDS)
            assert each.status == -signal.SIGKILL, each.output
        for _ in range(3):
            send()
        for partition, values in sent.items():
            wait_for(stage, values[-1], living, partition=partition)
            assert stage.applied(partition) == values
