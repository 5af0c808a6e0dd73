"""A query of files into a table: one file per batch, one row per line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from fencepost.spark.doors.foreach_batch import TransactionalSink
from fencepost.spark.postgres.sink import PostgresSink
from tests.spark.pipeline import Pipeline, Sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CREATION = "CREATE TABLE IF NOT EXISTS lines (key text, value text)"


class Stage(Pipeline):
    """The pipeline of the other sink's tests, with a table at its end."""

    def __init__(
        self,
        spark: SparkSession,
        dsn: str,
        folder: Path,
        table: str = "lines",
        creation: str = CREATION,
    ) -> None:
        super().__init__(spark, "", folder, table)
        self.dsn = dsn
        self.table = table
        self.execute(creation)

    def execute(self, sql: str, *values: Any) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(sql, values)

    def query(self, sql: str, *values: Any) -> list[Any]:
        """The rows; of a single column, its values."""
        with psycopg.connect(self.dsn) as connection:
            rows = connection.execute(sql, values).fetchall()
        return [row[0] if len(row) == 1 else row for row in rows]

    def sink(self, **changes: Any) -> Any:
        return PostgresSink(self.dsn, self.table, **changes)

    def both_sinks(self, bootstrap: str, topic: str, first: str, **changes: Any) -> Sink:
        """A function that writes each batch to a topic and to the table; `first` is which."""
        sinks = [
            TransactionalSink(bootstrap, transactional_id=topic, topic=topic, **changes),
            self.sink(**changes),
        ]
        if first == "table":
            sinks.reverse()

        def write(df: DataFrame, batch: int) -> None:
            for sink in sinks:
                sink(df, batch)

        return write

    def values(self) -> list[str]:
        return sorted(self.query(f"SELECT value FROM {self.table}"))

    def stages(self) -> int:
        """How many staging tables there are."""
        return len(
            self.query("SELECT relname FROM pg_class WHERE relname LIKE 'fencepost\\_stage\\_%%'")
        )
