"""How functions passed to foreachBatch call the sink, correctly and incorrectly."""

from __future__ import annotations

import copy
import pickle
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fencepost.base.failures import ConfigError
from fencepost.client.blocking import Cluster
from fencepost.spark.doors.foreach_batch import TransactionalSink
from fencepost.spark.failures import SinkRefused
from fencepost.spark.ledger.rule import Verdict
from tests.spark import chaos
from tests.spark.conftest import on_spark, read_values
from tests.spark.pipeline import Pipeline, Sink, failed, numbered

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = on_spark()


def halves(df: DataFrame) -> tuple[DataFrame, DataFrame]:
    return df.where("value LIKE '%5'"), df.where("value NOT LIKE '%5'")


def test_a_second_call_for_a_batch_is_refused(pipeline: Pipeline, cluster: Cluster) -> None:
    pipeline.add(numbered(0))
    sink = pipeline.sink()

    def twice(df: DataFrame, batch_id: int) -> None:
        fives, rest = halves(df)
        sink(fives, batch_id)
        with pytest.raises(SinkRefused, match="holds only the first call's rows"):
            copy.deepcopy(sink)(rest, batch_id)
        for other in (pickle.loads(pickle.dumps(sink)), pipeline.sink()):
            with pytest.raises(SinkRefused, match="Do not catch the sink's exceptions"):
                other(rest, batch_id)
        sink(rest, batch_id)

    assert "Do not catch the sink's exceptions" in failed(pipeline.run(twice))
    assert sorted(read_values(cluster, pipeline.topic)) == ["0-15", "0-25", "0-35", "0-5"]


def test_a_batch_with_a_refused_second_call_is_refused_after_a_restart_until_completed(
    pipeline: Pipeline, cluster: Cluster, new_topic: Callable[..., str]
) -> None:
    other = new_topic(1)
    pipeline.add(numbered(0), numbered(1))
    sink = pipeline.sink()

    def twice(df: DataFrame, batch_id: int) -> None:
        fives, rest = halves(df)
        sink(fives, batch_id)
        if batch_id == 1:
            sink(rest.selectExpr("value"), batch_id)

    def repaired(sink: TransactionalSink) -> Sink:
        def write(df: DataFrame, batch_id: int) -> None:
            fives, rest = halves(df)
            sink.write({pipeline.topic: fives, other: rest}, batch_id)

        return write

    assert "a second time for batch 1" in (pipeline.run(twice) or "")
    failure = failed(pipeline.run(repaired(pipeline.sink())))
    assert "with the rows of its first call only" in failure
    assert "pass adopt=True once" in failure
    fives = ["0-15", "0-25", "0-35", "0-5", "1-15", "1-25", "1-35", "1-5"]
    assert sorted(read_values(cluster, pipeline.topic)) == fives
    sink = pipeline.sink(adopt=True)
    pipeline.add(numbered(2))
    assert pipeline.run(repaired(sink)) is None
    assert len(read_values(cluster, pipeline.topic)) == 12
    expected = [row for batch in (1, 2) for row in numbered(batch) if not row.endswith("5")]
    assert sorted(read_values(cluster, other)) == sorted(expected)


def test_batches_skipped_within_a_run_do_not_stop_it(pipeline: Pipeline, cluster: Cluster) -> None:
    pipeline.add(numbered(0), [""], [""], numbered(3), [""])
    sinks = [pipeline.sink()]

    def unless_empty(df: DataFrame, batch_id: int) -> None:
        rows = df.where("value != ''")
        if not rows.isEmpty():
            sinks[-1](rows, batch_id)

    assert pipeline.run(unless_empty) is None
    # After a restart the cause of a gap is unknown.
    pipeline.add(numbered(5))
    failure = failed(pipeline.run(unless_empty))
    assert "the last batch of this query in the topics is 3" in failure
    for way in ("sink.skip(batch_id)", "Only if", "may_skip=True"):
        assert way in failure
    sinks.append(pipeline.sink(may_skip=True))
    assert pipeline.run(unless_empty) is None
    expected = numbered(0) + numbered(3) + numbered(5)
    assert sorted(read_values(cluster, pipeline.topic)) == sorted(expected)


