"""The query that the tests of the format run: lines of files into a topic, one file per batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fencepost.spark import route
from tests.spark.pipeline import Pipeline, finish

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery


class RoutedPipeline(Pipeline):
    """As `Pipeline`, but written with `format("fencepost")`."""

    def start_routed(
        self,
        shape: Callable[[DataFrame], DataFrame] | None = None,
        routing: Callable[[DataFrame], DataFrame] | None = None,
        *,
        format: str = "fencepost",  # noqa: A002
        mode: str = "append",
        **options: Any,
    ) -> StreamingQuery:
        """`options` are the format's; None leaves one out that is set by default."""
        lines = self.spark.readStream.option("maxFilesPerTrigger", 1).text(str(self.folder / "in"))
        rows = shape(lines) if shape else lines.selectExpr("value AS key", "value")
        given = {
            "kafka.bootstrap.servers": self.bootstrap,
            "transactionalId": self.transactional_id,
            "checkpointLocation": str(self.checkpoint),
        } | options
        routed = (routing or self.route)(rows)
        return (
            routed.writeStream.format(format)
            .outputMode(mode)
            .options(**{name: value for name, value in given.items() if value is not None})
            .trigger(availableNow=True)
            .start()
        )

    def start_faulty(
        self, step: str = "", batch: int = -1, marker: str | Path = ""
    ) -> StreamingQuery:
        """With the format of `faults.py`, which stops or fails at a step."""
        from tests.spark.doors import faults  # Not on Spark 3.5, which has no such data sources.

        faults.register(self.spark)
        return self.start_routed(
            format=faults.FORMAT, faultStep=step, faultBatch=batch, faultMarker=marker
        )

    def route(self, rows: DataFrame) -> DataFrame:
        return route(rows, self.bootstrap, topic=self.topic)

    def run_routed(self, *arguments: Any, **options: Any) -> str | None:
        """Runs to the end of the files; returns the reason if the query failed."""
        return finish(self.start_routed(*arguments, **options))
