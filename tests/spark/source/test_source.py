"""The source in Spark, in local mode."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from fencepost.base.ids import TopicPartition
from fencepost.client.admin import NewTopic
from fencepost.client.blocking import Cluster
from fencepost.client.reading import LATEST
from fencepost.records.opened import Record
from fencepost.spark.doors.foreach_batch import TransactionalSink
from fencepost.spark.sentences import reason_in, reason_of
from tests.spark.chaos import await_truth
from tests.spark.conftest import on_spark, read_values
from tests.spark.pipeline import failed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from fencepost.client.transactions import ProducerIdentity

pytestmark = on_spark()


def write(
    cluster: Cluster, topic: str, values: list[str], partition: int = 0, **ending: bool
) -> ProducerIdentity:
    """Writes values in one transaction, which commits by default."""
    identity = cluster.init_producer_id(f"writer-{topic}-{partition}")
    with cluster.writer(identity) as writer:
        records = [Record(key=b"k", value=v.encode(), headers=(("h", b"1"),)) for v in values]
        writer.write_records(TopicPartition(topic, partition), records)
        writer.flush()
    if ending.get("ended", True):
        cluster.end_txn(identity, commit=ending.get("commit", True))
    return identity


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
    with pytest.raises(Exception, match="did you mean startingOffsets") as wrong:
        read(new_topic(), startingOffset="earliest")
    assert "Traceback" not in str(wrong.value)


def test_a_missing_topic_is_one_sentence_at_the_top_and_can_be_created(
    spark: SparkSession, bootstrap: str, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = f"{new_topic()}-missing"
    options = {
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": topic,
        "startingOffsets": "earliest",
    }
    sentence = f"topic '{topic}' does not exist at {bootstrap}: create it"
    with pytest.raises(Exception, match="PYTHON_DATA_SOURCE_ERROR") as batch:
        spark.read.format("fencepost").options(**options).load().count()
    assert sentence in str(batch.value).splitlines()[0]
    with pytest.raises(Exception, match="STREAM_FAILED") as stream:
        drain(spark.readStream.format("fencepost").options(**options).load(), tmp_path)
    assert sentence in str(stream.value).splitlines()[0]
    created = spark.read.format("fencepost").options(**options, createTopics="4").load()
    assert created.count() == 0
    assert spark.read.format("fencepost").options(**options).load().count() == 0


def test_brokers_that_are_not_there_are_one_sentence() -> None:
    from fencepost.spark.failures import BrokersUnreachable
    from fencepost.spark.source.options import read_source_options
    from fencepost.spark.source.stream_reader import StreamReader

    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = "{}:{}".format(*closed.getsockname())
    options = {
        "kafka.bootstrap.servers": address,
        "subscribe": "t",
        "kafka.default.api.timeout.ms": "300",
    }
    with pytest.raises(BrokersUnreachable, match=f"^the cluster at {address} does not answer: "):
        StreamReader(read_source_options(options, streaming=True)).initialOffset()


@pytest.mark.parametrize("schema", ["value string", "value binary, key binary"])
def test_a_user_defined_schema_is_refused(
    spark: SparkSession, bootstrap: str, new_topic: Callable[..., str], tmp_path: Path, schema: str
) -> None:
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": new_topic(1)}
    batch, stream = (
        reader.format("fencepost").options(**options, columns="key,value").schema(schema).load()
        for reader in (spark.read, spark.readStream)
    )
    with pytest.raises(Exception, match="has a fixed schema"):
        batch.collect()
    with pytest.raises(Exception, match="has a fixed schema"):
        drain(stream, tmp_path)


def drain(rows: DataFrame, folder: Path, into: str = "noop") -> None:
    query = rows.writeStream.format(into).option("checkpointLocation", str(folder / "checkpoint"))
    query.trigger(availableNow=True).start().awaitTermination()


class SourceCopyQuery:
    """A query from one topic to another, with the source's offsets in the transaction."""

    def __init__(
        self, spark: SparkSession, bootstrap: str, folder: Path, source: str, target: str
    ) -> None:
        self.spark, self.bootstrap, self.folder = spark, bootstrap, folder
        self.source, self.target = source, target
        self.checkpoint = folder / "checkpoint"
        self.batches: list[int] = []

    def run(
        self,
        sink: Callable[[DataFrame, int], None] | None = None,
        on_step: Callable[[str, int], None] | None = None,
        **options: Any,
    ) -> str | None:
        write_to = sink or TransactionalSink(
            self.bootstrap,
            transactional_id=self.target,
            topic=self.target,
            commit_source_offsets=True,
            on_step=on_step,
        )

        def watch(df: DataFrame, batch_id: int) -> None:
            write_to(df, batch_id)
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
        # The reason is read below.
        with contextlib.suppress(Exception):
            query.awaitTermination(120)
        failure = query.exception()
        query.stop()
        return None if failure is None else str(failure)


@pytest.fixture
def copy(
    spark: SparkSession, bootstrap: str, tmp_path: Path, new_topic: Callable[..., str]
) -> SourceCopyQuery:
    return SourceCopyQuery(spark, bootstrap, tmp_path, new_topic(2, "in"), new_topic(2, "out"))