def test_a_skipped_batch_is_recorded_and_the_skip_can_be_repeated(
    pipeline: Pipeline, cluster: Cluster
) -> None:
    pipeline.add(numbered(0), numbered(1), numbered(2))
    sink = pipeline.sink()

    def skip_first(df: DataFrame, batch_id: int) -> None:
        if batch_id == 0:
            sink.skip(batch_id)
            sink.skip(batch_id)
        else:
            sink(df, batch_id)
            sink.skip(batch_id)

    assert pipeline.run(skip_first) is None
    assert sorted(read_values(cluster, pipeline.topic)) == sorted(numbered(1) + numbered(2))
    pipeline.add(numbered(3))

    def crash(step: str, batch_id: int) -> None:
        if step == "ended":
            raise RuntimeError("the driver dies")

    # Recorded, but not logged by Spark: not recorded twice, and rows for it are refused.
    crashing = pipeline.sink(on_step=crash)
    assert "the driver dies" in (pipeline.run(lambda df, b: crashing.skip(b)) or "")
    assert "it was written with no rows" in failed(pipeline.run())
    again = pipeline.sink()
    assert pipeline.run(lambda df, b: again.skip(b)) is None
    assert again.last_receipt is not None
    assert again.last_receipt.verdict is Verdict.DRAIN
    pipeline.add(numbered(4))
    both = pipeline.sink()

    def skip_and_call(df: DataFrame, batch_id: int) -> None:
        both.skip(batch_id)
        both(df, batch_id)

    assert "a second time for batch 4" in (pipeline.run(skip_and_call) or "")
    assert pipeline.run(pipeline.sink(adopt=True)) is None
    expected = numbered(1) + numbered(2) + numbered(4)
    assert sorted(read_values(cluster, pipeline.topic)) == sorted(expected)


def test_after_a_swallowed_failure_the_next_batch_is_refused(
    pipeline: Pipeline, cluster: Cluster
) -> None:
    pipeline.add(numbered(0), numbered(1), numbered(2))
    sink = pipeline.sink()

    def swallow(df: DataFrame, batch_id: int) -> None:
        if batch_id == 1:
            with pytest.raises(SinkRefused):
                sink(df.selectExpr("value AS body"), batch_id)
        else:
            sink(df, batch_id)

    failure = failed(pipeline.run(swallow))
    assert "the sink failed in batch 1" in failure
    assert "no column 'value'" in failure
    assert sorted(read_values(cluster, pipeline.topic)) == sorted(numbered(0))
    # Spark considers batch 1 written; the ledger has recorded that it is lost.
    assert "batch 1 of this query is not in the topics: the sink failed" in failed(pipeline.run())
    assert pipeline.run(pipeline.sink(adopt=True)) is None
    assert sorted(read_values(cluster, pipeline.topic)) == sorted(numbered(0) + numbered(2))


