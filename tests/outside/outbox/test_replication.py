"""The stream over TLS, and how it ends."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from fencepost.outside.connection import Database
from fencepost.outside.failures import DatabaseUnavailable
from fencepost.outside.outbox.relay import RelaySettings
from fencepost.outside.outbox.replication import Keepalive, ReplicationStream
from fencepost_examples.postgres import RUNS_AS, binaries
from tests.outside.outbox.stage import OutboxStage
from tests.outside.postgres import PostgresServer

SIZES = (10, 8_000, 16_384, 40_000, 500_000)


def test_rows_of_any_size_arrive(outbox: OutboxStage) -> None:
    for size in SIZES:
        outbox.insert(20, size=size)
    outbox.relay(RelaySettings())
    outbox.audit()


def has_tls() -> bool:
    """Whether openssl is here, and the server can use it; the one from PyPI cannot."""
    command = [str(binaries() / "pg_config"), "--configure"]
    built = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return shutil.which("openssl") is not None and "ssl" in built


def test_rows_of_any_size_arrive_over_tls(kafka: str) -> None:
    if not has_tls():
        pytest.skip("needs openssl, and a PostgreSQL with TLS (FENCEPOST_POSTGRES)")
    with PostgresServer() as server:
        server.stop()
        command = "openssl req -new -x509 -nodes -days 2 -subj /CN=localhost"
        command += " -out server.crt -keyout server.key"
        subprocess.run(command.split(), cwd=server.data, check=True, capture_output=True)
        (server.data / "server.key").chmod(0o600)
        if RUNS_AS is not None:
            shutil.chown(server.data / "server.key", RUNS_AS)
        server.configure({"ssl": "on"})
        server.start()
        outbox = OutboxStage(server.dsn(sslmode="require"), kafka)
        for size in SIZES:
            outbox.insert(20, size=size)
        outbox.relay(RelaySettings())
        outbox.audit()


def test_an_idle_slot_gets_keepalives_that_say_how_far_it_is(outbox: OutboxStage) -> None:
    names = outbox.outbox
    with ReplicationStream(Database(outbox.dsn)) as stream:
        end = stream.identify().lsn
        stream.start(names.slot, names.publication)
        frame = stream.receive(10)
        while not isinstance(frame, Keepalive) or frame.lsn < end:
            frame = stream.receive(10)
            assert frame is not None


def test_a_connection_that_an_administrator_ends_is_one_sentence(outbox: OutboxStage) -> None:
    names = outbox.outbox
    with ReplicationStream(Database(outbox.dsn)) as stream:
        stream.start(names.slot, names.publication)
        outbox.execute(
            "SELECT pg_terminate_backend(active_pid, 10000) FROM pg_replication_slots "
            f"WHERE slot_name = '{names.slot}'"
        )
        with pytest.raises(DatabaseUnavailable) as caught:
            while True:
                stream.receive(10)
        assert "\n" not in str(caught.value)
        assert "start again" in str(caught.value)