def test_a_stream_is_read_in_limited_batches_and_continues_from_its_checkpoint(
    copy: SourceCopyQuery, cluster: Cluster
) -> None:
    write(cluster, copy.source, [str(n) for n in range(30)])
    assert copy.run(startingOffsets="earliest", maxOffsetsPerTrigger="10") is None
    assert len(copy.batches) > 2
    write(cluster, copy.source, ["more"], partition=1)
    assert copy.run(startingOffsets="earliest") is None
    assert sorted(read_values(cluster, copy.target)) == sorted([*map(str, range(30)), "more"])


def test_the_first_batch_is_repeated_from_its_original_start(
    copy: SourceCopyQuery, cluster: Cluster
) -> None:
    """With startingOffsets=latest, the start has moved when Spark requests it again."""
    write(cluster, copy.source, ["before"])

    def die(step: str, batch_id: int) -> None:
        if step == "fencing":
            write(cluster, copy.source, ["meanwhile"])
            raise RuntimeError("died")

    failed(copy.run(on_step=die))
    write(cluster, copy.source, ["after"])
    assert copy.run() is None
    assert sorted(read_values(cluster, copy.target)) == ["after", "meanwhile"]


def test_after_a_lost_checkpoint_a_query_continues_from_the_committed_offsets(
    copy: SourceCopyQuery, cluster: Cluster
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


def test_records_hidden_by_an_open_transaction_are_read_by_the_run_after_its_end(
    copy: SourceCopyQuery, cluster: Cluster
) -> None:
    write(cluster, copy.source, ["a"])
    identity = write(cluster, copy.source, ["b"], ended=False)
    write(cluster, copy.source, ["c"], partition=1)
    assert copy.run(startingOffsets="earliest") is None
    assert sorted(read_values(cluster, copy.target)) == ["a", "c"]
    cluster.end_txn(identity, commit=True)
    assert copy.run(startingOffsets="earliest") is None
    assert sorted(read_values(cluster, copy.target)) == ["a", "b", "c"]


def test_with_whole_transactions_no_batch_has_a_part_of_one(
    copy: SourceCopyQuery, cluster: Cluster, bootstrap: str
) -> None:
    """Three producers with compression, whose transactions overlap; a limit of five offsets."""
    producers = {name: transactional(bootstrap, f"{copy.source}-{name}") for name in "abc"}
    steps = "a1 b1 a1 a. b1 b. c1 c1 a2 c. a2 a- b2 b."
    for step in steps.split():
        producer = producers[step[0]]
        if step[1] in "-.":
            producer.abort_transaction() if step[1] == "-" else producer.commit_transaction()
            producer.begin_transaction()
            continue
        for number in range(3):
            producer.produce(copy.source, f"{step}:{number}", partition=0)
        producer.flush()
    seen: dict[int, list[str]] = {}

    def note(df: DataFrame, batch_id: int) -> None:
        seen[batch_id] = [value.split(":")[0] for value in values_of(df)]

    options: dict[str, Any] = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "5"}
    assert copy.run(note, wholeTransactions="true", **options) is None
    assert len(seen) > 2
    counts = sorted(pair for names in seen.values() for pair in Counter(names).items())
    assert counts == [("a1", 6), ("b1", 6), ("b2", 3), ("c1", 6)], "each in one batch"


def transactional(bootstrap: str, name: str) -> confluent_kafka.Producer:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": name, "compression.type": "zstd"}
    )
    producer.init_transactions()
    producer.begin_transaction()
    return producer