def test_a_failed_call_may_be_retried_only_with_the_same_rows(
    pipeline: Pipeline, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.add(numbered(0), numbered(1))
    broken = [0, 1]

    def break_once(step: str, batch_id: int) -> None:
        if step == "written" and batch_id in broken:
            broken.remove(batch_id)
            raise RuntimeError("no luck")

    sink, words = pipeline.sink(on_step=break_once), []

    def again(df: DataFrame, batch_id: int) -> None:
        for attempt in range(3):
            rows = halves(df)[0] if (batch_id, attempt) == (1, 1) else df
            try:
                return sink(rows.where("true"), batch_id)
            except (RuntimeError, SinkRefused) as problem:
                words.append(str(problem))
        raise SinkRefused("given up")

    assert "given up" in (pipeline.run(again) or "")
    assert [text[:30] for text in words[:2]] == ["no luck", "no luck"]
    assert "has other rows for the same batch" in words[2]
    assert "Do not catch the sink's exceptions" in words[3]
    assert sorted(read_values(cluster, pipeline.topic)) == sorted(numbered(0))
    assert pipeline.run() is None
    assert sorted(read_values(cluster, pipeline.topic)) == sorted(numbered(0) + numbered(1))


def test_the_sink_works_in_a_users_thread_pool(pipeline: Pipeline, cluster: Cluster) -> None:
    pipeline.add(numbered(0), numbered(1))
    sink = pipeline.sink()
    with ThreadPoolExecutor(1) as pool:

        def in_pool(df: DataFrame, batch_id: int) -> None:
            pool.submit(sink, df.where("value IS NOT NULL"), batch_id).result()

        assert pipeline.run(in_pool) is None
        assert sorted(read_values(cluster, pipeline.topic)) == sorted(numbered(0) + numbered(1))
        pipeline.add(numbered(2), numbered(3))

        def odd(df: DataFrame, batch_id: int) -> None:
            if batch_id == 3:
                constant = pipeline.spark.createDataFrame([("x",)], "value string")
                with pytest.raises(SinkRefused, match="foreachBatch"):
                    pool.submit(sink.skip, batch_id).result()
                with pytest.raises(SinkRefused, match="derived from the batch's"):
                    pool.submit(sink, constant, batch_id).result()
            sink(df, batch_id)

        failure = pipeline.run(odd)
    # A refusal in the pool counts even if the function ignored it.
    assert failure is not None
    assert "has other rows for the same batch" in failure
    assert len(read_values(cluster, pipeline.topic)) == 120


def test_concurrent_calls_from_two_threads_commit_nothing(
    pipeline: Pipeline, cluster: Cluster
) -> None:
    pipeline.add(numbered(0))
    is_written, is_refused = threading.Event(), threading.Event()

    def wait(step: str, batch_id: int) -> None:
        if step == "written":
            is_written.set()
            assert is_refused.wait(60)

    sink = pipeline.sink(on_step=wait)
    with ThreadPoolExecutor(2) as pool:

        def both(df: DataFrame, batch_id: int) -> None:
            fives, others = halves(df)
            first = pool.submit(sink, fives, batch_id)
            assert is_written.wait(60)
            second = pool.submit(sink, others, batch_id)
            with pytest.raises(SinkRefused, match="while another thread was writing batch"):
                second.result()
            is_refused.set()
            first.result()

        failure = pipeline.run(both)
    assert failure is not None
    assert "was given up, because another call came while it was written" in failure
    assert read_values(cluster, pipeline.topic) == []
    assert pipeline.run() is None
    assert sorted(read_values(cluster, pipeline.topic)) == sorted(numbered(0))


def test_a_batch_id_other_than_sparks_is_refused(pipeline: Pipeline, cluster: Cluster) -> None:
    pipeline.add(numbered(0))
    sink = pipeline.sink()
    failure = failed(pipeline.run(lambda df, batch_id: sink(df, 1_700_000_000)))
    assert "called for batch 1700000000, but the query is in batch 0" in failure
    assert read_values(cluster, pipeline.topic) == []
    pipeline.add(numbered(1))

    def old(df: DataFrame, batch_id: int) -> None:
        sink(df, batch_id)
        if batch_id == 1:
            sink(df, 0)

    failure = failed(pipeline.run(old))
    assert "called for batch 0, but this run of the query has already finished batch 1" in failure
    assert sorted(read_values(cluster, pipeline.topic)) == sorted(numbered(0) + numbered(1))


def test_several_dataframes_are_one_transaction(
    pipeline: Pipeline, cluster: Cluster, new_topic: Callable[..., str]
) -> None:
    audit, a, b = new_topic(1), new_topic(1), new_topic(3)
    pipeline.add(numbered(0), numbered(1, 2_000))
    sink = pipeline.sink(topic=None)
    before: list[list[int]] = []
    after = [[4, 0, 4, 32], [204, 0, 204, 1632]]

    def visible() -> list[int]:
        return [len(read_values(cluster, topic)) for topic in (pipeline.topic, audit, a, b)]

    def look(step: str, batch_id: int) -> None:
        if step == "ending":
            before.append(visible())
        if step == "ended":  # Apache Kafka answers EndTxn before the markers are written.
            chaos.await_truth(lambda: visible() == after[batch_id])

    sink._on_step = look

    def write(df: DataFrame, batch_id: int) -> None:
        fives, others = halves(df)
        named = others.selectExpr("value", f"if(value LIKE '%1', '{a}', '{b}') AS topic")
        empty = df.where("false")
        sink.write({pipeline.topic: fives, audit: empty, None: named}, batch_id)

    assert pipeline.run(write) is None
    assert before == [[0, 0, 0, 0], after[0]]
    receipt = sink.last_receipt
    assert receipt is not None
    assert {name: account.records for name, account in receipt.parts.items()} == {
        pipeline.topic: 200,
        audit: 0,
        "*": 1_800,
    }
    assert receipt.account is not None
    assert receipt.account.rows == 2_000

    def overlap(df: DataFrame, batch_id: int) -> None:
        named = df.selectExpr("value", f"'{pipeline.topic}' AS topic")
        sink.write({pipeline.topic: df, None: named}, batch_id)

    pipeline.add(numbered(2))
    assert "which has its own DataFrame in this call of sink.write" in failed(pipeline.run(overlap))
    assert len(read_values(cluster, pipeline.topic)) == 204


def test_several_dataframes_of_a_stateful_query_share_its_state(
    pipeline: Pipeline, cluster: Cluster, new_topic: Callable[..., str]
) -> None:
    other = new_topic(1)
    sink = pipeline.sink()

    def counted(lines: DataFrame) -> DataFrame:
        counts = lines.groupBy("value").count()
        return counts.selectExpr("value AS key", "concat(value, '=', count) AS value")

    def write(df: DataFrame, batch_id: int) -> None:
        sink.write({pipeline.topic: df, other: df.where("key = 'x'")}, batch_id)

    pipeline.add(["x", "y", "x"], ["x"], ["y", "x"])
    assert pipeline.run(write, counted, "update") is None
    assert sorted(read_values(cluster, pipeline.topic)) == ["x=2", "x=3", "x=4", "y=1", "y=2"]
    assert sorted(read_values(cluster, other)) == ["x=2", "x=3", "x=4"]


def test_one_sink_cannot_serve_two_queries_at_once(
    pipeline: Pipeline, cluster: Cluster, tmp_path: Path
) -> None:
    pipeline.add(numbered(0), numbered(1))
    rival = Pipeline(
        pipeline.spark,
        pipeline.bootstrap,
        tmp_path / "rival",
        pipeline.topic,
        pipeline.transactional_id,
    )
    rival.add(["rival"])
    sink, failures = pipeline.sink(), []

    def with_rival(df: DataFrame, batch_id: int) -> None:
        sink(df, batch_id)
        if batch_id == 0:
            failures.append(rival.run(sink))

    assert pipeline.run(with_rival) is None
    assert failures[0] is not None
    assert "give each query its own transactional_id" in failures[0]
    assert sorted(read_values(cluster, pipeline.topic)) == sorted(numbered(0) + numbered(1))


def test_outside_a_query_the_sink_explains_how_to_call_it(spark: SparkSession) -> None:
    sink = TransactionalSink("localhost:9092", transactional_id="x", topic="t")
    rows = spark.range(1).selectExpr("cast(id AS string) AS value")
    attempts: list[Callable[[], Any]] = [lambda: sink(rows, 0), lambda: sink.write({"t": rows}, 0)]
    for attempt in attempts:
        with pytest.raises(SinkRefused, match=r"writeStream\.foreachBatch\(sink"):
            attempt()
    with pytest.raises(SinkRefused, match="foreachBatch"):
        sink.skip(0)


def test_a_call_may_write_rows_from_elsewhere_or_none(pipeline: Pipeline, cluster: Cluster) -> None:
    pipeline.add(numbered(0), numbered(1), numbered(2))
    sink = pipeline.sink()
    elsewhere = pipeline.spark.newSession().createDataFrame([("elsewhere",)], "value string")
    # That made the other session the active one of this thread.
    pipeline.spark.createDataFrame([("here",)], "value string")
    frames: dict[int, Callable[[Any], DataFrame]] = {
        0: lambda df: elsewhere,
        1: lambda df: df.where("false"),
        2: lambda df: df.limit(3),
    }
    receipts = []

    def odd(df: DataFrame, batch_id: int) -> None:
        sink(frames[batch_id](df), batch_id)
        receipts.append(sink.last_receipt)

    assert pipeline.run(odd) is None
    assert [receipt.verdict for receipt in receipts if receipt] == [Verdict.WRITE] * 3
    found = read_values(cluster, pipeline.topic)
    assert len(found) == 4
    assert "elsewhere" in found


def test_an_empty_mapping_skips_the_batch_and_a_streaming_dataframe_is_refused(
    pipeline: Pipeline, cluster: Cluster
) -> None:
    pipeline.add(numbered(0), numbered(1), numbered(2))
    sink = pipeline.sink()
    lines = pipeline.spark.readStream.text(str(pipeline.folder / "in"))

    def odd(df: DataFrame, batch_id: int) -> None:
        if batch_id == 0:
            sink.write({}, batch_id)
        elif batch_id == 1:
            wide = df.selectExpr("*", *(f"'{n}' AS column_{n}" for n in range(300)))
            sink(wide, batch_id)
        else:
            sink(lines, batch_id)

    assert "the sink received a streaming DataFrame for batch 2" in failed(pipeline.run(odd))
    assert pipeline.run() is None
    assert sorted(read_values(cluster, pipeline.topic)) == sorted(numbered(1) + numbered(2))


def test_after_its_query_has_ended_a_sink_refuses_calls(
    pipeline: Pipeline, cluster: Cluster
) -> None:
    pipeline.add(numbered(0))
    sink = pipeline.sink()
    seen: list[DataFrame] = []

    def write(df: DataFrame, batch_id: int) -> None:
        seen.append(df)
        sink(df, batch_id)

    assert pipeline.run(write) is None
    with pytest.raises(SinkRefused, match="outside of a streaming query"):
        sink(seen[0], 1)
    with pytest.raises(SinkRefused, match="outside of a streaming query"):
        sink.skip(1)
    pipeline.add(numbered(1))
    assert pipeline.run(sink) is None
    assert sorted(read_values(cluster, pipeline.topic)) == sorted(numbered(0) + numbered(1))


def test_a_copied_checkpoint_writes_nothing_twice(
    pipeline: Pipeline, cluster: Cluster, tmp_path: Path
) -> None:
    pipeline.add(numbered(0))
    assert pipeline.run() is None
    shutil.copytree(pipeline.checkpoint, tmp_path / "copy")
    pipeline.add(numbered(1), numbered(2))
    assert pipeline.run() is None
    pipeline.checkpoint = tmp_path / "copy"
    failure = failed(pipeline.run())
    assert "the last batch of this query in the topics is 2, which is newer" in failure
    expected = [row for batch in range(3) for row in numbered(batch)]
    assert sorted(read_values(cluster, pipeline.topic)) == sorted(expected)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "only this query uses"),
        (7, "must be a text"),
        ("a\ud800b", "not Unicode text"),
        ("x" * 1_001, "has 1001 bytes"),
    ],
)
def test_an_invalid_transactional_id_is_refused_at_once(name: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        TransactionalSink("127.0.0.1:9092", transactional_id=name, topic="t")


def test_an_unusual_transactional_id_has_a_working_ledger(
    pipeline: Pipeline, cluster: Cluster
) -> None:
    odd = f"{pipeline.topic}a b/c\n'\"\\Zählung-残高-🧾"
    pipeline.transactional_id = odd + "x" * (1_000 - len(odd.encode()))
    pipeline.add(numbered(0))
    assert pipeline.run() is None
    pipeline.add(numbered(1))
    assert pipeline.run() is None
    assert sorted(read_values(cluster, pipeline.topic)) == sorted(numbered(0) + numbered(1))
