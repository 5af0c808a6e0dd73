"""The sink without a transaction, local mode: what it writes, refuses and leaves alone."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fencepost.base.failures import ConfigError
from fencepost.base.ids import TopicPartition
from fencepost.client.admin import NewTopic
from fencepost.client.blocking import Cluster, connect
from fencepost.client.partitioner import partition_for_key
from fencepost.spark.sink.ledger.decision import Verdict
from fencepost.spark.sink.sink import TransactionalSink
from fencepost.testing.embedded import Broker
from tests.spark.conftest import on_spark, read_values
from tests.spark.pipeline import Pipeline, numbered

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = on_spark()


@pytest.fixture(scope="module")
def fresh_cluster() -> Iterator[Cluster]:
    """A broker that has seen no transaction."""
    with Broker() as broker, connect(broker.bootstrap_servers) as cluster:
        yield cluster


@pytest.fixture
def unfenced(
    spark: SparkSession, fresh_cluster: Cluster, tmp_path: Path, request: pytest.FixtureRequest
) -> Pipeline:
    topic = request.node.name[:60].replace("[", "-").replace("]", "")
    fresh_cluster.create_topics([NewTopic(topic, 3, 1)])
    servers = ",".join(map(str, fresh_cluster.options.bootstrap))
    return Pipeline(spark, servers, tmp_path, topic)


def plain_sink(pipeline: Pipeline, **changes: Any) -> TransactionalSink:
    fields: dict[str, Any] = {"topic": pipeline.topic, "guarantee": "at-least-once"}
    return TransactionalSink(pipeline.bootstrap, **fields | changes)


def test_all_rows_are_written_without_a_transaction_and_without_a_ledger(
    unfenced: Pipeline, fresh_cluster: Cluster
) -> None:
    unfenced.add(numbered(0, 2_000), numbered(1), numbered(2, 1))
    sink = plain_sink(unfenced)
    assert unfenced.run(sink) is None
    written = numbered(0, 2_000) + numbered(1) + numbered(2, 1)
    assert sorted(read_values(fresh_cluster, unfenced.topic)) == sorted(written)
    for partition in range(3):
        place = TopicPartition(unfenced.topic, partition)
        for record in fresh_cluster.records(place):
            assert record.key is not None
            assert partition_for_key(record.key, 3) == partition
        batches = fresh_cluster.fetch({place: 0})[place].batches
        assert not any(batch.is_transactional for batch in batches)
        assert all(batch.producer_id >= 0 for batch in batches)
    assert fresh_cluster.list_transactions() == []
    internal = {"__transaction_state", "__consumer_offsets", "fencepost-ledger"}
    assert not internal & fresh_cluster.metadata().topics.keys()
    receipts = sink.receipts
    assert [(one.batch_id, one.rows, one.attempts) for one in receipts] == [
        (0, 2_000, 1),
        (1, 40, 1),
        (2, 1, 1),
    ]
    assert receipts[-1] is sink.last_receipt
    assert {one.verdict for one in receipts} == {Verdict.WRITE}
    assert sum(one.records for one in receipts[0].partitions.values()) == 2_000


def test_every_task_writes_its_own_rows_in_their_order(
    unfenced: Pipeline, fresh_cluster: Cluster
) -> None:
    def in_three_tasks(lines: DataFrame) -> DataFrame:
        placed = lines.selectExpr("value", "0 AS partition")
        return placed.repartitionByRange(3, "value").sortWithinPartitions("value")

    unfenced.add([f"{n:04}" for n in range(600)])
    assert unfenced.run(_reshaped(plain_sink(unfenced), in_three_tasks)) is None
    place = TopicPartition(unfenced.topic, 0)
    batches = fresh_cluster.fetch({place: 0})[place].batches
    by_producer: dict[tuple[int, int], list[str]] = {}
    records = iter(fresh_cluster.records(place))
    for batch in batches:
        values = by_producer.setdefault((batch.producer_id, batch.producer_epoch), [])
        values += [(next(records).value or b"").decode() for _ in range(batch.record_count)]
    assert len(by_producer) == 3
    assert all(values == sorted(values) for values in by_producer.values())
    assert sorted(chain(*by_producer.values())) == [f"{n:04}" for n in range(600)]


def _reshaped(sink: TransactionalSink, shape: Any) -> Any:
    return lambda df, batch_id: sink(shape(df), batch_id)


def test_a_batch_may_be_written_in_several_calls_and_counts_its_input_once(
    unfenced: Pipeline, fresh_cluster: Cluster
) -> None:
    sink = plain_sink(unfenced)

    def write_twice(df: DataFrame, batch_id: int) -> None:
        sink(df.where("key LIKE '%1'"), batch_id)
        sink.write({unfenced.topic: df.where("NOT key LIKE '%1'")}, batch_id)
        sink.skip(batch_id)

    unfenced.add(numbered(0), numbered(1))
    query = unfenced.start(write_twice)
    query.awaitTermination(120)
    assert query.exception() is None
    assert sorted(read_values(fresh_cluster, unfenced.topic)) == sorted(numbered(0) + numbered(1))
    assert [one.rows for one in sink.receipts] == [4, 36, 4, 36]
    assert [progress.numInputRows for progress in query.recentProgress] == [40, 40]


def test_a_job_that_fails_altogether_is_repeated_by_the_sink_and_then_stops_the_query(
    unfenced: Pipeline, fresh_cluster: Cluster
) -> None:
    """A row that no task can compute: nothing is reported as written that is not."""
    unfenced.add(numbered(0), numbered(1))
    steps: list[str] = []
    sink = plain_sink(unfenced, max_attempts=2, on_step=lambda step, _: steps.append(step))

    def shape(lines: DataFrame) -> DataFrame:
        wrong = "IF(value = '1-7', raise_error('row 1-7 is wrong'), value)"
        return lines.selectExpr("value AS key", f"{wrong} AS value")

    failure = unfenced.run(sink, shape)
    assert failure is not None
    assert "row 1-7 is wrong" in failure
    assert steps == ["writing", "written", "ended", "writing"]
    assert len(sink.receipts) == 1
    assert unfenced.run(plain_sink(unfenced)) is None
    found = read_values(fresh_cluster, unfenced.topic)
    assert set(found) == set(numbered(0) + numbered(1))


def test_a_refused_row_stops_the_query_and_the_message_does_not_promise_too_much(
    unfenced: Pipeline,
) -> None:
    unfenced.add(numbered(0))
    failure = unfenced.run(
        plain_sink(unfenced), lambda lines: lines.selectExpr("value", "7 AS partition")
    )
    assert failure is not None
    assert "wants partition 7" in failure
    assert "Rows of the batch may be in the topics" in failure
    assert "Nothing of" not in failure


def test_batches_that_are_too_large_for_the_topic_are_written_in_smaller_ones(
    unfenced: Pipeline, fresh_cluster: Cluster
) -> None:
    name = f"{unfenced.topic}-small"
    fresh_cluster.create_topics([NewTopic(name, 1, 1, {"max.message.bytes": "2000"})])
    unfenced.add(numbered(0, 300))
    sink = plain_sink(unfenced, topic=None)
    assert unfenced.run(sink, lambda lines: lines.selectExpr("value", f"'{name}' AS topic")) is None
    assert set(read_values(fresh_cluster, name)) == set(numbered(0, 300))
    assert sink.last_receipt is not None
    assert sink.last_receipt.retries >= 1


def test_a_query_that_becomes_exactly_once_is_adopted_once(
    pipeline: Pipeline, cluster: Cluster
) -> None:
    pipeline.add(numbered(0))
    assert pipeline.run(plain_sink(pipeline)) is None
    pipeline.add(numbered(1))
    refusal = pipeline.run(pipeline.sink())
    assert refusal is not None
    assert "adopt=True" in refusal
    assert pipeline.run(pipeline.sink(adopt=True)) is None
    pipeline.add(numbered(2))
    assert pipeline.run(pipeline.sink()) is None
    written = numbered(0) + numbered(1) + numbered(2)
    assert sorted(read_values(cluster, pipeline.topic)) == sorted(written)


def test_a_pickled_sink_writes_on(unfenced: Pipeline, fresh_cluster: Cluster) -> None:
    unfenced.add(numbered(0))
    sink = pickle.loads(pickle.dumps(plain_sink(unfenced)))
    assert unfenced.run(sink) is None
    assert sorted(read_values(fresh_cluster, unfenced.topic)) == sorted(numbered(0))
    assert pickle.loads(pickle.dumps(sink)).receipts == ()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("transactional_id", "mine"),
        ("ledger_topic", "elsewhere"),
        ("adopt", True),
        ("take_over", "another query"),
        ("allow_empty_state", True),
        ("may_skip", True),
        ("commit_source_offsets", True),
        ("preserve_partitioning", True),
    ],
)
def test_arguments_without_effect_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{name} cannot be set with guarantee='at-least-once'"):
        TransactionalSink("localhost:1", guarantee="at-least-once", **{name: value})


def test_a_transaction_timeout_and_an_unknown_guarantee_are_refused() -> None:
    options = {"kafka.transaction.timeout.ms": 1_000}
    with pytest.raises(ConfigError, match="there is no transaction"):
        TransactionalSink("localhost:1", guarantee="at-least-once", options=options)
    with pytest.raises(ConfigError, match="at-least-once"):
        TransactionalSink("localhost:1", guarantee="at_least_once")
    with pytest.raises(ConfigError, match="transactional_id must be a name"):
        TransactionalSink("localhost:1", topic="out")
