"""The query that the tests of the sink run: lines of files into a topic, one file per batch."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fencepost.spark.doors.foreach_batch import TransactionalSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

Sink = Callable[["DataFrame", int], None]

_FIRST_TIME = time.time() - 3600


def numbered(batch: int, count: int = 40) -> list[str]:
    """The lines of one file."""
    return [f"{batch}-{n}" for n in range(count)]


def add_files(folder: Path, *files: list[str]) -> None:
    """Moves complete files to where the query of this folder reads."""
    target = folder / "in"
    target.mkdir(parents=True, exist_ok=True)
    for number, lines in enumerate(files, len(list(target.iterdir()))):
        path = folder / f"part-{number:03}.txt"
        path.write_text("\n".join(lines))
        # Spark reads them in the order of their times.
        os.utime(path, (_FIRST_TIME + number, _FIRST_TIME + number))
        path.rename(target / path.name)


class Pipeline:
    """A query with its folder: what it reads, and its checkpoint."""

    def __init__(
        self,
        spark: SparkSession,
        bootstrap: str,
        folder: Path,
        topic: str,
        transactional_id: str = "",
    ) -> None:
        self.spark = spark
        self.bootstrap = bootstrap
        self.folder = folder
        self.topic = topic
        self.transactional_id = transactional_id or topic
        self.checkpoint = folder / "checkpoint"
        add_files(folder)

    def add(self, *files: list[str]) -> None:
        """Moves complete files to where the query reads."""
        add_files(self.folder, *files)

    def sink(self, **changes: Any) -> TransactionalSink:
        fields: dict[str, Any] = {"transactional_id": self.transactional_id, "topic": self.topic}
        return TransactionalSink(self.bootstrap, **fields | changes)

    def start(
        self,
        sink: Sink | None = None,
        shape: Callable[[DataFrame], DataFrame] | None = None,
        mode: str = "append",
    ) -> StreamingQuery:
        lines = self.spark.readStream.option("maxFilesPerTrigger", 1).text(str(self.folder / "in"))
        rows = shape(lines) if shape else lines.selectExpr("value AS key", "value")
        return (
            rows.writeStream.foreachBatch(sink or self.sink())
            .outputMode(mode)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start()
        )

    def run(
        self,
        sink: Sink | None = None,
        shape: Callable[[DataFrame], DataFrame] | None = None,
        mode: str = "append",
    ) -> str | None:
        """Runs to the end of the files; returns the reason if the query failed."""
        return finish(self.start(sink, shape, mode))


def finish(query: StreamingQuery, seconds: int = 120) -> str | None:
    """Waits for a query to end, and stops it if it does not; returns the reason if it failed."""
    # The reason is read below.
    with contextlib.suppress(Exception):
        query.awaitTermination(seconds)
    failure = query.exception()
    query.stop()
    return None if failure is None else str(failure)


def failed(reason: str | None) -> str:
    """The reason for which a query failed, as it must have."""
    assert reason is not None, "the query has not failed"
    return reason
