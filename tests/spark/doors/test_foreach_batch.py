"""The sink in a real Spark, local mode."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fencepost.base.ids import TopicPartition, topic_id_text
from fencepost.client.admin import NewTopic
from fencepost.client.blocking import Cluster, connect
from fencepost.client.failures import ProducerFenced
from fencepost.client.partitioner import partition_for_key
from fencepost.records.opened import Record
from fencepost.spark.doors.foreach_batch import TransactionalSink
from fencepost.spark.ledger.entry import group_of
from fencepost.spark.ledger.reader import read_ledger_view
from fencepost.spark.ledger.topic import LEDGER_TOPIC, partition_of
from fencepost.testing.embedded import Broker
from fencepost.wire.apis import ApiKey
from tests.spark import chaos
from tests.spark.conftest import BrokerProcess, on_spark, read_values
from tests.spark.pipeline import Pipeline, failed, finish, numbered
from tests.spark.ways.watching import close_ways
from tools.processes import free_port

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from fencepost.broker.node import Node

pytestmark = on_spark()


class Crash(Exception):  # noqa: N818
    """Raised by a test where a driver would die."""


def crash_at(step: str, batch_id: int) -> Callable[[str, int], None]:
    def on_step(reached: str, number: int) -> None:
        if (reached, number) == (step, batch_id):
            raise Crash(f"died at {step!r}")

    return on_step


def test_every_row_is_written_once_to_the_partition_of_its_key(
    pipeline: Pipeline, cluster: Cluster
) -> None:
    pipeline.add(numbered(0))
    pipeline.add(numbered(1))
    sink = pipeline.sink()
    assert pipeline.run(sink) is None
    assert sorted(read_values(cluster, pipeline.topic)) == sorted(numbered(0) + numbered(1))
    for partition in range(3):
        for record in cluster.records(TopicPartition(pipeline.topic, partition)):
            assert record.key is not None
            assert partition_for_key(record.key, 3) == partition
    receipt = sink.last_receipt
    assert receipt is not None
    assert receipt.account is not None
    assert (receipt.batch_id, receipt.account.records) == (1, 40)
    view = read_ledger_view(cluster, sink.transactional_id)
    place = partition_of(sink.transactional_id, 16)
    assert view.place == TopicPartition(LEDGER_TOPIC, place)
    assert view.entry is not None
    assert (view.entry.batch_id, view.entry.is_stateful) == (1, False)


@pytest.mark.parametrize(
    ("version", "arrived"), [(2, True), (1, False)], ids=["tv2-arrived", "tv1-lost"]
)
def test_an_unknown_outcome_of_end_txn_is_resolved_from_the_ledger(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arrived: bool,
    version: int,
) -> None:
    """All answers to one EndTxn are lost; the request itself may have taken effect."""
    chaos.speak_by_name(monkeypatch)
    with Broker() as broker, connect(broker.bootstrap_servers) as cluster:
        cluster.create_topics([NewTopic("out", 3, 1)])
        pipeline = Pipeline(spark, broker.bootstrap_servers, tmp_path, "out", f"id-tv{version}")
        pipeline.add(numbered(0), numbered(1))
        steps: list[str] = []

        def cut(step: str, batch_id: int) -> None:
            steps.append(step)
            if (step, batch_id) == ("ending", 1) and steps.count("settling") == 0:
                broker.call(lambda node: _cut_every_answer(node, arrived))

        # Short: this is how long the client retries.
        options = {"kafka.default.api.timeout.ms": "2000"}
        assert pipeline.run(pipeline.sink(on_step=cut, options=options)) is None
        assert steps.count("settling") == 1
        assert steps.count("writing") == (2 if arrived else 3)
        assert sorted(read_values(cluster, "out")) == sorted(numbered(0) + numbered(1))


def test_an_unknown_outcome_does_not_fence_a_successor(spark: SparkSession, tmp_path: Path) -> None:
    with Broker() as broker, connect(broker.bootstrap_servers) as cluster:
        cluster.create_topics([NewTopic("out", 3, 1)])
        pipeline = Pipeline(spark, broker.bootstrap_servers, tmp_path, "out")
        pipeline.add(numbered(0))
        successors: list[Any] = []

        def succeed(step: str, batch_id: int) -> None:
            if step == "ending":
                broker.call(lambda node: node.faults.drop(ApiKey.END_TXN, effect=False))
                successors.append(cluster.init_producer_id(pipeline.transactional_id))

        failure = failed(pipeline.run(pipeline.sink(on_step=succeed)))
        assert "was taken over by another query" in failure
        # The successor still has the id.
        with cluster.writer(successors[0]) as writer:
            writer.write_records(TopicPartition("out", 0), [Record(value=b"successor")])
            writer.flush()
        cluster.end_txn(successors[0], commit=True)
        assert read_values(cluster, "out") == ["successor"]


def _cut_every_answer(node: Node, arrived: bool) -> None:
    """Drops all answers to EndTxn of the next epoch; the first takes effect, or none does."""
    epochs: list[int] = []

    def fits(request: Any) -> bool:
        epochs.append(request.producer_epoch)
        return bool(request.producer_epoch == epochs[0])

    node.faults.drop(ApiKey.END_TXN, effect=arrived, fits=fits)
    for _ in range(100):
        node.faults.drop(ApiKey.END_TXN, effect=False, fits=fits)


def test_a_hook_that_raises_leaves_no_transaction_open(
    pipeline: Pipeline, cluster: Cluster
) -> None:
    pipeline.add(numbered(0))
    sink = pipeline.sink(on_step=crash_at("ending", 0))
    assert "died at 'ending'" in (pipeline.run(sink) or "")
    state = cluster.describe_transactions([sink.transactional_id])[sink.transactional_id]
    assert state is not None
    assert state.state == "CompleteAbort"
    assert pipeline.run(pipeline.sink()) is None
    assert sorted(read_values(cluster, pipeline.topic)) == sorted(numbered(0))


def test_a_late_executor_cannot_write(pipeline: Pipeline, cluster: Cluster) -> None:
    pipeline.add(numbered(0))
    sink = pipeline.sink()
    borrowed: list[Any] = []

    def remember(df: DataFrame, batch_id: int) -> None:
        sink(df, batch_id)
        assert sink._run is not None
        borrowed.append(sink._run.producer.identity)

    assert pipeline.run(remember) is None
    pipeline.add(numbered(1))
    assert pipeline.run() is None
    with cluster.writer(borrowed[0]) as zombie:
        zombie.write_records(TopicPartition(pipeline.topic, 0), [Record(value=b"zombie")])
        with pytest.raises(ProducerFenced):
            zombie.flush()
    assert "zombie" not in read_values(cluster, pipeline.topic)


def test_a_new_checkpoint_is_refused_unless_it_is_adopted(
    pipeline: Pipeline, cluster: Cluster
) -> None:
    pipeline.add(numbered(0))
    assert pipeline.run() is None
    shutil.rmtree(pipeline.checkpoint)
    assert "either two queries use one id, or the checkpoint is new" in failed(pipeline.run())
    assert len(read_values(cluster, pipeline.topic)) == 40
    assert pipeline.run(pipeline.sink(adopt=True)) is None
    assert len(read_values(cluster, pipeline.topic)) == 80


def delete_ledger(pipeline: Pipeline, cluster: Cluster) -> None:
    cluster.delete_topics([ledger_of(pipeline)])


def ledger_of(pipeline: Pipeline) -> str:
    """A separate ledger topic, for a test that deletes it."""
    return f"{pipeline.topic}-ledger"


def test_a_ledger_deleted_while_the_query_is_stopped_is_noticed(
    pipeline: Pipeline, cluster: Cluster
) -> None:
    own = {"ledger_topic": ledger_of(pipeline)}
    pipeline.add(numbered(0))
    assert pipeline.run(pipeline.sink(**own)) is None
    delete_ledger(pipeline, cluster)
    pipeline.add(numbered(1))
    for _ in range(2):
        failure = failed(pipeline.run(pipeline.sink(**own)))
        assert "the cluster has no ledger of this transactional_id" in failure
        assert "adopt=True" in failure
    assert sorted(read_values(cluster, pipeline.topic)) == sorted(numbered(0))
    assert pipeline.run(pipeline.sink(adopt=True, **own)) is None
    assert sorted(read_values(cluster, pipeline.topic)) == sorted(numbered(0) + numbered(1))


def test_a_first_batch_is_not_rewritten_after_its_ledger_is_deleted(
    pipeline: Pipeline, cluster: Cluster
) -> None:
    """Spark repeats it, because the driver died before Spark logged its end."""
    own = {"ledger_topic": ledger_of(pipeline)}
    pipeline.add(numbered(0))
    assert pipeline.run(pipeline.sink(on_step=crash_at("ended", 0), **own)) is not None
    delete_ledger(pipeline, cluster)
    failure = failed(pipeline.run(pipeline.sink(**own)))
    assert "seen a committed transaction of this id, but has no ledger of it" in failure
    assert sorted(read_values(cluster, pipeline.topic)) == sorted(numbered(0))


def test_rows_for_the_ledger_topic_are_refused_and_never_visible(
    pipeline: Pipeline, cluster: Cluster
) -> None:
    pipeline.add(["x"])
    assert "which holds the ledger" in failed(
        pipeline.run(
            pipeline.sink(topic=None),
            lambda lines: lines.selectExpr("value AS key", "value", f"'{LEDGER_TOPIC}' AS topic"),
        )
    )
    assert read_ledger_view(cluster, "x", fenced=False).entry is None


def test_a_transaction_timeout_above_the_brokers_maximum_is_refused_by_name(
    pipeline: Pipeline,
) -> None:
    pipeline.add(numbered(0))
    failure = failed(
        pipeline.run(pipeline.sink(options={"kafka.transaction.timeout.ms": "99000000"}))
    )
    assert "lower kafka.transaction.timeout.ms of the sink, or raise transaction.max" in failure


def test_unreachable_brokers_are_named_and_nothing_is_lost(
    pipeline: Pipeline, cluster: Cluster
) -> None:
    pipeline.add(numbered(0))
    wrong = TransactionalSink(
        f"127.0.0.1:{free_port()}",
        transactional_id=pipeline.transactional_id,
        topic=pipeline.topic,
        options={"kafka.default.api.timeout.ms": "500"},
    )
    failure = failed(pipeline.run(wrong))
    assert f"the cluster at {wrong.settings.client.bootstrap[0]} does not answer" in failure
    assert "Start its brokers, or correct the first argument of the sink" in failure
    assert pipeline.run() is None
    assert sorted(read_values(cluster, pipeline.topic)) == sorted(numbered(0))


def test_nulls_are_tombstones(pipeline: Pipeline, cluster: Cluster) -> None:
    pipeline.add(["a", "b"])

    def shape(lines: DataFrame) -> DataFrame:
        return lines.selectExpr("value AS key", "if(value = 'a', value, NULL) AS value")

    assert pipeline.run(shape=shape) is None
    pipeline.add(["c"])
    assert (
        pipeline.run(shape=lambda lines: lines.selectExpr("value AS key", "NULL AS value")) is None
    )
    found = {
        record.key: record.value
        for partition in range(3)
        for record in cluster.records(TopicPartition(pipeline.topic, partition))
    }
    assert found == {b"a": b"a", b"b": None, b"c": None}


def test_several_topics_and_headers_share_one_transaction(
    pipeline: Pipeline, cluster: Cluster, new_topic: Callable[..., str]
) -> None:
    other = new_topic(2)
    pipeline.add(numbered(0, 20))

    def split(lines: DataFrame) -> DataFrame:
        return lines.selectExpr(
            f"if(value like '%5', '{other}', '{pipeline.topic}') AS topic",
            "value",
            "1 AS partition",
            "array(named_struct('key', 'h', 'value', cast(value AS binary))) AS headers",
        )

    sink = pipeline.sink(topic=None, options={"kafka.compression.type": "zstd"})
    assert pipeline.run(sink, split) is None
    assert sorted(read_values(cluster, other)) == ["0-15", "0-5"]
    records = list(cluster.records(TopicPartition(pipeline.topic, 1)))
    assert len(records) == 18
    assert all(record.headers == (("h", record.value),) for record in records)


BAD_ROWS = {
    "no column 'value'": ["value AS body"],
    "the column 'value' is decimal": ["1.5 AS value"],
    "the cluster has no topic 'nowhere'": ["value", "'nowhere' AS topic"],
    "key b'k' has no topic": ["value", "CAST(NULL AS string) AS topic", "'k' AS key"],
    "wants partition 9 of topic": ["value", "9 AS partition"],
    "wants partition -1 of topic": ["value", "-1 AS partition"],
    "the column 'partition' is string, and must be int": ["value", "'1' AS partition"],
    "the column 'headers' is string": ["value", "'x' AS headers"],
    "kafka.max.request.size allows": ["repeat(value, 1000000) AS value"],
}
"""What the message names, and the columns."""


def test_rows_that_cannot_be_written_fail_with_a_clear_message_and_write_nothing(
    pipeline: Pipeline, cluster: Cluster
) -> None:
    """One query has a sink for each kind, and fails with the message of the last."""
    pipeline.add(["good"])
    said: dict[str, str] = {}

    def write_each(rows: DataFrame, batch_id: int) -> None:
        for number, (named, expressions) in enumerate(BAD_ROWS.items()):
            sink = pipeline.sink(
                transactional_id=f"{pipeline.transactional_id}-{number}",
                topic=None if "topic" in str(expressions) else pipeline.topic,
            )
            try:
                sink(rows.selectExpr(*expressions), batch_id)
            except Exception as problem:
                said[named] = str(problem)
                if len(said) == len(BAD_ROWS):
                    raise

    failure = pipeline.run(write_each, lambda lines: lines)
    assert {named for named, words in said.items() if named in words} == BAD_ROWS.keys()
    assert failure is not None
    assert list(BAD_ROWS)[-1] in failure
    assert read_values(cluster, pipeline.topic) == []


@pytest.mark.parametrize(
    ("configs", "expressions", "named"),
    [
        (
            {"max.message.bytes": "2000"},
            ["repeat(value, 5000) AS value"],
            "bytes: it is larger than max.message.bytes of the topic, which is 2000",
        ),
        ({"cleanup.policy": "compact"}, ["value"], "-0: the topic does not accept these rows"),
    ],
)
def test_rows_refused_by_the_brokers_fail_the_query_with_a_clear_message_and_stay_invisible(
    pipeline: Pipeline,
    cluster: Cluster,
    configs: dict[str, str],
    expressions: list[str],
    named: str,
) -> None:
    strict = f"{pipeline.topic}-strict"
    cluster.create_topics([NewTopic(strict, 1, 1, configs=configs)])
    pipeline.add(["good"])
    failure = failed(
        pipeline.run(pipeline.sink(topic=strict), lambda lines: lines.selectExpr(*expressions))
    )
    assert strict in failure
    assert named in failure
    assert read_values(cluster, strict) == []


@pytest.mark.parametrize("may_ask", [True, False], ids=["asked", "learned"])
def test_batches_are_split_to_fit_max_message_bytes(
    pipeline: Pipeline, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, may_ask: bool
) -> None:
    """One query has a sink and a topic for each of the three routes."""
    from fencepost.spark.ways import limits

    if not may_ask:
        monkeypatch.setattr(limits, "_describe_limit", lambda *_: None)
    left_out = {"collected": [], "direct": ["collected"], "shuffled": ["collected", "direct"]}
    topics = {way: f"{pipeline.topic}-{way}" for way in left_out}
    configs = {"max.message.bytes": "3000"}
    cluster.create_topics([NewTopic(topic, 2, 1, configs=configs) for topic in topics.values()])
    pipeline.add(numbered(0), numbered(1, 400))
    sinks = {
        way: pipeline.sink(transactional_id=topic, topic=topic, max_attempts=1)
        for way, topic in topics.items()
    }

    def write_by_each_route(rows: DataFrame, batch_id: int) -> None:
        for way, sink in sinks.items():
            with pytest.MonkeyPatch.context() as patch:
                close_ways(patch.setattr, *left_out[way])
                sink(rows, batch_id)

    values = "repeat('v', 100) AS value"
    assert pipeline.run(write_by_each_route, lambda lines: lines.selectExpr(values)) is None
    for topic in topics.values():
        assert read_values(cluster, topic) == ["v" * 100] * 440


@pytest.mark.parametrize("version", [2, 1], ids=["tv2", "tv1"])
def test_a_job_that_fails_after_writing_is_aborted_and_retried(
    pipeline: Pipeline, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    chaos.speak_by_name(monkeypatch)
    pipeline.transactional_id += f"-tv{version}"
    marker = str(pipeline.folder / "failed-once")
    chaos.in_tasks(monkeypatch, chaos.FailOnce(marker))
    pipeline.add(numbered(0))
    assert pipeline.run() is None
    assert Path(marker).exists()
    assert sorted(read_values(cluster, pipeline.topic)) == sorted(numbered(0))


def test_large_batches_take_the_compiled_path_and_arrive_complete(
    pipeline: Pipeline, cluster: Cluster
) -> None:
    pipeline.add(["x"])

    def many(lines: DataFrame) -> DataFrame:
        return lines.selectExpr("explode(sequence(1, 50000)) AS n").selectExpr(
            "cast(n AS string) AS key", "cast(n AS string) AS value"
        )

    assert pipeline.run(pipeline.sink(options={"kafka.compression.type": "lz4"}), many) is None
    assert sorted(map(int, read_values(cluster, pipeline.topic))) == list(range(1, 50001))


def test_offsets_of_a_source_on_the_same_cluster_are_committed_in_the_transaction(
    copy: SinkCopyQuery, cluster: Cluster
) -> None:
    assert copy.run(copy.bootstrap) is None
    ends = {TopicPartition(copy.source, 0): 2, TopicPartition(copy.source, 1): 0}
    committed = cluster.offset_fetch(group_of(copy.target))
    assert {tp: value.offset for tp, value in committed.items()} == ends
    entry = read_ledger_view(cluster, copy.target).entry
    assert entry is not None
    assert (entry.sources, entry.sources_committed) == (ends, True)
    assert entry.topic_ids.keys() == {copy.source}
    assert read_values(cluster, copy.target) == ["a", "b"]


def test_offsets_of_a_source_on_another_cluster_are_not_committed(
    copy: SinkCopyQuery, cluster: Cluster, own_broker: BrokerProcess
) -> None:
    with connect(own_broker.bootstrap_servers) as other:
        other.create_topics([NewTopic(copy.target, 1, 1), NewTopic(copy.source, 2, 1)])
        failure = failed(copy.run(own_broker.bootstrap_servers, commit_source_offsets=True))
        assert "the query reads from cluster" in failure
        assert "Leave commit_source_offsets out" in failure
        assert copy.run(own_broker.bootstrap_servers) is None
        assert other.offset_fetch(group_of(copy.target)) == {}
        entry = read_ledger_view(other, copy.target).entry
        assert entry is not None
        view = cluster.metadata([copy.source]).topics[copy.source]
        assert entry.topic_ids == {copy.source: topic_id_text(view.topic_id)}
        assert read_values(other, copy.target) == ["a", "b"]


def test_commit_source_offsets_is_refused_for_a_file_source(pipeline: Pipeline) -> None:
    pipeline.add(["a"])
    failure = failed(pipeline.run(pipeline.sink(commit_source_offsets=True)))
    assert "reads something other than topics" in failure


class SinkCopyQuery:
    """A query from a topic of the shared broker to any cluster."""

    def __init__(self, spark: SparkSession, bootstrap: str, folder: Path, source: str) -> None:
        self.spark, self.bootstrap, self.folder = spark, bootstrap, folder
        self.source, self.target = source, f"{source}-copy"

    def run(self, sink_bootstrap: str, **changes: Any) -> str | None:
        sink = TransactionalSink(
            sink_bootstrap, transactional_id=self.target, topic=self.target, **changes
        )
        options = {"kafka.bootstrap.servers": self.bootstrap, "subscribe": self.source}
        return finish(
            self.spark.readStream.format("fencepost")
            .options(startingOffsets="earliest", **options)
            .load()
            .writeStream.foreachBatch(sink)
            .option("checkpointLocation", str(self.folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )


@pytest.fixture
def copy(
    spark: SparkSession,
    bootstrap: str,
    cluster: Cluster,
    tmp_path: Path,
    new_topic: Callable[..., str],
) -> SinkCopyQuery:
    found = SinkCopyQuery(spark, bootstrap, tmp_path, new_topic(2))
    cluster.create_topics([NewTopic(found.target, 1, 1)])
    with cluster.writer(cluster.init_producer_id(None)) as writer:
        records = [Record(value=b"a"), Record(value=b"b")]
        writer.write_records(TopicPartition(found.source, 0), records)
        writer.flush()
    return found
