"""The outbox relay in both modes beside a plain polling relay, which is at-least-once.

The polling relay is what most libraries do: a thousand rows with FOR UPDATE SKIP LOCKED, produced
with librdkafka, deleted when they are acknowledged; without rows it waits for 5 ms. All get rows of
1 KB, committed a hundred at a time, and all of them before they start; each runs alone, in a
process of its own (`bench/relay.py`). What the triggers of mode table cost is the time of these
commits beside that of the same commits to a table without. Then rows are committed one by one, and
a read_committed reader waits for each.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import psycopg

from bench import client
from bench.generate import shared_broker
from bench.load import Load, Measure, Round, Scale, Values
from bench.relay import TABLES, RelayProcess, outboxes_of
from bench.sides import Broker, Side
from fencepost.base.ids import TopicPartition
from fencepost.client.blocking import Cluster, connect
from fencepost.client.reading import LATEST
from fencepost.outside.connection import Database
from fencepost.outside.outbox.setup import init
from tests.outside.postgres import PostgresServer

ROWS: Final = 200_000
QUICK_ROWS: Final = 30_000
ROWS_PER_COMMIT: Final = 100
SINGLE_ROWS: Final = 300
QUICK_SINGLE_ROWS: Final = 100
TOPIC: Final = "outbox-rows"

INSERT: Final = (
    "INSERT INTO {} (aggregatetype, aggregateid, payload) "
    "SELECT %s, 'k' || mod(i, 100), repeat('x', 1024) FROM generate_series(1, %s) i"
)


@contextmanager
def _session(side: Side, scale: Scale, folder: Path) -> Iterator[Round]:
    with shared_broker(side, scale) as broker, PostgresServer(fsync="on", max_wal_size="4GB") as db:

        def run(number: int) -> Values:
            client.create_topic(broker, TOPIC)
            try:
                return _round(db.dsn(), broker, scale, f"outbox-bench-{side.name}-{number}")
            finally:
                client.delete_topic(broker, TOPIC)

        yield run


def _round(dsn: str, broker: Broker, scale: Scale, name: str) -> Values:
    outboxes = outboxes_of(name)
    for outbox in outboxes.values():
        init(Database(dsn), outbox)
    rows, single = scale.of(ROWS, QUICK_ROWS), scale.of(SINGLE_ROWS, QUICK_SINGLE_ROWS)
    values: dict[str, float] = {}
    with psycopg.connect(dsn, autocommit=True) as db, connect(broker.bootstrap_servers) as cluster:
        times = {}
        for table in sorted(set(TABLES.values())):
            began = time.perf_counter()
            for _ in range(rows // ROWS_PER_COMMIT):
                db.execute(INSERT.format(table).encode(), [TOPIC, ROWS_PER_COMMIT])
            times[table] = time.perf_counter() - began

        for way in TABLES:
            with RelayProcess(way, dsn, broker.bootstrap_servers, name) as relay:
                began = time.perf_counter()
                relay.run_until_caught_up()
                values[way] = rows / (time.perf_counter() - began)
        for way, table in TABLES.items():
            with RelayProcess(way, dsn, broker.bootstrap_servers, name) as relay:
                relay.start()
                values |= _visible(way, db, cluster, single)
            db.execute(f"TRUNCATE {table}".encode())
        db.execute("SELECT pg_drop_replication_slot(%s)", [outboxes["relay"].slot])
    return values | {
        "ratio": values["relay"] / values["polling"],
        "table ratio": values["table"] / values["polling"],
        "numbering": times["numbered"] / times["outbox"],
    }


def _visible(
    way: str, db: psycopg.Connection[tuple[object, ...]], cluster: Cluster, count: int
) -> Values:
    """Milliseconds from the commit of a row to a reader."""
    insert = INSERT.format(TABLES[way]).encode()
    places = [TopicPartition(TOPIC, index) for index in range(client.PARTITIONS)]
    ends = cluster.list_offsets(dict.fromkeys(places, LATEST))
    positions = {place: ends[place].offset for place in places}
    times = []
    # The first row also waits for the start.
    for _ in range(count + 1):
        db.execute(insert, [TOPIC, 1])
        began = time.perf_counter()
        is_visible = False
        while not is_visible:
            fetched = cluster.fetch(positions, isolation="read_committed", max_wait_ms=500)
            for place, found in fetched.items():
                is_visible |= any(True for _ in found.records())
                positions[place] = max(positions[place], found.next_offset)
        times.append((time.perf_counter() - began) * 1_000)
    times = sorted(times[1:])
    return {f"{way} p50": times[len(times) // 2], f"{way} p99": times[len(times) * 99 // 100]}


LOAD: Final = Load(
    "outbox",
    "Out of PostgreSQL: the outbox relay, and a polling relay that is at-least-once",
    (
        Measure("relay", "rows/s of 1 KB, outbox relay", "more"),
        Measure("table", "rows/s of 1 KB, outbox relay of mode table", "more"),
        Measure("polling", "rows/s of 1 KB, polling relay", "more"),
        Measure("ratio", "x, outbox relay to polling relay", "more", limit=1.0),
        Measure("table ratio", "x, outbox relay of mode table to polling relay", "more"),
        Measure("numbering", "x, time of the commits in mode table to without", "less"),
        Measure("relay p50", "ms from commit to visible p50, outbox relay", "less"),
        Measure("relay p99", "ms from commit to visible p99, outbox relay", "less"),
        Measure("table p50", "ms from commit to visible p50, mode table", "less"),
        Measure("table p99", "ms from commit to visible p99, mode table", "less"),
        Measure("polling p50", "ms from commit to visible p50, polling relay", "less"),
        Measure("polling p99", "ms from commit to visible p99, polling relay", "less"),
    ),
    _session,
    rounds=3,
    quick_rounds=1,
    warmup_seconds=0,
    quick_warmup_seconds=0,
    in_quick=False,
)
