"""The number of slots, from the driver of a session to the planners of its sources."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fencepost.base.ids import TopicPartition
from fencepost.client.blocking import Cluster
from fencepost.records.opened import Record
from fencepost.spark.doors.foreach_batch import TransactionalSink
from tests.spark.conftest import on_spark
from tests.spark.pipeline import finish
from tests.spark.ways.test_routes import routes  # noqa: F401 - a fixture.

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = on_spark()

PARTITIONS = 5


def fill(cluster: Cluster, topic: str) -> None:
    """Values that say where they are, with keys that Kafka would place elsewhere."""
    identity = cluster.init_producer_id(f"fill-{topic}")
    with cluster.writer(identity) as writer:
        for partition in range(PARTITIONS):
            records = [Record(key=b"same", value=b"%d:%06d" % (partition, n)) for n in range(600)]
            writer.write_records(TopicPartition(topic, partition), records)
        writer.flush()
    cluster.end_txn(identity, commit=True)


def contents(cluster: Cluster, topic: str) -> dict[int, list[bytes | None]]:
    return {
        number: [record.value for record in cluster.records(TopicPartition(topic, number))]
        for number in range(PARTITIONS)
    }


def test_the_first_batch_of_many_partitions_goes_directly_to_those_that_the_column_names(
    spark: SparkSession,
    bootstrap: str,
    cluster: Cluster,
    tmp_path: Path,
    new_topic: Callable[..., str],
    routes: list[str],  # noqa: F811
) -> None:
    """There are more partitions than slots: the source packs them into as many tasks as can run."""
    source, target = new_topic(PARTITIONS, "in"), new_topic(PARTITIONS, "out")
    fill(cluster, source)
    query = (
        spark.readStream.format("fencepost")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .load()
        .select("key", "value", "partition")
        .writeStream.foreachBatch(
            TransactionalSink(bootstrap, transactional_id=target, topic=target)
        )
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert finish(query) is None
    assert routes == ["direct"]
    assert contents(cluster, target) == contents(cluster, source)


def test_the_number_is_where_planners_look_and_only_they_read_it(spark: SparkSession) -> None:
    from pyspark import SparkFiles

    from fencepost.spark.engine.slots import announce_if_active, announced_slots

    announce_if_active()
    assert Path(SparkFiles.getRootDirectory(), "fencepost-slots").read_text() == "2"
    assert announced_slots() is None


def test_a_planner_reads_the_number_from_its_folder_or_the_one_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark import SparkFiles

    from fencepost.spark.engine import slots
    from fencepost.spark.engine.slots import announced_slots

    artifacts = tmp_path / "default"
    artifacts.mkdir()
    monkeypatch.setattr(slots, "is_started_by_spark", lambda: True)
    monkeypatch.setattr(SparkFiles, "getRootDirectory", lambda: str(artifacts))
    assert announced_slots() is None
    (tmp_path / "fencepost-slots").write_text("7")
    assert announced_slots() == 7
    (artifacts / "fencepost-slots").write_text("not a number")
    assert announced_slots() == 7
