"""Goal: no query writes to a topic that it reads, unless its user says so. Every door is tried."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fencepost.base.ids import TopicPartition
from fencepost.client.admin import NewTopic
from fencepost.client.blocking import Cluster, connect
from fencepost.records.opened import Record
from fencepost.spark.engine.private_names import PLAN
from tests.spark.conftest import BrokerProcess, on_spark, read_values
from tests.spark.pipeline import failed, finish

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = on_spark()

VALUES = ["a", "b", "c"]


def fill(cluster: Cluster, topic: str) -> None:
    with cluster.writer(cluster.init_producer_id(None)) as writer:
        for value in VALUES:
            writer.write_records(TopicPartition(topic, 0), [Record(value=value.encode())])
        writer.flush()


class Loops:
    """A topic with some records, and queries that read it."""

    def __init__(self, spark: SparkSession, bootstrap: str, folder: Path, topic: str) -> None:
        self.spark = spark
        self.bootstrap = bootstrap
        self.checkpoint = str(folder / "checkpoint")
        self.topic = topic

    def options(self, **changes: Any) -> dict[str, Any]:
        fields = {
            "kafka.bootstrap.servers": self.bootstrap,
            "startingOffsets": "earliest",
            "subscribe": self.topic,
        }
        return {name: value for name, value in (fields | changes).items() if value is not None}

    def stream(self, **changes: Any) -> DataFrame:
        return self.spark.readStream.format("fencepost").options(**self.options(**changes)).load()

    def table(self) -> DataFrame:
        return self.spark.read.format("fencepost").options(**self.options()).load()

    def sink(self, **changes: Any) -> Any:
        from fencepost.spark import TransactionalSink

        return TransactionalSink(self.bootstrap, **{"transactional_id": self.topic} | changes)

    def run(self, rows: DataFrame, sink: Callable[[Any, int], None]) -> str | None:
        """Runs to the end of the topic; returns the reason if the query failed."""
        writer = rows.writeStream.foreachBatch(sink).trigger(availableNow=True)
        return finish(writer.option("checkpointLocation", self.checkpoint).start())

    def run_format(self, rows: DataFrame, target: str | None = None, **options: Any) -> str | None:
        from fencepost.spark import route

        writer = (
            route(rows, self.bootstrap, topic=target)
            .writeStream.format("fencepost")
            .option("kafka.bootstrap.servers", self.bootstrap)
            .option("transactionalId", self.topic)
            .option("checkpointLocation", self.checkpoint)
        )
        return finish(writer.options(**options).trigger(availableNow=True).start())

    def write(self, rows: DataFrame, topic: str | None = None, **options: Any) -> None:
        from fencepost.spark import route

        writer = route(rows, self.bootstrap, topic=topic).write.format("fencepost").mode("append")
        writer.option("kafka.bootstrap.servers", self.bootstrap).options(**options).save()


@pytest.fixture
def loops(
    spark: SparkSession,
    bootstrap: str,
    cluster: Cluster,
    tmp_path: Path,
    new_topic: Callable[..., str],
) -> Loops:
    found = Loops(spark, bootstrap, tmp_path, new_topic(1, "loop"))
    fill(cluster, found.topic)
    return found


def refusal(failure: str | None, topic: str) -> str:
    assert failure is not None
    assert f"topic {topic!r}, which this query reads" in failure
    return failure


def test_the_sink_refuses_rows_whose_topic_column_is_that_of_the_source(
    loops: Loops, cluster: Cluster
) -> None:
    failure = refusal(loops.run(loops.stream(), loops.sink()), loops.topic)
    assert "may_write_to_sources=True" in failure
    assert read_values(cluster, loops.topic) == VALUES
    assert loops.run(loops.stream(), loops.sink(may_write_to_sources=True)) is None
    assert len(read_values(cluster, loops.topic)) > len(VALUES)


def test_the_sink_refuses_a_source_as_its_topic_and_as_one_of_several(
    loops: Loops, cluster: Cluster, new_topic: Callable[..., str]
) -> None:
    steps: list[str] = []
    sink = loops.sink(topic=loops.topic, on_step=lambda step, _: steps.append(step))
    refusal(loops.run(loops.stream(), sink), loops.topic)
    assert steps == [], "refused before the id was fenced"
    other, sink = new_topic(), loops.sink()

    def write(df: Any, batch_id: int) -> None:
        sink.write({other: df.select("value"), loops.topic: df.select("value")}, batch_id)

    refusal(loops.run(loops.stream(), write), loops.topic)
    assert read_values(cluster, other) == []
    assert read_values(cluster, loops.topic) == VALUES


@pytest.mark.parametrize("subscription", ["pattern", "assign", "union with files"])
def test_every_form_of_subscription_is_known_to_the_sink(
    loops: Loops, cluster: Cluster, tmp_path: Path, subscription: str
) -> None:
    read = {
        "pattern": {"subscribe": None, "subscribePattern": f"{loops.topic}$"},
        "assign": {"subscribe": None, "assign": f'{{"{loops.topic}": [0]}}'},
    }.get(subscription, {})
    rows = loops.stream(**read).select("value", "topic")
    if subscription == "union with files":
        (tmp_path / "files").mkdir()
        files = loops.spark.readStream.text(str(tmp_path / "files"))
        rows = rows.unionByName(files.selectExpr("CAST(value AS BINARY) AS value", "'x' AS topic"))
    refusal(loops.run(rows, loops.sink()), loops.topic)
    assert read_values(cluster, loops.topic) == VALUES


def test_the_same_cluster_at_another_address_is_recognised(loops: Loops, cluster: Cluster) -> None:
    port = loops.bootstrap.rpartition(":")[2]
    rows = loops.stream(**{"kafka.bootstrap.servers": f"localhost:{port}"})
    refusal(loops.run(rows, loops.sink()), loops.topic)
    assert read_values(cluster, loops.topic) == VALUES


def test_the_topic_of_that_name_in_another_cluster_is_another_topic(
    loops: Loops, cluster: Cluster, own_broker: BrokerProcess
) -> None:
    with connect(own_broker.bootstrap_servers) as other:
        other.create_topics([NewTopic(loops.topic, 1, 1)])
        loops.bootstrap, source = own_broker.bootstrap_servers, loops.bootstrap
        rows = loops.stream(**{"kafka.bootstrap.servers": source})
        assert loops.run(rows, loops.sink()) is None
        assert read_values(other, loops.topic) == VALUES
        loops.checkpoint += "-format"
        assert loops.run_format(rows, transactionalId=f"{loops.topic}-format") is None
        assert read_values(other, loops.topic) == VALUES * 2
    assert read_values(cluster, loops.topic) == VALUES


def test_a_query_that_reads_its_own_ledger_is_refused(
    loops: Loops, new_topic: Callable[..., str]
) -> None:
    out = new_topic()
    ledger = f"{out}-ledger"
    assert loops.run(loops.stream(), loops.sink(topic=out, ledger_topic=ledger)) is None
    loops.checkpoint += "-second"
    rows = loops.stream(subscribe=None, subscribePattern=f"({loops.topic}|{ledger})$")
    sink = loops.sink(topic=out, ledger_topic=ledger, transactional_id=f"{out}-second")
    failure = failed(loops.run(rows, sink))
    assert f"this query reads topic {ledger!r}, which holds its ledger" in failure


def test_the_stream_format_refuses_rows_for_a_topic_that_the_query_reads(
    loops: Loops, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        # As on Spark Connect, where the plan cannot be seen, and the checkpoint tells.
        patch.setattr("fencepost.spark.doors.route.loop_metadata", lambda *_: {})
        refusal(loops.run_format(loops.stream()), loops.topic)
    failure = refusal(loops.run_format(loops.stream()), loops.topic)
    assert "mayWriteToSources=true" in failure
    refusal(loops.run_format(loops.stream(), loops.topic, topic=loops.topic), loops.topic)
    assert read_values(cluster, loops.topic) == VALUES
    assert loops.run_format(loops.stream(), mayWriteToSources="true") is None
    assert len(read_values(cluster, loops.topic)) > len(VALUES)


def test_where_spark_does_not_show_the_plan_the_offsets_tell(
    loops: Loops, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PLAN, "running", "noSuchPlan")
    monkeypatch.setattr(PLAN, "analyzed", "noSuchPlan")
    refusal(loops.run(loops.stream(), loops.sink()), loops.topic)
    refusal(loops.run_format(loops.stream()), loops.topic)
    assert read_values(cluster, loops.topic) == VALUES


def test_a_batch_write_refuses_rows_for_a_topic_that_it_reads(
    loops: Loops, cluster: Cluster, new_topic: Callable[..., str]
) -> None:
    with pytest.raises(Exception, match="which this query reads"):
        loops.write(loops.table())
    with pytest.raises(Exception, match="which this query reads"):
        loops.write(loops.table().select("value"), loops.topic)
    assert read_values(cluster, loops.topic) == VALUES
    loops.write(loops.table(), mayWriteToSources="true")
    assert read_values(cluster, loops.topic) == VALUES * 2
    other = new_topic(1)
    loops.write(loops.table(), other)
    assert read_values(cluster, other) == VALUES * 2
