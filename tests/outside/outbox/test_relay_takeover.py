"""A relay takes over from one that is suspended, which notices nothing."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator

import pytest

from fencepost.outside.connection import Database
from fencepost.outside.outbox import relay as relay_module
from fencepost.outside.outbox.database import OutboxDatabase
from fencepost.outside.outbox.outlet import RelayFenced
from fencepost.outside.outbox.replication import ReplicationStream, SlotInUse
from fencepost.outside.outbox.setup import init
from tests.outside.outbox.stage import Mode, OutboxStage
from tests.outside.outbox.test_relay import fence
from tests.spark.conftest import environment
from tools.processes import ServerProcess


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_module, "PATIENCE_SECONDS", 0.2)


@pytest.fixture
def suspended(outbox: OutboxStage, mode: Mode) -> Iterator[ServerProcess]:
    """A relay that has sent something, in a process that gets no time."""
    outbox.insert(3)
    command = [sys.executable, "-m", "fencepost", "outbox", "relay", "--postgres", outbox.dsn]
    command += ["--transactional-id", outbox.outbox.transactional_id, "--mode", mode]
    command += ["-b", outbox.bootstrap_servers]
    with ServerProcess(command, environment=environment()) as process:
        process.wait_for_line(lambda line: line if "caught up: 3" in line else None, 30)
        os.kill(process.pid, signal.SIGSTOP)
        yield process
        if process.is_alive:
            os.kill(process.pid, signal.SIGCONT)


@pytest.mark.parametrize("mode", ["wal", "table"])
def test_a_suspended_relay_is_replaced_and_ends_when_it_wakes(
    outbox: OutboxStage, suspended: ServerProcess
) -> None:
    outbox.insert(9)
    assert outbox.relay().rows == 9
    os.kill(suspended.pid, signal.SIGCONT)
    suspended.wait_for_end()
    assert suspended.status == 1
    outbox.insert(2)
    outbox.relay()
    outbox.audit()


def test_without_the_right_to_end_it_the_processes_are_named(
    outbox: OutboxStage, suspended: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The suspended one is a superuser's."""
    monkeypatch.setattr(relay_module, "TAKEOVER_SECONDS", 1.0)
    name = outbox.outbox.slot
    outbox.execute(f"CREATE ROLE {name} LOGIN")
    try:
        init(Database(outbox.dsn), outbox.outbox, relay_user=name)
        with pytest.raises(SlotInUse, match="this user may not end them") as caught:
            outbox.relay(dsn=f"{outbox.dsn} user={name}")
        ((pid,),) = outbox.execute("SELECT pid FROM pg_locks WHERE locktype = 'advisory'")
        assert str(pid) in str(caught.value)
        assert outbox.relay().rows == 0
    finally:
        outbox.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")
    outbox.audit()


def test_a_relay_that_was_fenced_ends_no_connection_of_its_successor(outbox: OutboxStage) -> None:
    outbox.insert(2)
    outbox.relay()
    with OutboxDatabase(Database(outbox.dsn), outbox.outbox) as successor:

        def overtake(step: str) -> None:
            if step == "fenced":
                assert successor.try_lock()
                fence(outbox)

        with pytest.raises(RelayFenced):
            outbox.relay(on_step=overtake)
        assert successor.read_row().chunk > 0
    outbox.relay()
    outbox.audit()


def test_a_reader_of_the_slot_that_is_no_relay_keeps_its_connection(
    outbox: OutboxStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_module, "TAKEOVER_SECONDS", 0.5)
    names = outbox.outbox
    with ReplicationStream(Database(outbox.dsn), "somebody's") as reader:
        reader.start(names.slot, names.publication)
        with pytest.raises(SlotInUse, match="stop its other user"):
            outbox.relay()
        reader.receive(1)
    outbox.insert(1)
    outbox.relay()
    outbox.audit()
