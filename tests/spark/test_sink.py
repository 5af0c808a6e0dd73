"""The sink in a real Spark, local mode. A crash is an exception that nobody handles: the transaction stays open."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fencepost.base.ids import TopicPartition
from fencepost.client.blocking import Cluster
from fencepost.client.failures import ProducerFenced, UnknownOutcome
from fencepost.client.partitioner import partition_for_key
from fencepost.spark.ledger import Verdict, read_page
from fencepost.spark.sink import TransactionalSink
from tests.spark.conftest import read_values

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(180),
    # Spark's own business: sockets to its JVM that it closes late.
    pytest.mark.filterwarnings("default"),
]


class Crash(Exception):  # noqa: N818
    """What a test raises where a driver would die."""


class Pipeline:
    """Lines of files into a topic, one file per batch."""

    def __init__(self, spark: SparkSession, bootstrap: str, folder: Path, topic: str) -> None:
        self.spark = spark
        self.bootstrap = bootstrap
        self.folder = folder
        self.topic = topic
        self.transactional_id = topic
        self.checkpoint = folder / "checkpoint"
        self.sinks: list[TransactionalSink] = []
        self._files = 0
        (folder / "in").mkdir()

    def add(self, lines: list[str]) -> None:
        path = self.folder / f"part-{self._files:03}.txt"
        path.write_text("\n".join(lines))
        path.rename(self.folder / "in" / path.name)
        self._files += 1

    def sink(self, **changes: Any) -> TransactionalSink:
        fields: dict[str, Any] = {"transactional_id": self.transactional_id, "topic": self.topic}
        found = TransactionalSink(self.bootstrap, **fields | changes)
        self.sinks.append(found)
        return found

    def run(
        self,
        sink: Callable[[DataFrame, int], None] | None = None,
        shape: Callable[[DataFrame], DataFrame] | None = None,
        mode: str = "append",
    ) -> str | None:
        """Runs to the end of the files; the reason when the query failed."""
        lines = self.spark.readStream.option("maxFilesPerTrigger", 1).text(str(self.folder / "in"))
        rows = shape(lines) if shape else lines.selectExpr("value AS key", "value")
        query = (
            rows.writeStream.foreachBatch(sink or self.sink())
            .outputMode(mode)
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
def pipeline(
    spark: SparkSession, bootstrap: str, tmp_path: Path, new_topic: Callable[..., str]
) -> Pipeline:
    return Pipeline(spark, bootstrap, tmp_path, new_topic())


def crash_at(step: str, batch_id: int) -> Callable[[str, int], None]:
    def on_step(reached: str, number: int) -> None:
        if (reached, number) == (step, batch_id):
            raise Crash(f"died at {step!r}")

    return on_step


def numbered(batch: int, count: int = 40) -> list[str]:
    return [f"{batch}-{n}" for n in range(count)]


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
    page = read_page(cluster.offset_fetch(sink.group), "")
    assert page.place == TopicPartition(pipeline.topic, 0)
    assert page.entry is not None
    assert page.entry.batch_id == 1


@pytest.mark.parametrize(
    "step", ["fenced", "ledger read", "writing", "written", "entered", "ending", "ended"]
)
def test_a_driver_that_dies_at_any_step_loses_and_doubles_nothing(
    pipeline: Pipeline, cluster: Cluster, step: str
) -> None:
    pipeline.add(numbered(0))
    failure = pipeline.run(pipeline.sink(on_step=crash_at(step, 0)))
    assert failure is not None
    assert "died at" in failure
    pipeline.add(numbered(1))
    sink = pipeline.sink()
    verdicts: list[Verdict] = []

    def watch(df: DataFrame, batch_id: int) -> None:
        sink(df, batch_id)
        assert sink.last_receipt is not None
        verdicts.append(sink.last_receipt.verdict)

    assert pipeline.run(watch) is None
    assert verdicts == [Verdict.DRAIN if step == "ended" else Verdict.WRITE, Verdict.WRITE]
    assert sorted(read_values(cluster, pipeline.topic)) == sorted(numbered(0) + numbered(1))


@pytest.mark.parametrize("arrived", [True, False])
def test_a_lost_answer_to_end_txn_is_settled_by_asking(
    pipeline: Pipeline, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, arrived: bool
) -> None:
    pipeline.add(numbered(0))
    pipeline.add(numbered(1))
    genuine = Cluster.end_txn
    lost: list[object] = []

    def end_txn(self: Cluster, identity: Any, *, commit: bool) -> Any:
        if not commit or lost:
            return genuine(self, identity, commit=commit)
        lost.append(identity)
        if arrived:
            genuine(self, identity, commit=True)
        raise UnknownOutcome("the answer was lost")

    monkeypatch.setattr(Cluster, "end_txn", end_txn)
    assert pipeline.run() is None
    assert lost
    assert sorted(read_values(cluster, pipeline.topic)) == sorted(numbered(0) + numbered(1))


def test_a_stateful_query_that_repeats_a_batch_keeps_its_state(
    pipeline: Pipeline, cluster: Cluster
) -> None:
    def counted(lines: DataFrame) -> DataFrame:
        return (
            lines.groupBy("value")
            .count()
            .selectExpr("value AS key", "concat(value, '=', count) AS value")
        )

    pipeline.add(["x", "y", "x"])
    assert pipeline.run(pipeline.sink(on_step=crash_at("ended", 0)), counted, "update") is not None
    pipeline.add(["x"])
    assert pipeline.run(pipeline.sink(), counted, "update") is None
    assert sorted(read_values(cluster, pipeline.topic)) == ["x=2", "x=3", "y=1"]


def test_a_second_producer_with_the_same_id_stops_the_first(
    pipeline: Pipeline, cluster: Cluster
) -> None:
    pipeline.add(numbered(0))

    def take_over(step: str, batch_id: int) -> None:
        if step == "written":
            cluster.init_producer_id(pipeline.transactional_id)

    failure = pipeline.run(pipeline.sink(on_step=take_over))
    assert failure is not None
    assert "was taken over by another query" in failure
    assert read_values(cluster, pipeline.topic) == []


def test_an_executor_that_wakes_up_late_cannot_write(pipeline: Pipeline, cluster: Cluster) -> None:
    pipeline.add(numbered(0))
    sink = pipeline.sink()
    borrowed: list[Any] = []

    def remember(df: DataFrame, batch_id: int) -> None:
        sink(df, batch_id)
        assert sink._standing is not None
        borrowed.append(sink._standing.identity)

    assert pipeline.run(remember) is None
    pipeline.add(numbered(1))
    assert pipeline.run() is None
    from fencepost.records.opened import Record

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
    failure = pipeline.run()
    assert failure is not None
    assert "either two queries use one id, or the checkpoint is new" in failure
    assert len(read_values(cluster, pipeline.topic)) == 40
    assert pipeline.run(pipeline.sink(adopt=True)) is None
    assert len(read_values(cluster, pipeline.topic)) == 80


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


@pytest.mark.parametrize(
    ("expressions", "named"),
    [
        (["value AS body"], "no column 'value'"),
        (["1.5 AS value"], "the column 'value' is decimal"),
        (["value", "'nowhere' AS topic"], "the cluster has no topic 'nowhere'"),
        (["value", "9 AS partition"], "wants partition 9 of topic"),
        (["repeat(value, 1000000) AS value"], "kafka.max.request.size allows"),
    ],
)
def test_rows_that_cannot_be_written_fail_the_query_with_a_sentence_and_write_nothing(
    pipeline: Pipeline, cluster: Cluster, expressions: list[str], named: str
) -> None:
    pipeline.add(["good"])
    sink = pipeline.sink(topic=None if "topic" in str(expressions) else pipeline.topic)
    failure = pipeline.run(sink, lambda lines: lines.selectExpr(*expressions))
    assert failure is not None
    assert named in failure
    assert read_values(cluster, pipeline.topic) == []


def test_a_job_that_fails_after_writing_is_aborted_and_tried_again(
    pipeline: Pipeline, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark import cloudpickle

    from fencepost.spark import job

    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
    genuine = job._delivering_task
    marker = str(pipeline.folder / "failed-once")

    def failing(plan: Any) -> Any:
        deliver = genuine(plan)

        def run(batches: Any) -> Any:
            reports = list(deliver(batches))
            if not Path(marker).exists():
                Path(marker).touch()
                raise RuntimeError("the executor fails with everything written")
            return iter(reports)

        return run

    monkeypatch.setattr(job, "_delivering_task", failing)
    pipeline.add(numbered(0))
    assert pipeline.run() is None
    assert Path(marker).exists()
    assert sorted(read_values(cluster, pipeline.topic)) == sorted(numbered(0))


def test_large_batches_take_the_compiled_path_and_arrive_whole(
    pipeline: Pipeline, cluster: Cluster
) -> None:
    pipeline.add(["x"])

    def many(lines: DataFrame) -> DataFrame:
        return lines.selectExpr("explode(sequence(1, 50000)) AS n").selectExpr(
            "cast(n AS string) AS key", "cast(n AS string) AS value"
        )

    assert pipeline.run(pipeline.sink(options={"kafka.compression.type": "lz4"}), many) is None
    assert sorted(map(int, read_values(cluster, pipeline.topic))) == list(range(1, 50001))
