"""A query from topics to topics that runs until it is stopped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from confluent_kafka.admin import AdminClient, NewPartitions

from fencepost.base.ids import TopicPartition
from fencepost.client.blocking import Cluster
from fencepost.records.opened import Record
from fencepost.spark.doors.foreach_batch import TransactionalSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


class Crash(Exception):  # noqa: N818
    """Raised where a driver would die."""


class TopicQuery:
    """A query with its checkpoint. `crash` is a step and a batch at which it fails once."""

    def __init__(
        self,
        spark: SparkSession,
        bootstrap: str,
        folder: Path,
        source: str,
        target: str | None,
        shape: Callable[[DataFrame], DataFrame],
        **options: str,
    ) -> None:
        self._spark, self._bootstrap, self._folder = spark, bootstrap, folder
        self._source, self._target, self._shape, self._options = source, target, shape, options
        self._crashes: set[tuple[str, int]] = set()
        self._acts: dict[tuple[str, int], Callable[[], object]] = {}
        self._query: StreamingQuery | None = None
        self.crashed: list[tuple[str, int]] = []

    def crash_at(self, *points: tuple[str, int]) -> Self:
        """Fails once at each of these."""
        self._crashes |= set(points)
        return self

    def act_at(self, step: str, batch_id: int, act: Callable[[], object]) -> Self:
        """Acts once there."""
        self._acts[step, batch_id] = act
        return self

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._query is not None
        self._query.stop()

    def catch_up(self) -> None:
        """Returns when everything in the source is written, with a restart after every crash."""
        assert self._query is not None
        while True:
            try:
                self._query.processAllAvailable()
                return
            except Exception as problem:
                if "Crash: " not in str(problem):
                    raise
            self._query.stop()
            self._start()

    def _start(self) -> None:
        sink = TransactionalSink(
            self._bootstrap,
            transactional_id=f"{self._source}-query",
            topic=self._target,
            may_write_to_sources=self._target == self._source,
            on_step=self._on_step,
        )
        options: dict[str, Any] = {
            "kafka.bootstrap.servers": self._bootstrap,
            "subscribe": self._source,
            "startingOffsets": "earliest",
        }
        rows = self._spark.readStream.format("fencepost").options(**options | self._options).load()
        self._query = (
            self._shape(rows)
            .writeStream.foreachBatch(sink)
            .option("checkpointLocation", str(self._folder / "checkpoint"))
            .start()
        )

    def _on_step(self, step: str, batch_id: int) -> None:
        point = (step, batch_id)
        if (act := self._acts.pop(point, None)) is not None:
            act()
        if point in self._crashes:
            self._crashes.remove(point)
            self.crashed.append(point)
            raise Crash(f"died at {step!r}")


def put(cluster: Cluster, topic: str, *values: str, partition: int = 0) -> None:
    """Writes these values to one partition."""
    with cluster.writer(cluster.init_producer_id(None)) as writer:
        records = [Record(value=value.encode()) for value in values]
        writer.write_records(TopicPartition(topic, partition), records)
        writer.flush()


def enlarge(bootstrap: str, topic: str, partitions: int) -> None:
    """Adds partitions to a topic, and returns when each of them has a leader."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for done in admin.create_partitions([NewPartitions(topic, partitions)]).values():
        done.result(30)
