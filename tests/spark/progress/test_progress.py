"""`Progress` in a real Spark: several queries, one that fails, one that is started again."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fencepost.base.ids import TopicPartition
from fencepost.client.blocking import Cluster
from fencepost.records.opened import Record
from fencepost.spark import Progress
from fencepost.spark.doors.foreach_batch import TransactionalSink
from fencepost.spark.progress.board import QueryState, QueryStatus
from fencepost.spark.progress.progress import BoardListener
from tests.spark.conftest import on_spark
from tests.spark.pipeline import Pipeline, numbered

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = on_spark()


@pytest.fixture
def progress(spark: SparkSession) -> Iterator[Progress]:
    with Progress(spark, show=False) as found:
        yield found


def by_name(progress: Progress) -> dict[str, QueryStatus]:
    return {status.name: status for status in progress.queries}


def write_transactions(cluster: Cluster, topic: str, count: int) -> None:
    """Transactions of one record each, every second one aborted: four offsets for one record."""
    for number in range(2 * count):
        identity = cluster.init_producer_id(f"{topic}-producer")
        with cluster.writer(identity) as writer:
            writer.write_records(TopicPartition(topic, 0), [Record(value=b"%d" % number)])
            writer.flush()
        cluster.end_txn(identity, commit=number % 2 == 0)


def start(
    spark: SparkSession, cluster: Cluster, source: str, folder: Path, sink: Any, **options: Any
) -> StreamingQuery:
    servers = ",".join(map(str, cluster.options.bootstrap))
    rows = spark.readStream.format("fencepost").options(
        **{"kafka.bootstrap.servers": servers, "subscribe": source, "startingOffsets": "earliest"},
        **options,
    )
    return (
        rows.load()
        .select("value")
        .writeStream.foreachBatch(sink)
        .queryName(source)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )


def test_the_lag_on_a_topic_of_transactions_is_right_and_commits_are_timed(
    spark: SparkSession,
    cluster: Cluster,
    bootstrap: str,
    new_topic: Callable[..., str],
    tmp_path: Path,
    progress: Progress,
) -> None:
    source, target = new_topic(1, "in"), new_topic(2, "out")
    write_transactions(cluster, source, 10)
    sink = TransactionalSink(bootstrap, transactional_id=target, topic=target)
    seen: list[QueryStatus] = []

    def write(df: Any, batch_id: int) -> None:
        if batch_id:
            # Spark tells about a batch while the next one begins.
            progress._await_events()
            seen.append(by_name(progress)[source])
        sink(df, batch_id)

    query = start(spark, cluster, source, tmp_path, write, maxOffsetsPerTrigger=20)
    query.awaitTermination(120)
    assert query.exception() is None
    progress.stop()
    # 40 offsets for 10 records: the first batch has read 20 of them.
    assert [(each.offsets_behind, each.records_behind) for each in seen] == [(20, 5)]
    assert seen[0].sources[0].metrics["maxOffsetsBehindLatest"] == "20"
    status = by_name(progress)[source]
    assert (status.state, status.batch_id, status.rows) == (QueryState.STOPPED, 1, 10)
    assert (status.offsets_behind, status.records_behind) == (0, 0)
    assert status.rows_per_second is not None
    assert status.rows_per_second > 0
    assert sink.last_receipt is not None
    assert status.commit_ms == sink.last_receipt.commit_ms is not None
    assert (status.retries, status.drained) == (0, 0)


def test_a_query_that_fails_and_is_started_again_shows_its_reason_and_then_its_new_run(
    pipeline: Pipeline, spark: SparkSession
) -> None:
    output = io.StringIO()
    pipeline.add(numbered(0), numbered(1))
    with Progress(spark, output=output, interval_seconds=0) as progress:
        failure = pipeline.run(pipeline.sink(topic="no-such-topic"))
        assert failure is not None
        progress._await_events()
        (failed,) = progress.queries
        assert failed.state is QueryState.FAILED
        assert failed.error is not None
        assert failed.error.startswith("the cluster has no topic 'no-such-topic': create it")

        def crash(step: str, batch_id: int) -> None:
            if (step, batch_id) == ("ended", 0):
                raise RuntimeError("the driver dies before Spark knows of the commit")

        assert pipeline.run(pipeline.sink(on_step=crash)) is not None
        progress._await_events()
        (crashed,) = progress.queries
        assert crashed.error is not None
        assert crashed.error.startswith("RuntimeError: the driver dies before Spark knows of the c")
        assert pipeline.run(pipeline.sink()) is None
    (status,) = progress.queries
    assert status.query_id == failed.query_id
    assert (status.runs, status.state, status.error) == (3, QueryState.STOPPED, None)
    assert (status.batch_id, status.drained) == (1, 1)
    lines = output.getvalue().splitlines()
    assert any("failed: the cluster has no topic" in line for line in lines)
    assert "stopped" in lines[-1]
    assert "<td>stopped</td>" in progress._repr_html_()


def test_queries_that_run_already_are_found_and_a_listener_that_breaks_harms_no_query(
    pipeline: Pipeline, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.add(numbered(0), numbered(1))
    progress = Progress(spark, show=False)
    found: list[QueryStatus] = []
    sink = pipeline.sink()

    def write(df: Any, batch_id: int) -> None:
        if batch_id == 1:
            assert progress.start() is progress.start()
            found.extend(progress.queries)
            # From here on everything that the listener does fails.
            monkeypatch.setattr(progress._board, "_records", None)
        sink(df, batch_id)

    assert pipeline.run(write) is None
    assert [(each.batch_id, each.rows) for each in found] == [(0, 40)]
    monkeypatch.undo()
    progress.stop()
    progress.stop()
    assert [one.batch_id for one in sink.receipts] == [0, 1]


def test_no_exception_leaves_the_listener(caplog: pytest.LogCaptureFixture) -> None:
    def break_down(*_: Any) -> Any:
        raise RuntimeError("broken")

    listener = BoardListener(break_down, break_down)  # type: ignore[arg-type]
    for event in (listener.onQueryStarted, listener.onQueryProgress, listener.onQueryIdle):
        event(None)  # type: ignore[arg-type]
    listener.onQueryTerminated(None)  # type: ignore[arg-type]
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_it_outlives_its_session(monkeypatch: pytest.MonkeyPatch, spark: SparkSession) -> None:
    class Gone:
        def addListener(self, listener: Any) -> None:  # noqa: N802
            pass

        def removeListener(self, listener: Any) -> None:  # noqa: N802
            raise RuntimeError("the session is gone")

        active: tuple[Any, ...] = ()

    class Session:
        streams = Gone()

    output = io.StringIO()
    with Progress(Session(), output=output) as progress:  # type: ignore[arg-type]
        assert repr(progress) == "<Progress: no queries yet>"
    assert progress.queries == ()
