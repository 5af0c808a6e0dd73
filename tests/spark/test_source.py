"""The source in a real Spark, local mode."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fencepost.base.ids import TopicPartition
from fencepost.client.blocking import Cluster
from fencepost.records.opened import Record
from fencepost.spark.sink import TransactionalSink
from tests.spark.conftest import read_values

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(180),
    pytest.mark.filterwarnings("default"),
]


def write(
    cluster: Cluster, topic: str, values: list[str], partition: int = 0, **ending: bool
) -> None:
    """Writes values in one transaction, which commits unless told otherwise."""
    identity = cluster.init_producer_id(f"writer-{topic}-{partition}")
    with cluster.writer(identity) as writer:
        records = [Record(key=b"k", value=v.encode(), headers=(("h", b"1"),)) for v in values]
        writer.write_records(TopicPartition(topic, partition), records)
        writer.flush()
    if ending.get("ended", True):
        cluster.end_txn(identity, commit=ending.get("commit", True))


def values_of(df: DataFrame) -> list[str]:
    return sorted(row[0] for row in df.selectExpr("cast(value AS string)").collect())


@pytest.fixture
def read(spark: SparkSession, bootstrap: str) -> Callable[..., DataFrame]:
    def make(topic: str, **options: Any) -> DataFrame:
        reader = spark.read.format("fencepost").option("kafka.bootstrap.servers", bootstrap)
        return reader.option("subscribe", topic).options(**options).load()

    return make


def test_committed_records_are_read_with_all_columns_and_aborted_ones_are_not(
    read: Callable[..., DataFrame], cluster: Cluster, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(2)
    write(cluster, topic, ["a", "b"])
    write(cluster, topic, ["never"], commit=False)
    write(cluster, topic, ["c"], partition=1)
    rows = sorted(read(topic, includeHeaders="true").collect(), key=lambda row: bytes(row.value))
    assert [(bytes(r.value), r.partition, r.offset) for r in rows] == [
        (b"a", 0, 0),
        (b"b", 0, 1),
        (b"c", 1, 0),
    ]
    first = rows[0]
    assert (bytes(first.key), first.topic, first.timestampType) == (b"k", topic, 0)
    assert [(h.key, bytes(h.value)) for h in first.headers] == [("h", b"1")]
    uncommitted = read(topic, **{"kafka.isolation.level": "read_uncommitted"})
    assert values_of(uncommitted) == ["a", "b", "c", "never"]
    assert read(topic, columns="offset,value").columns == ["value", "offset"]


def test_a_range_of_offsets_is_read_exactly(
    read: Callable[..., DataFrame], cluster: Cluster, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(1)
    write(cluster, topic, [f"{n:03}" for n in range(100)])
    bounds = {
        "startingOffsets": json.dumps({topic: {"0": 10}}),
        "endingOffsets": json.dumps({topic: {"0": 20}}),
    }
    assert values_of(read(topic, minPartitions="4", **bounds)) == [f"{n:03}" for n in range(10, 20)]


def test_a_wrong_option_is_an_error_that_names_it(
    read: Callable[..., DataFrame], new_topic: Callable[..., str]
) -> None:
    with pytest.raises(Exception, match="did you mean startingOffsets"):
        read(new_topic(), startingOffset="earliest")
    with pytest.raises(Exception, match="no-such-topic"):
        read("no-such-topic").count()


def test_offsets_that_are_gone_are_a_loss_unless_told_otherwise(
    read: Callable[..., DataFrame], cluster: Cluster, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(1)
    write(cluster, topic, ["a", "b"])
    beyond = {
        "startingOffsets": json.dumps({topic: {"0": 90}}),
        "endingOffsets": json.dumps({topic: {"0": 99}}),
    }
    with pytest.raises(Exception, match="failOnDataLoss"):
        read(topic, **beyond).count()
    assert read(topic, failOnDataLoss="false", **beyond).count() == 0


class Copy:
    """A query from one topic to another, with the source's offsets in the transaction."""

    def __init__(
        self, spark: SparkSession, bootstrap: str, folder: Path, source: str, target: str
    ) -> None:
        self.spark, self.bootstrap, self.folder = spark, bootstrap, folder
        self.source, self.target = source, target
        self.checkpoint = folder / "checkpoint"
        self.batches: list[int] = []

    def run(self, on_step: Callable[[str, int], None] | None = None, **options: Any) -> str | None:
        sink = TransactionalSink(
            self.bootstrap,
            transactional_id=self.target,
            topic=self.target,
            commit_source_offsets=True,
            on_step=on_step,
        )

        def watch(df: DataFrame, batch_id: int) -> None:
            sink(df, batch_id)
            self.batches.append(batch_id)

        reader = self.spark.readStream.format("fencepost").options(
            **{"kafka.bootstrap.servers": self.bootstrap, "subscribe": self.source} | options
        )
        query = (
            reader.load()
            .select("key", "value")
            .writeStream.foreachBatch(watch)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        # The reason is asked for below.
        with contextlib.suppress(Exception):
            query.awaitTermination(120)
        failure = query.exception()
        query.stop()
        return None if failure is None else str(failure)


@pytest.fixture
def copy(
    spark: SparkSession, bootstrap: str, tmp_path: Path, new_topic: Callable[..., str]
) -> Copy:
    return Copy(spark, bootstrap, tmp_path, new_topic(2, "in"), new_topic(2, "out"))


def test_a_stream_is_read_in_limited_batches_and_goes_on_from_its_checkpoint(
    copy: Copy, cluster: Cluster
) -> None:
    write(cluster, copy.source, [str(n) for n in range(30)])
    assert copy.run(startingOffsets="earliest", maxOffsetsPerTrigger="10") is None
    assert len(copy.batches) > 2
    write(cluster, copy.source, ["more"], partition=1)
    assert copy.run(startingOffsets="earliest") is None
    assert sorted(read_values(cluster, copy.target)) == sorted([*map(str, range(30)), "more"])


def test_the_first_batch_is_repeated_from_where_it_began(copy: Copy, cluster: Cluster) -> None:
    """With startingOffsets=latest, the start that Spark asks for again has moved."""
    write(cluster, copy.source, ["before"])

    def die(step: str, batch_id: int) -> None:
        if step == "fencing":
            write(cluster, copy.source, ["meanwhile"])
            raise RuntimeError("died")

    failure = copy.run(on_step=die)
    assert failure is not None
    write(cluster, copy.source, ["after"])
    assert copy.run() is None
    assert sorted(read_values(cluster, copy.target)) == ["after", "meanwhile"]


def test_a_lost_checkpoint_is_taken_over_from_the_committed_offsets(
    copy: Copy, cluster: Cluster
) -> None:
    write(cluster, copy.source, ["a", "b"])
    assert copy.run(startingOffsets="earliest") is None
    shutil.rmtree(copy.checkpoint)
    write(cluster, copy.source, ["c"])
    group: dict[str, Any] = {
        "startingOffsets": "committed",
        "kafka.group.id": f"fencepost-{copy.target}",
    }
    assert copy.run(**group) is None
    assert sorted(read_values(cluster, copy.target)) == ["a", "b", "c"]


def test_a_query_that_stands_still_says_who_pins_it(
    cluster: Cluster, bootstrap: str, new_topic: Callable[..., str]
) -> None:
    from fencepost.spark.positions import Positions
    from fencepost.spark.source_options import read_source_options
    from fencepost.spark.standstill import explain

    topic = new_topic(1)
    write(cluster, topic, ["open"], ended=False)
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic}
    positions = Positions(read_source_options(options, streaming=True))
    sentence = explain(positions, positions.latest(positions.partitions()))
    assert sentence is not None
    assert f"transactional id 'writer-{topic}-0'" in sentence
    assert "offset 0" in sentence
