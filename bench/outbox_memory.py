"""The memory of the outbox relay during one large transaction: `python -m bench.outbox_memory`.

Run by hand. A database gets rows of 1 KB in one transaction, 1 GB by default; then a relay runs in
a process of its own until all of them are in Kafka, and its highest resident memory is read from
the kernel. Prints one line, for docs/outside-outbox.md.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final, Literal

import psycopg

from fencepost.client.admin import NewTopic
from fencepost.client.blocking import connect
from fencepost.outside.connection import Database
from fencepost.outside.outbox.database import Outbox
from fencepost.outside.outbox.setup import init
from tests.outside.postgres import PostgresServer
from tools.fencepost_process import FencepostProcess

ROW_BYTES: Final = 1_024
TOPIC: Final = "outbox-memory"


def measure(mode: Literal["wal", "table"], rows: int, dsn: str, bootstrap_servers: str) -> str:
    """Relays one transaction; returns the line."""
    outbox = Outbox.of(f"{TOPIC}-{mode}", mode=mode)
    init(Database(dsn), outbox)
    with psycopg.connect(dsn) as connection:
        connection.execute(
            "INSERT INTO outbox (aggregatetype, aggregateid, payload) "
            "SELECT %s, 'k' || mod(i, 1000), repeat('x', %s) FROM generate_series(1, %s) i",
            [TOPIC, ROW_BYTES, rows],
        )
    began = time.perf_counter()
    command = [sys.executable, "-m", "fencepost", "outbox", "relay", "--mode", mode]
    command += ["--transactional-id", outbox.transactional_id, "--until-caught-up"]
    environment = {**os.environ, "FENCEPOST_POSTGRES_DSN": dsn}
    subprocess.run([*command, "-b", bootstrap_servers], env=environment, check=True)
    seconds = time.perf_counter() - began
    # The highest of all children so far: the relays are the only ones that were waited for.
    peak_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1_024 / 1e6
    return f"mode {mode}: {rows:,} rows of {ROW_BYTES} bytes, {peak_mb:.0f} MB, {seconds:.0f} s"


def main() -> None:
    """`python -m bench.outbox_memory MODE [ROWS]`."""
    mode: Literal["wal", "table"] = "table" if sys.argv[1:2] == ["table"] else "wal"
    rows = int(sys.argv[2]) if len(sys.argv) > 2 else 1_000_000_000 // ROW_BYTES
    with (
        tempfile.TemporaryDirectory() as folder,
        FencepostProcess(Path(folder)) as broker,
        PostgresServer(max_wal_size="4GB") as db,
    ):
        with connect(broker.bootstrap_servers) as cluster:
            cluster.create_topics([NewTopic(TOPIC, 4)])
        print(measure(mode, rows, db.dsn(), broker.bootstrap_servers))


if __name__ == "__main__":
    main()
