"""Spark rows into a table of PostgreSQL: PostgresSink beside Spark's JDBC writer.

A round is one micro-batch of a fresh query into an empty table, from trigger to commit, with each
in turn. The JDBC writer is at-least-once. It is there with its defaults, and with the settings with
which it was fastest here: inserts of many rows each, 10,000 rows per round trip. Its driver comes
from Maven Central.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg

from bench.load import Load, Measure, Round, Scale, Values
from bench.sides import Side
from bench.spark import CORES, QUERY_SECONDS, close_stage
from fencepost_examples.postgres import SUPERUSER
from tests.outside.postgres import PostgresServer
from tools.spark_connector import fetch_postgres_driver

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS: Final = 1_000_000
QUICK_ROWS: Final = 200_000

CREATION: Final = (
    "CREATE TABLE orders (id bigint, customer integer, item text, note text, amount numeric(18, 2),"
    " rate double precision, is_paid boolean, made_on date, made_at timestamptz, total bigint)"
)
COLUMNS: Final = (
    "value AS id",
    "CAST(value % 10000 AS INT) AS customer",
    "concat('item ', value % 500) AS item",
    "concat('a note of some thirty characters ', value) AS note",
    "CAST(value % 100000 / 100 AS DECIMAL(18, 2)) AS amount",
    "value / 7 AS rate",
    "value % 2 = 0 AS is_paid",
    "date_add(DATE'2026-01-01', CAST(value % 300 AS INT)) AS made_on",
    "timestamp_seconds(1770000000 + value) AS made_at",
    "value * 3 AS total",
)


@contextmanager
def _session(_: Side, scale: Scale, __: Path) -> Iterator[Round]:
    jars = fetch_postgres_driver()
    # Another session of this process would not have the driver.
    close_stage()
    from pyspark.sql import SparkSession

    from fencepost.spark import prepare

    prepare()
    session = (
        SparkSession.builder.master(f"local[{CORES}]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "2g")
        .config("spark.jars", ",".join(map(str, jars)))
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    try:
        with (
            PostgresServer(fsync="on", max_wal_size="4GB", shared_buffers="256MB") as server,
            tempfile.TemporaryDirectory(prefix="fencepost-bench-") as folder,
        ):
            rows = scale.of(ROWS, QUICK_ROWS)
            yield lambda number: _round(session, server, Path(folder), rows, number)
    finally:
        session.stop()


def _round(
    session: SparkSession, server: PostgresServer, folder: Path, rows: int, number: int
) -> Values:
    from fencepost.spark import PostgresSink

    sink = PostgresSink(server.dsn(), "orders", sink_id=f"bench {number}")
    url = f"jdbc:postgresql://127.0.0.1:{server.port}/postgres"
    options = {"user": SUPERUSER, "driver": "org.postgresql.Driver"}
    fast = {"reWriteBatchedInserts": "true", "batchsize": "10000"}

    def jdbc(df: DataFrame, _: int) -> None:
        df.write.jdbc(url, "orders", mode="append", properties=options)

    def tuned(df: DataFrame, _: int) -> None:
        df.write.jdbc(url, "orders", mode="append", properties=options | fast)

    values = {}
    for way, write in (("sink", sink), ("jdbc", jdbc), ("tuned", tuned)):
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute("DROP TABLE IF EXISTS orders")
            connection.execute(CREATION)
            connection.execute("CHECKPOINT")
            values[way] = rows / _run(session, folder, write, rows)
            found = connection.execute("SELECT count(*), count(DISTINCT id) FROM orders").fetchone()
            assert found == (rows, rows), f"{way}: {found}"
    sink_rate = values["sink"]
    return values | {
        "ratio": sink_rate / values["jdbc"],
        "tuned ratio": sink_rate / values["tuned"],
    }


def _run(session: SparkSession, folder: Path, write: Any, rows: int) -> float:
    """Seconds of the batch, as Spark reports them."""
    numbers = (
        session.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", rows)
        .option("numPartitions", CORES)
        .load()
    )
    query = (
        numbers.selectExpr(*COLUMNS)
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", tempfile.mkdtemp(prefix="checkpoint-", dir=folder))
        .trigger(availableNow=True)
        .start()
    )
    began = time.monotonic()
    try:
        assert query.awaitTermination(QUERY_SECONDS), "the query did not end"
    finally:
        query.stop()
    batches = [one for one in query.recentProgress if one["numInputRows"]]
    assert len(batches) == 1, f"{len(batches)} batches after {time.monotonic() - began:.0f} s"
    return float(batches[0]["durationMs"]["triggerExecution"]) / 1_000


LOAD: Final = Load(
    "postgres-sink",
    "Spark into PostgreSQL, 1 M rows of 10 columns: PostgresSink, and Spark's JDBC writer",
    (
        Measure("sink", "rows/s, PostgresSink", "more"),
        Measure("jdbc", "rows/s, JDBC writer", "more"),
        Measure("tuned", "rows/s, JDBC writer at its fastest", "more"),
        Measure("ratio", "x, PostgresSink to JDBC writer", "more", limit=1.0),
        Measure("tuned ratio", "x, PostgresSink to JDBC writer at its fastest", "more"),
    ),
    _session,
    rounds=3,
    quick_rounds=1,
    warmup_seconds=30,
    quick_warmup_seconds=1,
    quick_note=f"{QUICK_ROWS:,} rows",
    only_ours=True,
    in_quick=False,
)
