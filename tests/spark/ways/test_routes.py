"""The three routes of rows to their writer: which one a batch takes, and that each is correct."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

from fencepost.base.ids import TopicPartition
from fencepost.client.blocking import Cluster
from fencepost.spark.ways import direct, shuffled
from fencepost.spark.ways.accounts import Account
from fencepost.spark.ways.collected import RowCollector
from tests.spark import chaos
from tests.spark.conftest import on_spark, read_values
from tests.spark.pipeline import Pipeline, finish, numbered
from tests.spark.ways.watching import close_ways, watch_ways

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = on_spark()


@pytest.fixture
def routes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The routes of the batches, in order."""
    taken: list[str] = []
    watch_ways(monkeypatch.setattr, lambda way, _: taken.append(way))
    return taken


def test_after_a_small_batch_the_driver_writes_small_ones_itself(
    pipeline: Pipeline, cluster: Cluster, routes: list[str]
) -> None:
    pipeline.add(numbered(0), numbered(1), numbered(2))
    assert pipeline.run() is None
    assert routes == ["direct", "collected", "collected"]
    expected = numbered(0) + numbered(1) + numbered(2)
    assert sorted(read_values(cluster, pipeline.topic)) == sorted(expected)


def test_bytes_cast_to_string_arrive_unchanged_on_every_route(
    pipeline: Pipeline, cluster: Cluster, routes: list[str]
) -> None:
    """Spark casts bytes to a string unchecked, and Kafka's payloads are often not UTF-8."""
    pipeline.add(numbered(0), numbered(1))
    text = "CAST(X'00FFFE41' AS STRING)"
    assert (
        pipeline.run(shape=lambda df: df.selectExpr(f"{text} AS key", f"{text} AS value")) is None
    )
    assert routes == ["direct", "collected"]
    found = {
        (record.key, record.value)
        for partition in range(3)
        for record in cluster.records(TopicPartition(pipeline.topic, partition))
    }
    assert found == {(b"\x00\xff\xfeA", b"\x00\xff\xfeA")}


def test_columns_that_change_between_small_batches_are_checked_again(
    pipeline: Pipeline, cluster: Cluster
) -> None:
    """Treated as binary, the number 7 would be seven zero bytes."""
    pipeline.add(numbered(0), numbered(1), numbered(2))
    sink = pipeline.sink()
    shapes = ["CAST(value AS BINARY) AS value"] * 2 + ["7 AS value"]
    failure = pipeline.run(lambda df, batch_id: sink(df.selectExpr(shapes[batch_id]), batch_id))
    assert failure is not None
    assert "the column 'value' is int, and must be string or binary" in failure
    assert sorted(read_values(cluster, pipeline.topic)) == sorted(numbered(0) + numbered(1))


def test_collecting_a_small_batch_does_not_change_session_settings(
    pipeline: Pipeline, routes: list[str]
) -> None:
    pipeline.add(numbered(0), numbered(1), numbered(2))
    sink, seen = pipeline.sink(), []
    name = "spark.sql.limit.initialNumPartitions"

    def write(df: DataFrame, batch_id: int) -> None:
        if batch_id == 2:
            df.sparkSession.conf.set(name, "3")
        sink(df, batch_id)
        seen.append(df.sparkSession.conf.get(name))

    assert pipeline.run(write) is None
    assert routes == ["direct", "collected", "collected"]
    assert seen == ["1", "1", "3"]


