"""Spark beside Spark: one session and one Apache Kafka for two pipelines in turns.

The sides of a Spark load are pipelines, not brokers: fencepost's source and sink, and Spark's own
connector in the column of Apache Kafka. Both run in one session with two cores against the same
Apache Kafka, so that only the pipeline differs. The connector comes from Maven Central, once, into
build/. It has the settings with which it was fastest here; fencepost's pipeline has defaults.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench import client
from bench.sides import FENCEPOST, KAFKA, Broker, Side
from tools.apache_kafka import ROOT, UnavailableError
from tools.spark_connector import fetch_connector

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

CORES: Final = 2
PARTITIONS: Final = 4
QUERY_SECONDS: Final = 300

_FASTEST: Final = {"kafka.linger.ms": "5", "kafka.batch.size": "131072"}
_FASTEST_SOURCE: Final = {"kafka.fetch.max.wait.ms": "10"}
"""With Kafka's default of 500 ms, Spark's consumer waits that long at the end of every range: a
constant in every batch that hides its speed. fencepost's source gets the same setting, which does
not affect it."""


@dataclass(slots=True)
class Stage:
    """The session and broker of both pipelines."""

    session: SparkSession
    broker: Broker
    folder: Path
    _ends: ExitStack
    topics: set[str] = field(default_factory=set)
    """The topics that were filled, for the loads that read."""

    def close(self) -> None:
        self._ends.close()

    def checkpoint(self) -> str:
        """A fresh folder."""
        return tempfile.mkdtemp(prefix="checkpoint-", dir=self.folder)

    # Rows to write, and their topic.

    def rows(self, count: int, value_bytes: int) -> DataFrame:
        """A stream of batches of that many rows, each with a short key and a value of that size."""
        value = os.urandom(value_bytes).hex()
        numbers = (
            self.session.readStream.format("rate-micro-batch")
            .option("rowsPerBatch", count)
            .option("numPartitions", CORES)
            .load()
        )
        return numbers.selectExpr(
            "CAST(CAST(value AS STRING) AS BINARY) AS key", f"X'{value}' AS value"
        )

    def writing(self, side: Side, rows: DataFrame, topic: str) -> DataStreamWriter:
        """The sink of one side."""
        if side is not FENCEPOST:
            options = {**_FASTEST, "kafka.bootstrap.servers": self.broker.bootstrap_servers}
            return rows.writeStream.format("kafka").options(topic=topic, **options)
        from fencepost.spark import TransactionalSink

        sink = TransactionalSink(self.broker.bootstrap_servers, transactional_id=topic, topic=topic)
        return rows.writeStream.foreachBatch(sink)

    def in_batches(self, side: Side, rows: DataFrame, topic: str) -> DataStreamWriter:
        """The sink of one side in foreachBatch."""
        if side is FENCEPOST:
            return self.writing(side, rows, topic)
        options = {**_FASTEST, "kafka.bootstrap.servers": self.broker.bootstrap_servers}

        def write(batch: DataFrame, _: int) -> None:
            batch.write.format("kafka").options(topic=topic, **options).save()

        return rows.writeStream.foreachBatch(write)

    def reading(self, side: Side, topic: str) -> DataFrame:
        """The source of one side, over a whole topic."""
        reader = self.session.readStream.format("fencepost" if side is FENCEPOST else "kafka")
        return (
            reader.option("kafka.bootstrap.servers", self.broker.bootstrap_servers)
            .option("kafka.isolation.level", "read_committed")
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .options(**_FASTEST_SOURCE)
            .load()
        )

    def run_once(self, writer: DataStreamWriter) -> dict[str, Any]:
        """Runs everything as one batch; returns Spark's progress report."""
        query = (
            writer.option("checkpointLocation", self.checkpoint())
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(QUERY_SECONDS), "the query did not end"
        finally:
            query.stop()
        batches = [one for one in query.recentProgress if one["numInputRows"]]
        assert len(batches) == 1, f"{len(batches)} batches and not one"
        return batches[0]


_open: list[Stage] = []


def stage() -> Stage:
    """The stage of this process, created by the first load that needs it."""
    if not _open:
        _open.append(_build())
    return _open[0]


def close_stage() -> None:
    """Stops what `stage` has started, and deletes its data."""
    while _open:
        _open.pop().close()


def _build() -> Stage:
    try:
        import pyspark  # noqa: F401

        import fencepost.spark  # noqa: F401  (chooses the workers' Python)
    except ImportError as missing:
        said = f"Spark needs pip install 'fencepost[spark]' ({missing})"
        raise UnavailableError(said) from missing
    jars = ",".join(map(str, fetch_connector()))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fencepost-bench-")))
        broker = stack.enter_context(KAFKA.start(folder / "kafka"))
        session = _session(jars, folder)
        stack.callback(session.stop)
        return Stage(session, broker, folder, stack.pop_all())


def _session(jars: str, folder: Path) -> SparkSession:
    from pyspark.sql import SparkSession

    # Workers start with this path, even if fencepost is not installed.
    paths = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    settings = {
        "spark.jars": jars,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.local.dir": str(folder / "spark"),
        "spark.sql.shuffle.partitions": str(CORES),
        "spark.sql.streaming.stopTimeout": "60s",
    }
    builder = SparkSession.builder.master(f"local[{CORES}]").appName("fencepost bench")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    return session


def seconds_of(progress: dict[str, Any]) -> float:
    """The duration of a batch, from its trigger to its commit."""
    return float(progress["durationMs"]["triggerExecution"]) / 1000


def written(broker: Broker, topic: str) -> int:
    """The number of offsets in a topic."""
    return client.end_offsets(broker, topic, PARTITIONS)
