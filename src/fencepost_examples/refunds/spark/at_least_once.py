"""A sink without transactions, for comparison: a repeated batch is written again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from fencepost.base.ids import TopicPartition
from fencepost.client.blocking import connect
from fencepost.client.partitioner import partition_for_key
from fencepost.records.opened import Record

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class AtLeastOnceSink:
    """Writes every batch, without a ledger."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._bootstrap_servers = bootstrap_servers

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        bootstrap_servers = self._bootstrap_servers
        df.foreachPartition(lambda rows: write_rows(bootstrap_servers, rows))


def write_rows(bootstrap_servers: str, rows: Iterable[Any]) -> None:
    """Writes one task's rows with an idempotent producer."""
    with connect(bootstrap_servers) as cluster:
        counts = {t: len(v.partitions) for t, v in cluster.metadata().topics.items()}
        with cluster.writer(cluster.init_producer_id(None)) as writer:
            for place, records in _by_partition(rows, counts).items():
                writer.write_records(place, records)
            writer.flush()


def _by_partition(
    rows: Iterable[Any], counts: dict[str, int]
) -> dict[TopicPartition, list[Record]]:
    lanes: dict[TopicPartition, list[Record]] = {}
    for row in rows:
        key = row.key.encode("utf-8")
        place = TopicPartition(row.topic, partition_for_key(key, counts[row.topic]))
        lanes.setdefault(place, []).append(Record(key=key, value=row.value.encode("utf-8")))
    return lanes