def test_a_blocked_query_names_the_transaction_that_blocks_it(
    cluster: Cluster,
    bootstrap: str,
    new_topic: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    from fencepost.spark.source import open_transaction_watch
    from fencepost.spark.source.options import read_source_options
    from fencepost.spark.source.stream_reader import StreamReader

    monkeypatch.setattr(open_transaction_watch, "PATIENCE_SECONDS", 0.0)
    topic = new_topic(2)
    identity = write(cluster, topic, ["open"], ended=False)
    options = {
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": topic,
        "startingOffsets": "earliest",
    }
    source = StreamReader(read_source_options(options, streaming=True))
    start = source.initialOffset()
    source.latestOffset(start, ReadAllAvailable())
    assert (
        f"{topic}-0: 1 offset waits behind an open transaction of transactional id "
        f"'writer-{topic}-0', producer "
        f"{identity.producer_id} (epoch {identity.producer_epoch}) with a timeout of 60 s, open "
        "since offset 0"
    ) in caplog.text
    cluster.end_txn(identity, commit=True)
    # Apache Kafka answers before the marker is written.
    place = TopicPartition(topic, 0)
    await_truth(
        lambda: cluster.list_offsets({place: LATEST}, isolation="read_committed")[place].offset > 0
    )
    caplog.clear()
    monkeypatch.setattr(open_transaction_watch, "REPEAT_SECONDS", 0.0)
    StreamReader(read_source_options(options, streaming=True)).latestOffset(
        start, ReadAllAvailable()
    )
    assert caplog.text == ""


class Live:
    """A query that runs until the test ends, and what it has read so far."""

    def __init__(self, df: DataFrame, checkpoint: Path) -> None:
        self.values: list[str] = []

        def note(batch: DataFrame, batch_id: int) -> None:
            self.values += values_of(batch)

        self.query = (
            df.writeStream.foreachBatch(note)
            .option("checkpointLocation", str(checkpoint))
            .trigger(processingTime="100 milliseconds")
            .start()
        )

    def read(self) -> list[str]:
        """All rows so far."""
        self.query.processAllAvailable()
        return sorted(self.values)


def test_new_partitions_and_topics_are_noticed_while_a_query_runs(
    spark: SparkSession,
    bootstrap: str,
    cluster: Cluster,
    tmp_path: Path,
    new_topic: Callable[..., str],
) -> None:
    topic = new_topic(1, "growing")
    options = {
        "kafka.bootstrap.servers": bootstrap,
        "subscribePattern": f"{topic}.*",
        "startingOffsets": "earliest",
    }
    live = Live(spark.readStream.format("fencepost").options(**options).load(), tmp_path)
    try:
        write(cluster, topic, ["first"])
        assert live.read() == ["first"]
        enlarge(bootstrap, topic, 2)
        write(cluster, topic, ["of a new partition"], partition=1)
        assert live.read() == ["first", "of a new partition"]
        cluster.create_topics([NewTopic(f"{topic}-more", 1, 1)])
        write(cluster, f"{topic}-more", ["of a new topic"])
        assert live.read() == ["first", "of a new partition", "of a new topic"]
    finally:
        live.query.stop()


def enlarge(bootstrap: str, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for done in admin.create_partitions([NewPartitions(topic, partitions)]).values():
        done.result(30)


def delete_before(bootstrap: str, topic: str, offset: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    place = confluent_kafka.TopicPartition(topic, 0, offset)
    for done in admin.delete_records([place]).values():
        done.result(30)


def test_records_deleted_before_they_are_read_are_data_loss_by_default(
    copy: SourceCopyQuery, bootstrap: str, cluster: Cluster
) -> None:
    write(cluster, copy.source, ["read"])
    assert copy.run(startingOffsets="earliest") is None
    write(cluster, copy.source, ["lost", "left"])
    delete_before(bootstrap, copy.source, 3)
    steps: list[str] = []
    failure = failed(
        copy.run(startingOffsets="earliest", on_step=lambda step, _: steps.append(step))
    )
    assert reason_in(failure).startswith(
        f"{copy.source}-0 is to be read from offset 2, and its log begins at 3. Some data may have "
        "been lost"
    )
    assert steps == [], "refused before any job ran, and so without another attempt"
    assert copy.run(failOnDataLoss="false") is None
    assert sorted(read_values(cluster, copy.target)) == ["left", "read"]


def test_records_that_a_table_lacks_are_one_sentence_before_any_task_runs(
    read: Callable[..., DataFrame], bootstrap: str, cluster: Cluster, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(1)
    write(cluster, topic, ["lost", "left"])
    delete_before(bootstrap, topic, 1)
    wanted = f'{{"{topic}": {{"0": 0}}}}'
    with pytest.raises(Exception, match="Some data") as failed:
        read(topic, startingOffsets=wanted).count()
    assert "Failed to generate Python data source read partitions" in str(failed.value)
    assert reason_of(failed.value).startswith(
        f"{topic}-0 is to be read from offset 0, and its log begins at 1. "
    )
    assert read(topic, startingOffsets=wanted, failOnDataLoss="false").count() == 1


def test_a_topic_deleted_before_its_offsets_are_committed_does_not_end_the_query(
    copy: SourceCopyQuery, cluster: Cluster, new_topic: Callable[..., str]
) -> None:
    """The checkpoint has it in the offsets of the batch, so every retry would find it again."""
    left, copy.source = copy.source, f"{copy.source},{(other := new_topic(1))}"
    write(cluster, left, ["a"])
    write(cluster, other, ["b"])

    def delete(step: str, batch_id: int) -> None:
        if step == "written" and other in cluster.metadata().topics:
            cluster.delete_topics([other])

    assert copy.run(on_step=delete, startingOffsets="earliest", failOnDataLoss="false") is None
    assert sorted(read_values(cluster, copy.target)) == ["a", "b"]
    write(cluster, left, ["c"])
    assert copy.run(failOnDataLoss="false") is None
    assert sorted(read_values(cluster, copy.target)) == ["a", "b", "c"]


def test_secrets_are_not_in_the_plan(
    read: Callable[..., DataFrame], new_topic: Callable[..., str]
) -> None:
    secrets = {
        "kafka.sasl.password": "hush-password",
        "kafka.sasl.jaas.config": 'x required username="u" password="hush-jaas";',
        "kafka.ssl.key.password": "hush-key",
    }
    df: Any = read(new_topic(1), **secrets)
    plan = df._jdf.queryExecution().toString()
    assert "fencepost" in plan
    assert "hush" not in plan
