"""Goal: the lag that `Progress` shows is the one that Spark's own Kafka source reports.

Method: a topic of transactions, some of them aborted, read by Spark's source and by ours in small
batches on one Apache Kafka. Spark reports metrics for its own source only; what `Progress` computes
must equal them there, and must be the same for ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fencepost.base.ids import TopicPartition
from fencepost.client.admin import NewTopic
from fencepost.client.blocking import Cluster, connect
from fencepost.records.opened import Record
from fencepost.spark.progress.lag import SourceLag

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.compat.conftest import Side

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("default"),
]

TOPIC = "progress-of-transactions"


@pytest.fixture(scope="module")
def cluster(apache_kafka: Side) -> Iterator[Cluster]:
    with connect(apache_kafka.bootstrap_servers) as client:
        client.create_topics([NewTopic(TOPIC, 2, 1)])
        for number in range(12):
            _write(client, number, commit=number % 3 != 0)
        yield client


def _write(cluster: Cluster, number: int, *, commit: bool) -> None:
    identity = cluster.init_producer_id(TOPIC)
    with cluster.writer(identity) as writer:
        place = TopicPartition(TOPIC, number % 2)
        writer.write_records(place, [Record(value=b"%d" % number)] * 2)
        writer.flush()
    cluster.end_txn(identity, commit=commit)


def _rows(spark: SparkSession, servers: str, source: str) -> DataFrame:
    options = {
        "kafka.bootstrap.servers": servers,
        "kafka.isolation.level": "read_committed",
        "subscribe": TOPIC,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "12",
    }
    return spark.readStream.format(source).options(**options).load().select("value")


def test_the_lag_equals_the_metrics_of_sparks_own_source(
    connector_spark: SparkSession, apache_kafka: Side, cluster: Cluster, tmp_path: Path
) -> None:
    found = {}
    for source in ("kafka", "fencepost"):
        rows = _rows(connector_spark, apache_kafka.bootstrap_servers, source)
        query = (
            rows.writeStream.format("noop")
            .option("checkpointLocation", str(tmp_path / source))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(120)
        lag = SourceLag()
        sources = [progress["sources"][0] for progress in query.recentProgress]
        statuses = [lag.status(one) for one in sources]
        found[source] = [(one.behind, one.rows, one.metrics) for one in statuses]
        if source == "kafka":
            assert [one.metrics for one in statuses] == [dict(one.metrics) for one in sources]
    assert found["kafka"] == found["fencepost"]
    # 12 transactions of two records and a marker each, a third of them aborted.
    assert [sum((behind or {}).values()) for behind, _, _ in found["kafka"]] == [24, 12, 0]
    assert sum(rows for _, rows, _ in found["kafka"]) == 16
