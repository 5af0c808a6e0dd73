"""Goal: `writeStream.format("fencepost")` writes every batch once, or refuses with one sentence."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fencepost.base.ids import TopicPartition
from fencepost.client.admin import NewTopic
from fencepost.client.blocking import Cluster
from fencepost.client.reading import LATEST
from fencepost.client.topics import create_partitions
from fencepost.records.opened import Record
from fencepost.spark import route
from fencepost.spark.failures import RowRefused
from fencepost.spark.ledger.reader import read_ledger_view
from tests.spark import chaos
from tests.spark.conftest import on_spark, read_values
from tests.spark.doors import faults
from tests.spark.doors.routed import RoutedPipeline
from tests.spark.pipeline import failed, finish, numbered

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from fencepost.spark.ledger.entry import LedgerEntry

pytestmark = on_spark()


@pytest.fixture
def routed(
    spark: SparkSession, bootstrap: str, tmp_path: Path, new_topic: Callable[..., str]
) -> RoutedPipeline:
    return RoutedPipeline(spark, bootstrap, tmp_path, new_topic())


def entry_of(cluster: Cluster, routed: RoutedPipeline) -> LedgerEntry:
    entry = read_ledger_view(cluster, routed.transactional_id, fenced=True).entry
    assert entry is not None
    return entry


@contextmanager
def running(query: StreamingQuery) -> Iterator[StreamingQuery]:
    try:
        yield query
    finally:
        query.stop()


def test_rows_are_written_once_and_a_repeated_batch_is_drained(
    routed: RoutedPipeline, cluster: Cluster
) -> None:
    routed.add(numbered(0), ["one row"])
    assert routed.run_routed() is None
    # As after a crash between EndTxn and Spark's own log.
    (routed.checkpoint / "commits" / "1").unlink()
    (routed.checkpoint / "commits" / ".1.crc").unlink(missing_ok=True)
    routed.add(numbered(2))
    assert routed.run_routed() is None
    found = sorted(read_values(cluster, routed.topic))
    assert found == sorted([*numbered(0), "one row", *numbered(2)])
    entry = entry_of(cluster, routed)
    assert (entry.batch_id, entry.serial) == (2, 3)
    # The foreachBatch sink computes the same fingerprint, so it can continue the query.
    routed.add(numbered(3))
    assert routed.run() is None
    assert routed.run_routed() is None
    assert len(read_values(cluster, routed.topic)) == len(found) + len(numbered(3))


def test_a_dataframe_without_route_is_refused(routed: RoutedPipeline, cluster: Cluster) -> None:
    routed.add(numbered(0))
    failure = failed(routed.run_routed(routing=lambda rows: rows))
    assert "the rows are not packed (the columns are key, value)" in failure
    assert read_values(cluster, routed.topic) == []


def test_seven_partitions_are_copied_once_and_in_order_by_two_tasks(
    routed: RoutedPipeline, cluster: Cluster, new_topic: Callable[..., str]
) -> None:
    source = new_topic(7, "source")
    identity = cluster.init_producer_id(source)
    with cluster.writer(identity) as writer:
        for partition in range(7):
            records = [Record(value=f"{partition}-{n:03d}".encode()) for n in range(300)]
            writer.write_records(TopicPartition(source, partition), records)
        writer.flush()
    cluster.end_txn(identity, commit=True)
    rows = (
        routed.spark.readStream.format("fencepost")
        .option("kafka.bootstrap.servers", routed.bootstrap)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 700)
        .load()
        .selectExpr("cast(partition AS string) AS key", "value")
    )
    query = routed.start_routed(lambda _: rows)
    assert finish(query) is None
    assert len(query.recentProgress) > 2
    found = read_values(cluster, routed.topic)
    for partition in range(7):
        mine = [value for value in found if value.startswith(f"{partition}-")]
        assert mine == [f"{partition}-{n:03d}" for n in range(300)]


def test_a_batch_without_rows_is_recorded_and_a_stateful_query_continues(
    routed: RoutedPipeline, cluster: Cluster
) -> None:
    def once(lines: DataFrame) -> DataFrame:
        return lines.dropDuplicates(["value"]).selectExpr("value AS key", "value")

    routed.add(["a", "b"], ["b", "a"])
    assert routed.run_routed(once) is None
    assert sorted(read_values(cluster, routed.topic)) == ["a", "b"]
    assert entry_of(cluster, routed).is_stateful
    routed.add(["b", "c"])
    assert routed.run_routed(once) is None
    assert sorted(read_values(cluster, routed.topic)) == ["a", "b", "c"]
    assert entry_of(cluster, routed).batch_id == 2


def test_a_query_that_never_has_rows_is_recorded(routed: RoutedPipeline, cluster: Cluster) -> None:
    routed.add(["a"])
    assert routed.run_routed(lambda lines: lines.where("false")) is None
    assert read_values(cluster, routed.topic) == []
    assert entry_of(cluster, routed).batch_id == 0


def test_a_task_that_fails_is_not_tried_again_and_the_restart_writes_the_batch_once(
    routed: RoutedPipeline, cluster: Cluster, tmp_path: Path
) -> None:
    marker = tmp_path / "marker"
    routed.add(numbered(0))
    failure = failed(
        routed.run_routed(format=faults.FORMAT, faultStep="fail", faultBatch=0, faultMarker=marker)
    )
    assert "the task fails with everything written" in failure
    attempts = Path(f"{marker}.attempts").read_text().split()
    # One of two tasks may not have begun when the other one fails.
    assert attempts in (["0"], ["1"], ["0", "1"], ["1", "0"])
    assert read_values(cluster, routed.topic) == []
    assert routed.run_routed() is None
    assert sorted(read_values(cluster, routed.topic)) == sorted(numbered(0))


@pytest.mark.parametrize("version", [1, 2])
def test_the_next_start_ends_the_transaction_of_a_query_that_was_stopped_in_mid_batch(
    routed: RoutedPipeline, cluster: Cluster, tmp_path: Path, version: int
) -> None:
    routed.transactional_id += f"-tv{version}"
    marker = tmp_path / "marker"
    routed.add(numbered(0))
    query = routed.start_routed(
        format=faults.FORMAT, faultStep="unreported", faultBatch=0, faultMarker=marker
    )
    chaos.await_file(f"{marker}.reached")
    query.stop()
    # Spark calls abort() without a report, or not at all.
    assert not Path(f"{marker}.aborted").exists() or Path(f"{marker}.aborted").read_text() == "0"
    assert read_values(cluster, routed.topic) == []
    assert routed.run_routed() is None
    assert sorted(read_values(cluster, routed.topic)) == sorted(numbered(0))
    places = [TopicPartition(routed.topic, index) for index in range(3)]
    ends = [
        cluster.list_offsets(dict.fromkeys(places, LATEST), isolation=isolation)
        for isolation in ("read_committed", "read_uncommitted")
    ]
    assert ends[0] == ends[1]


def test_a_lost_answer_to_endtxn_is_settled_by_the_ledger(
    routed: RoutedPipeline, cluster: Cluster, tmp_path: Path
) -> None:
    routed.add(numbered(0), numbered(1))
    marker = tmp_path / "marker"
    assert routed.run_routed(format=faults.FORMAT, faultStep="lost", faultMarker=marker) is None
    assert marker.exists()
    assert sorted(read_values(cluster, routed.topic)) == sorted([*numbered(0), *numbered(1)])


def test_a_record_that_no_task_reported_aborts_the_batch(
    routed: RoutedPipeline, cluster: Cluster
) -> None:
    routed.add(numbered(0))
    failure = failed(routed.run_routed(format=faults.FORMAT, faultStep="extra", faultBatch=0))
    assert "another task has written with its identity" in failure
    assert read_values(cluster, routed.topic) == []


def test_tasks_that_write_and_report_nothing_cannot_commit(
    routed: RoutedPipeline, cluster: Cluster
) -> None:
    routed.add(numbered(0))
    failure = failed(routed.run_routed(format=faults.FORMAT, faultStep="silent", faultBatch=0))
    assert "is only in the transaction" in failure
    assert read_values(cluster, routed.topic) == []
    assert routed.run_routed() is None
    assert sorted(read_values(cluster, routed.topic)) == sorted(numbered(0))


def test_a_new_checkpoint_is_refused_until_it_takes_over(
    routed: RoutedPipeline, cluster: Cluster, tmp_path: Path
) -> None:
    routed.add(numbered(0))
    assert routed.run_routed() is None
    before = entry_of(cluster, routed)
    routed.checkpoint = tmp_path / "new-checkpoint"
    assert "the checkpoint is new and would write rows again" in failed(routed.run_routed())
    assert routed.run_routed(takeOver=before.query_id) is None
    assert len(read_values(cluster, routed.topic)) == 2 * len(numbered(0))
    after = entry_of(cluster, routed)
    assert (after.batch_id, after.query_id != before.query_id) == (0, True)


def test_without_a_readable_checkpoint_the_tasks_decide(
    routed: RoutedPipeline, cluster: Cluster, spark: SparkSession, tmp_path: Path
) -> None:
    # Spark knows where it is, but does not say.
    settings = "spark.sql.streaming.checkpointLocation"
    spark.conf.set(settings, str(tmp_path / "elsewhere"))
    try:
        routed.add(numbered(0))
        name = f"q{routed.topic.replace('-', '')}"
        assert routed.run_routed(checkpointLocation=None, queryName=name) is None
        (tmp_path / "elsewhere" / name / "commits" / "0").unlink()
        (tmp_path / "elsewhere" / name / "commits" / ".0.crc").unlink(missing_ok=True)
        assert routed.run_routed(checkpointLocation=None, queryName=name) is None
        assert len(read_values(cluster, routed.topic)) == len(numbered(0))
        assert "either two queries use one id" in failed(routed.run_routed())
        # The tasks refuse another query, and Spark shows their reason.
        failure = failed(routed.run_routed(checkpointLocation=None, queryName=f"{name}other"))
        assert "either two queries use one id" in failure
        assert len(read_values(cluster, routed.topic)) == len(numbered(0))
    finally:
        spark.conf.unset(settings)


@pytest.mark.parametrize("unknown", ["query", "batch"])
def test_tasks_that_do_not_know_their_query_or_batch_write_nothing(
    routed: RoutedPipeline, cluster: Cluster, unknown: str
) -> None:
    routed.add(numbered(0))
    failure = failed(routed.run_routed(format=faults.FORMAT, faultStep=unknown, faultBatch=0))
    assert "does not tell its tasks which query and batch they belong to" in failure
    assert read_values(cluster, routed.topic) == []
    assert routed.run_routed() is None
    assert sorted(read_values(cluster, routed.topic)) == sorted(numbered(0))


def test_source_offsets_are_committed_if_the_checkpoint_proves_whose_they_are(
    routed: RoutedPipeline, cluster: Cluster, new_topic: Callable[..., str]
) -> None:
    source = new_topic(1, "source")
    routed.add(numbered(0))
    assert (
        routed.run_routed(routing=lambda rows: route(rows, routed.bootstrap, topic=source)) is None
    )
    second = RoutedPipeline(
        routed.spark, routed.bootstrap, routed.folder / "second", routed.topic, f"{source}-copy"
    )
    copied = (
        routed.spark.readStream.format("fencepost")
        .option("kafka.bootstrap.servers", routed.bootstrap)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .load()
        .select("key", "value")
    )
    query = second.start_routed(lambda _: copied, commitSourceOffsets="true")
    assert finish(query) is None
    # In the order of the source, which has one partition.
    assert read_values(cluster, source) == numbered(0)
    entry = entry_of(cluster, second)
    place = TopicPartition(source, 0)
    assert entry.sources == {place: len(numbered(0)) + 1}
    committed = cluster.offset_fetch(f"fencepost-{source}-copy", [place])
    assert committed[place].offset == len(numbered(0)) + 1


def test_a_row_too_large_and_a_missing_topic_are_one_sentence(
    routed: RoutedPipeline, cluster: Cluster
) -> None:
    with pytest.raises(RowRefused, match="the cluster has no topic 'missing'"):
        routed.start_routed(routing=lambda rows: route(rows, routed.bootstrap, topic="missing"))
    cluster.create_topics([NewTopic(f"{routed.topic}-small", 1, 1, {"max.message.bytes": "1000"})])
    routed.add(["x" * 2_000])
    small = f"{routed.topic}-small"
    failure = failed(
        routed.run_routed(routing=lambda rows: route(rows, routed.bootstrap, topic=small))
    )
    assert "it is larger than max.message.bytes of the topic, which is 1000" in failure
    assert read_values(cluster, small) == []
    # Batches are made to fit, so many small rows are no problem.
    routed.checkpoint = routed.folder / "other-checkpoint"
    (routed.folder / "in" / "part-000.txt").unlink()
    routed.add([f"{n:03}" for n in range(300)])
    assert (
        routed.run_routed(routing=lambda rows: route(rows, routed.bootstrap, topic=small)) is None
    )
    assert sorted(read_values(cluster, small)) == [f"{n:03}" for n in range(300)]


def test_partitions_added_while_the_query_runs_get_rows_from_the_next_batch_on(
    spark: SparkSession, bootstrap: str, cluster: Cluster, routed: RoutedPipeline
) -> None:
    topic = f"{routed.topic}-grows"
    cluster.create_topics([NewTopic(topic, 1, 1)])
    routed.add(numbered(0))
    lines = spark.readStream.text(str(routed.folder / "in")).selectExpr("value AS key", "value")
    writer = (
        route(lines, bootstrap, topic=topic)
        .writeStream.format("fencepost")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("transactionalId", topic)
        .option("checkpointLocation", str(routed.checkpoint))
    )
    with running(writer.start()) as query:
        query.processAllAvailable()
        assert len(read_values(cluster, topic)) == len(numbered(0))
        cluster.run(create_partitions(cluster.core, topic, 4))
        routed.add(numbered(1))
        query.processAllAvailable()
    assert sorted(read_values(cluster, topic)) == sorted([*numbered(0), *numbered(1)])
    new = [list(cluster.records(TopicPartition(topic, index))) for index in (1, 2, 3)]
    assert all(new)


@pytest.mark.parametrize(
    ("mode", "words"),
    [("complete", "format fencepost only appends"), ("update", "does not support Update mode")],
)
def test_output_modes_other_than_append_are_refused(
    routed: RoutedPipeline, mode: str, words: str
) -> None:
    def counted(lines: DataFrame) -> DataFrame:
        return lines.groupBy("value").count().selectExpr("value AS key", "value")

    routed.add(["a"])
    assert words in failed(routed.run_routed(counted, mode=mode))


def test_brokers_that_are_not_there_are_one_sentence(routed: RoutedPipeline) -> None:
    routed.add(["a"])
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.default.api.timeout.ms": "100"}
    assert "the cluster at 127.0.0.1:1 does not answer" in failed(routed.run_routed(**options))
