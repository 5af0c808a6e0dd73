"""A query that copies topics into one, and edits of the files of its checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fencepost.base.ids import TopicPartition
from fencepost.client.blocking import Cluster
from fencepost.records.opened import Record
from fencepost.spark import TransactionalSink, route
from tests.spark.conftest import read_values
from tests.spark.pipeline import finish

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FIRST, SECOND, THIRD = [f"a{n}" for n in range(6)], [f"b{n}" for n in range(6)], ["c"]


def offsets_of(checkpoint: Path, batch: int) -> Path:
    return checkpoint / "offsets" / str(batch)


def edit(checkpoint: Path, batch: int, change: Callable[[Any], Any]) -> None:
    """Changes the offsets of every source in a batch."""
    path = offsets_of(checkpoint, batch)
    version, conf, *sources = path.read_text().splitlines()
    path.write_text(
        "\n".join([version, conf, *(json.dumps(change(json.loads(s))) for s in sources)])
    )
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


class Copying:
    """A query that copies topics into one, with the sink or with the format."""

    def __init__(
        self, spark: SparkSession, cluster: Cluster, folder: Path, new_topic: Callable[..., str]
    ) -> None:
        self.spark, self.cluster = spark, cluster
        self.bootstrap = str(cluster.options.bootstrap[0])
        self.checkpoint = folder / "checkpoint"
        self.files = folder / "files"
        self.files.mkdir()
        self.source, self.target = new_topic(1, "in"), new_topic(1, "out")

    def add(self, *values: str, partition: int = 0, topic: str = "") -> None:
        with self.cluster.writer(self.cluster.init_producer_id(None)) as writer:
            records = [Record(key=b"k", value=value.encode()) for value in values]
            writer.write_records(TopicPartition(topic or self.source, partition), records)
            writer.flush()

    def rows(self, **options: Any) -> DataFrame:
        found = {
            "kafka.bootstrap.servers": self.bootstrap,
            "subscribe": self.source,
            "startingOffsets": "earliest",
        } | options
        return (
            self.spark.readStream.format("fencepost").options(**found).load().select("key", "value")
        )

    def sink(self, **changes: Any) -> TransactionalSink:
        fields: dict[str, Any] = {"transactional_id": self.target, "topic": self.target}
        return TransactionalSink(self.bootstrap, **fields | changes)

    def run(
        self, function: Any = None, rows: DataFrame | None = None, **options: Any
    ) -> str | None:
        frame = self.rows(**options) if rows is None else rows
        return finish(
            frame.writeStream.foreachBatch(function or self.sink())
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start()
        )

    def run_format(self) -> str | None:
        routed = route(self.rows(), self.bootstrap, topic=self.target)
        return finish(
            routed.writeStream.format("fencepost")
            .option("kafka.bootstrap.servers", self.bootstrap)
            .option("transactionalId", self.target)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start()
        )

    @property
    def output(self) -> list[str]:
        return sorted(read_values(self.cluster, self.target))