def test_a_batch_larger_than_the_driver_expected_is_written_by_tasks(
    pipeline: Pipeline, cluster: Cluster, routes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def remember(collector: RowCollector, account: Account) -> None:
        collector.limit = account.rows - 1

    monkeypatch.setattr(RowCollector, "remember", remember)
    pipeline.add(numbered(0), numbered(1))
    assert pipeline.run() is None
    assert routes == ["direct", "direct"]
    assert sorted(read_values(cluster, pipeline.topic)) == sorted(numbered(0) + numbered(1))


def test_rows_in_more_partitions_than_slots_go_through_the_shuffle(
    pipeline: Pipeline, cluster: Cluster, routes: list[str]
) -> None:
    def spread(lines: DataFrame) -> DataFrame:
        return lines.selectExpr("value AS key", "value").repartition(5)

    pipeline.add(numbered(0, 2_000), numbered(1))
    assert pipeline.run(shape=spread) is None
    assert routes == ["shuffled", "shuffled"]
    assert sorted(read_values(cluster, pipeline.topic)) == sorted(numbered(0, 2_000) + numbered(1))


def test_a_plan_that_cannot_run_in_a_barrier_stage_goes_through_the_shuffle_at_once(
    pipeline: Pipeline, cluster: Cluster, routes: list[str]
) -> None:
    sink, attempts = pipeline.sink(), []
    sink._on_step = lambda step, batch_id: attempts.append(batch_id) if step == "writing" else None

    def narrowed_and_joined(df: DataFrame, batch_id: int) -> None:
        if batch_id == 0:
            sink(df.repartition(5).coalesce(1), batch_id)
        elif batch_id == 1:
            sink(df.where("value LIKE '%1'").union(df.where("value NOT LIKE '%1'")), batch_id)
        else:
            sink(df, batch_id)

    batches = [numbered(batch, 2_000) for batch in range(3)]
    pipeline.add(*batches)
    assert pipeline.run(narrowed_and_joined) is None
    assert routes == ["shuffled", "shuffled", "direct"]
    assert attempts == [0, 1, 2]
    assert sorted(read_values(cluster, pipeline.topic)) == sorted(itertools.chain(*batches))


def test_a_failed_attempt_sends_only_its_own_batch_through_the_shuffle(
    pipeline: Pipeline, cluster: Cluster, routes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    chaos.in_tasks(monkeypatch, chaos.FailOnce(str(pipeline.folder / "failed-once")))
    batches = [numbered(batch, 2_000) for batch in range(3)]
    pipeline.add(*batches)
    assert pipeline.run() is None
    assert routes == ["shuffled", "direct", "direct"]
    assert sorted(read_values(cluster, pipeline.topic)) == sorted(itertools.chain(*batches))


def test_if_tasks_cannot_connect_the_batch_goes_through_the_shuffle(
    pipeline: Pipeline, cluster: Cluster, routes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fencepost.spark.ways import direct
    from fencepost.spark.ways.meeting import Rendezvous

    def unreachable(*arguments: Any) -> Any:
        found = Rendezvous(*arguments)
        found.address = (found.address[0], 1)
        return found

    monkeypatch.setattr(direct, "Rendezvous", unreachable)

    def in_two(lines: DataFrame) -> DataFrame:
        return lines.selectExpr("value AS key", "value").repartition(2)

    # After three failures the run does not try the direct route again.
    tried: list[int] = []
    genuine = direct.run_direct

    def run_direct(rows: Any, job: Any) -> Any:
        tried.append(job.packing.batch_id)
        return genuine(rows, job)

    monkeypatch.setattr(direct, "run_direct", run_direct)
    batches = [numbered(batch, 2_000) for batch in range(5)]
    pipeline.add(*batches)
    assert pipeline.run(shape=in_two) is None
    assert routes == ["shuffled"] * 5
    assert tried == [0, 1, 2]
    assert sorted(read_values(cluster, pipeline.topic)) == sorted(itertools.chain(*batches))


def test_a_stateful_query_of_small_batches_keeps_its_counts(
    pipeline: Pipeline, cluster: Cluster, routes: list[str]
) -> None:
    def counted(lines: DataFrame) -> DataFrame:
        counts = lines.groupBy("value").count()
        return counts.selectExpr("value AS key", "concat(value, '=', count) AS value")

    pipeline.add(["a", "b"], ["a", "c"], ["a"])
    assert pipeline.run(shape=counted, mode="update") is None
    assert "collected" in routes
    assert sorted(read_values(cluster, pipeline.topic)) == ["a=1", "a=2", "a=3", "b=1", "c=1"]


@pytest.mark.parametrize("way", ["direct", "shuffled"])
def test_if_no_report_of_a_job_arrives_its_rows_are_aborted_and_written_again(
    pipeline: Pipeline, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    if way == "shuffled":
        close_ways(monkeypatch.setattr, "direct")
    module = direct if way == "direct" else shuffled
    genuine = module.collect_reports
    lost: list[int] = []

    def collect(written: DataFrame, tasks: int) -> Any:
        found = genuine(written, tasks)
        lost.append(len(found))
        return [] if len(lost) == 1 else found

    monkeypatch.setattr(module, "collect_reports", collect)
    pipeline.add(numbered(0))
    sink = pipeline.sink()
    assert pipeline.run(sink) is None
    assert lost[0] > 0
    assert sorted(read_values(cluster, pipeline.topic)) == sorted(numbered(0))
    assert sink.last_receipt is not None
    assert (sink.last_receipt.attempts, sink.last_receipt.rows) == (2, len(numbered(0)))


@pytest.mark.parametrize("way", ["direct", "shuffled"])
def test_a_dataframe_without_partitions_is_an_empty_batch(
    pipeline: Pipeline, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    if way == "shuffled":
        close_ways(monkeypatch.setattr, "direct")
    sink = pipeline.sink()

    def write(df: DataFrame, batch_id: int) -> None:
        session = df.sparkSession
        none = session.sparkContext.emptyRDD()
        sink(session.createDataFrame(none, "value string"), batch_id)

    pipeline.add(numbered(0))
    assert pipeline.run(write) is None
    assert read_values(cluster, pipeline.topic) == []
    assert sink.last_receipt is not None
    assert (sink.last_receipt.attempts, sink.last_receipt.rows) == (1, 0)


def test_an_observation_in_the_function_sees_all_rows_of_its_batch(
    pipeline: Pipeline, cluster: Cluster
) -> None:
    from pyspark.sql import Observation, functions

    pipeline.add(numbered(0), numbered(1, 60), numbered(2, 90))
    sink, seen = pipeline.sink(), []

    def write(df: DataFrame, batch_id: int) -> None:
        observation = Observation()
        count = functions.count(functions.lit(1)).alias("n")
        sink(df.observe(observation, count), batch_id)
        seen.append(observation.get["n"])

    query = pipeline.start(write)
    assert finish(query) is None
    assert seen == [40, 60, 90]
    counted = [p["numInputRows"] for p in query.recentProgress if p["numInputRows"]]
    assert counted == [40, 60, 90], "each plan ran once"
    assert len(read_values(cluster, pipeline.topic)) == 190
