"""Goal: topics may change under a running query, and every record is still written once.

Method: a query from topic to topic. While it runs, partitions are added, topics are deleted and
created again, or the query reads what it writes. It crashes in between, and repeats a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fencepost.base.ids import TopicPartition
from fencepost.client.admin import NewTopic
from fencepost.client.blocking import Cluster
from tests.spark.conftest import on_spark, read_values
from tests.spark.queries.topic_query import TopicQuery, enlarge, put

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = on_spark()

MakeQuery = Callable[..., TopicQuery]


@pytest.fixture
def query(spark: SparkSession, bootstrap: str, tmp_path: Path) -> MakeQuery:
    def make(
        source: str,
        target: str | None,
        shape: Callable[[DataFrame], DataFrame] = lambda rows: rows.select("key", "value"),
        **options: str,
    ) -> TopicQuery:
        return TopicQuery(spark, bootstrap, tmp_path, source, target, shape, **options)

    return make


@pytest.mark.parametrize("named", ["by the sink", "by a column"])
def test_partitions_added_to_source_and_target_are_used_by_the_next_batch(
    query: MakeQuery, bootstrap: str, cluster: Cluster, new_topic: Callable[..., str], named: str
) -> None:
    source, target = new_topic(1), new_topic(1)
    column = [] if named == "by the sink" else [f"'{target}' AS topic"]

    def to_its_own_partition(rows: DataFrame) -> DataFrame:
        return rows.selectExpr("value", "partition", *column)

    made = query(source, None if column else target, to_its_own_partition)
    with made.crash_at(("written", 2), ("ended", 2)):
        # The second batch is the first that the driver writes, the others are written by tasks.
        for value in ("a", "b"):
            put(cluster, source, value)
            made.catch_up()
        for topic in (target, source):
            enlarge(bootstrap, topic, 3)
        put(cluster, source, "c", partition=2)
        made.catch_up()
        put(cluster, source, "d", partition=1)
        made.catch_up()
    assert made.crashed == [("written", 2), ("ended", 2)]
    found = [
        [record.value for record in cluster.records(TopicPartition(target, partition))]
        for partition in range(3)
    ]
    assert found == [[b"a", b"b"], [b"d"], [b"c"]]


def test_partitions_added_to_the_target_in_mid_batch_do_not_disturb_the_batch(
    query: MakeQuery, bootstrap: str, cluster: Cluster, new_topic: Callable[..., str]
) -> None:
    source, target = new_topic(2), new_topic(2)
    made = query(source, target).crash_at(("ended", 1))
    made.act_at("written", 1, lambda: enlarge(bootstrap, target, 4))
    values = [f"{n}" for n in range(40)]
    with made:
        for start in range(0, 40, 10):
            put(cluster, source, *values[start : start + 10], partition=start % 2)
            made.catch_up()
    assert sorted(read_values(cluster, target)) == sorted(values)


def test_a_target_that_is_deleted_and_created_again_gets_the_next_batches_once(
    query: MakeQuery, cluster: Cluster, new_topic: Callable[..., str]
) -> None:
    source, target = new_topic(1), new_topic(3)
    made = query(source, target).crash_at(("written", 2), ("ended", 3))
    with made:
        for value in ("a", "b"):
            put(cluster, source, value)
            made.catch_up()
        cluster.delete_topics([target])
        cluster.create_topics([NewTopic(target, 2, 1)])
        for value in ("c", "d", "e"):
            put(cluster, source, value)
            made.catch_up()
    assert made.crashed == [("written", 2), ("ended", 3)]
    assert sorted(read_values(cluster, target)) == ["c", "d", "e"]


def test_a_target_recreated_before_its_rows_are_committed_does_not_stop_the_query(
    query: MakeQuery, cluster: Cluster, new_topic: Callable[..., str]
) -> None:
    """The rows of that batch were in the deleted topic, and are gone with it."""
    source, target = new_topic(1), new_topic(3)

    def recreate() -> None:
        cluster.delete_topics([target])
        cluster.create_topics([NewTopic(target, 3, 1)])

    made = query(source, target).act_at("written", 1, recreate).crash_at(("ended", 2))
    with made:
        for value in ("a", "b", "c", "d"):
            put(cluster, source, value)
            made.catch_up()
    assert sorted(read_values(cluster, target)) == ["c", "d"]


def test_a_source_that_is_deleted_and_created_again_is_read_once_from_its_first_record(
    query: MakeQuery, cluster: Cluster, new_topic: Callable[..., str]
) -> None:
    source, target = new_topic(1), new_topic(2)
    made = query(source, target, failOnDataLoss="false")
    with made.crash_at(("written", 1), ("ended", 1)):
        put(cluster, source, "old 0", "old 1")
        made.catch_up()
        cluster.delete_topics([source])
        cluster.create_topics([NewTopic(source, 2, 1)])
        put(cluster, source, "new 0", "new 1", "new 2")
        put(cluster, source, "new 3", partition=1)
        made.catch_up()
    assert made.crashed == [("written", 1), ("ended", 1)]
    assert sorted(read_values(cluster, target)) == [
        *(f"new {n}" for n in range(4)),
        *(f"old {n}" for n in range(2)),
    ]


def test_a_query_that_reads_what_it_writes_processes_every_record_once(
    query: MakeQuery, cluster: Cluster, new_topic: Callable[..., str]
) -> None:
    """Every record is followed by the next lower number, down to 0."""
    topic = new_topic(2)

    def countdown(rows: DataFrame) -> DataFrame:
        return (
            rows.selectExpr("int(string(value)) AS n")
            .selectExpr("string(n - 1) AS value", "n % 2 AS partition")
            .where("value >= 0")
        )

    put(cluster, topic, "5", "5", "3")
    made = query(topic, topic, countdown)
    with made.crash_at(("written", 0), ("ended", 0), ("entered", 2), ("ended", 3)):
        made.catch_up()
    assert len(made.crashed) == 4
    expected = [str(n) for start in (5, 5, 3) for n in range(start + 1)]
    assert sorted(read_values(cluster, topic)) == sorted(expected)
