"""Topics of pipelines, right and wrong, written record by record."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from fencepost.base.ids import TopicPartition
from fencepost.client.blocking import Cluster
from fencepost.client.groups import CommittedOffset
from fencepost.records.opened import Record

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from fencepost.spark.auditing.result import AuditResult

NOW_MS = int(time.time() * 1000)
"""Older records would be deleted by retention."""
_ids = itertools.count()


class Topics:
    """Writes to topics, and audits them."""

    def __init__(
        self, cluster: Cluster, bootstrap: str, spark: SparkSession, new_topic: Callable[..., str]
    ) -> None:
        self.cluster = cluster
        self.bootstrap = bootstrap
        self.spark = spark
        self.new = new_topic

    def put(self, topic: str, partition: int, keys: Iterable[str | Record | None]) -> None:
        """Writes records outside of transactions."""
        records = [_record(key) for key in keys]
        with self.cluster.writer(self.cluster.init_producer_id(None)) as writer:
            writer.write_records(TopicPartition(topic, partition), records)
            writer.flush()

    def transact(
        self, topic: str, partition: int, keys: Iterable[str | Record | None], commit: bool | None
    ) -> Callable[[bool], Any]:
        """Writes a transaction; None leaves it open. The result ends it."""
        identity = self.cluster.init_producer_id(f"{topic}-{next(_ids)}")
        with self.cluster.writer(identity) as writer:
            writer.write_records(TopicPartition(topic, partition), [_record(key) for key in keys])
            writer.flush()
        if commit is not None:
            self.cluster.end_txn(identity, commit=commit)
        return lambda commit: self.cluster.end_txn(identity, commit=commit)

    def commit(self, group: str, topic: str, *offsets: int) -> None:
        """Commits an offset of each partition."""
        self.cluster.offset_commit(
            group,
            {
                TopicPartition(topic, number): CommittedOffset(offset)
                for number, offset in enumerate(offsets)
            },
        )

    def audit(self, **options: Any) -> AuditResult:
        """Runs an audit that does not wait."""
        from fencepost.spark import audit

        fields: dict[str, Any] = {"grace_seconds": 0}
        return audit(self.spark, self.bootstrap, **fields | options)


def _record(key: str | Record | None) -> Record:
    if isinstance(key, Record):
        return key
    return Record(timestamp_ms=NOW_MS, key=None if key is None else key.encode(), value=b"v")


def numbered(count: int, prefix: str = "k") -> list[str]:
    """Keys."""
    return [f"{prefix}{n}" for n in range(count)]
