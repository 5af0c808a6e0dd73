"""A database with an outbox, a broker, and relays between them; and the audit of what came out."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal

import psycopg

from fencepost.base.ids import TopicPartition
from fencepost.client.admin import NewTopic
from fencepost.client.blocking import Cluster, connect
from fencepost.client.reading import LATEST
from fencepost.outside.connection import Database
from fencepost.outside.outbox.database import Outbox
from fencepost.outside.outbox.refused import OnRefused
from fencepost.outside.outbox.relay import OutboxRelay, RelaySettings
from fencepost.outside.outbox.rules import Limits, Release
from fencepost.outside.outbox.setup import init
from fencepost.outside.outbox.source import RelayCounts
from fencepost.records.opened import Record

if TYPE_CHECKING:
    from fencepost.client.transactions import ProducerIdentity

Mode = Literal["wal", "table"]
PARTITIONS: Final = 2
SMALL: Final = RelaySettings(limits=Limits(rows=7))
"""Chunks of seven rows, so that a few rows make several."""
PATIENT: Final = {"default.api.timeout.ms": "30000", "retry.backoff.max.ms": "100"}

_NUMBERS = itertools.count(1)


def committed(cluster: Cluster, partition: TopicPartition) -> list[Record]:
    """All committed records, once no transaction is open: Apache Kafka answers a commit before its
    markers are written."""

    def end(isolation: str) -> int:
        return cluster.list_offsets({partition: LATEST}, isolation=isolation)[partition].offset

    deadline = time.monotonic() + 5  # Then a relay that died has left one open.
    while end("read_committed") < end("read_uncommitted") and time.monotonic() < deadline:
        time.sleep(0.02)
    return list(cluster.records(partition, isolation="read_committed"))


class OutboxStage:
    """One outbox and its topic, both new."""

    def __init__(
        self,
        dsn: str,
        bootstrap_servers: str,
        *,
        mode: Mode = "wal",
        prefix: str = "",
        prepared: bool = True,
    ) -> None:
        name = f"orders-{uuid.uuid4().hex[:8]}"
        self.dsn = dsn
        self.bootstrap_servers = bootstrap_servers
        self.topic = name
        table = None if prefix else "outbox"
        self.outbox = Outbox.of(name, table=table, prefix=prefix, mode=mode)
        self.is_old = False
        """Whether relays use transaction version 1."""
        self.written: list[tuple[bytes, bytes]] = []
        """Keys and values in the order of their commits."""
        with self.cluster() as cluster:
            cluster.create_topics([NewTopic(self.topic, PARTITIONS)])
        if prepared:
            init(Database(dsn), self.outbox)

    def cluster(self) -> Cluster:
        found = connect(self.bootstrap_servers, PATIENT)
        if self.is_old:
            ask = found.init_producer_id

            def ask_with_version_1(*given: Any, **named: Any) -> ProducerIdentity:
                return replace(ask(*given, **named), transaction_version=1)

            found.init_producer_id = ask_with_version_1  # type: ignore[method-assign]
        return found

    def connect(self) -> psycopg.Connection[tuple[object, ...]]:
        return psycopg.connect(self.dsn, autocommit=True)

    def execute(self, statement: str) -> list[tuple[object, ...]]:
        with self.connect() as connection:
            done = connection.execute(statement.encode())
            return done.fetchall() if done.description else []

    def drop_slot(self) -> None:
        self._when_free("pg_drop_replication_slot(slot_name)")

    def advance_slot(self) -> None:
        """As an administrator would who lets the log go."""
        self._when_free("pg_replication_slot_advance(slot_name, pg_current_wal_lsn())")

    def _when_free(self, call: str) -> None:
        """The server may take a moment to notice that a relay ended."""
        query = f"SELECT {call} FROM pg_replication_slots WHERE NOT active AND slot_name = "
        while not self.execute(f"{query}'{self.outbox.slot}'"):
            time.sleep(0.01)

    def insert(self, count: int, *, size: int = 0) -> None:
        """One transaction with so many rows, for three keys."""
        rows = [self._next(size) for _ in range(count)]
        with psycopg.connect(self.dsn) as connection, connection.cursor() as cursor:
            cursor.executemany(
                "INSERT INTO outbox (aggregatetype, aggregateid, payload) VALUES (%s, %s, %s)",
                [(self.topic, key, value) for key, value in rows],
            )
        self.written += [(key.encode(), value.encode()) for key, value in rows]

    def insert_and_roll_back(self) -> None:
        with psycopg.connect(self.dsn) as connection:
            connection.execute(
                "INSERT INTO outbox (aggregatetype, payload) VALUES (%s, 'never')", [self.topic]
            )
            connection.rollback()

    def _next(self, size: int) -> tuple[str, str]:
        number = next(_NUMBERS)
        return f"k{number % 3}", f"{number:08d}".ljust(size, ".")

    def workload(self) -> None:
        """Several transactions: small ones, one larger than a chunk, one that is rolled back."""
        self.insert(1)
        self.insert(16)
        self.insert_and_roll_back()
        self.insert(2)
        self.insert(7)

    def relay(
        self,
        settings: RelaySettings = SMALL,
        *,
        on_step: Callable[[str], None] = lambda _: None,
        stop: threading.Event | None = None,
        outbox: Outbox | None = None,
        dsn: str | None = None,
    ) -> RelayCounts:
        """Relays until everything is in Kafka, or `stop` is set."""
        with self.cluster() as cluster:
            relay = OutboxRelay(
                dsn or self.dsn, cluster, outbox or self.outbox, settings, on_step=on_step
            )
            return relay.run(stop, until_caught_up=stop is None)

    def records(self) -> list[Record]:
        with self.cluster() as cluster:
            return [
                record
                for index in range(PARTITIONS)
                for record in committed(cluster, TopicPartition(self.topic, index))
            ]

    def audit(self) -> None:
        """Every row once, and in order per key."""
        found: dict[bytes | None, list[bytes | None]] = defaultdict(list)
        expected: dict[bytes | None, list[bytes | None]] = defaultdict(list)
        for record in self.records():
            found[record.key].append(record.value)
        for key, value in self.written:
            expected[key].append(value)
        assert found == expected


def kill_at(step: str, ordinal: int, kill: Callable[[], None]) -> Callable[[str], None]:
    """A hook that kills something when a step comes for the n-th time."""
    counts: dict[str, int] = defaultdict(int)

    def hook(name: str) -> None:
        counts[name] += 1
        if name == step and counts[name] == ordinal:
            kill()

    return hook


def kill_this_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main(
    dsn: str,
    bootstrap_servers: str,
    mode: Mode,
    transactional_id: str,
    step: str,
    ordinal: str,
    on_refused: str = "stop",
) -> None:
    """A relay in a process of its own, which kills itself at a step."""
    # So that "noted" comes, too.
    Release.BYTES = 1  # type: ignore[misc]
    with connect(bootstrap_servers, PATIENT) as cluster:
        hook = kill_at(step, int(ordinal), kill_this_process)
        outbox = Outbox.of(transactional_id, mode=mode)
        settings = SMALL._replace(on_refused=OnRefused(on_refused))
        OutboxRelay(dsn, cluster, outbox, settings, on_step=hook).run(until_caught_up=True)


if __name__ == "__main__":
    main(*sys.argv[1:])  # type: ignore[arg-type]
