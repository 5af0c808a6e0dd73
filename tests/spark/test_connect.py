"""Source and sink on Spark Connect: the server in another process, the client in this one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="the spark extra is not installed")

from pyspark.errors import PySparkException

from fencepost.spark import route
from fencepost.spark.engine.private_names import COLUMNS
from fencepost.spark.failures import SinkRefused
from fencepost.spark.ledger.admin import describe_id
from tests.spark import chaos
from tests.spark.conftest import on_spark, read_values, require_spark
from tests.spark.connect_server import At, ConnectServer, DieAt, Told, WaitAt
from tests.spark.pipeline import Pipeline, finish, numbered

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from fencepost.client.blocking import Cluster
    from fencepost.spark import TransactionalSink

pytestmark = on_spark(400)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    require_spark()
    pytest.importorskip("grpc", reason="the connect extra is not installed")
    found = ConnectServer(tmp_path_factory.mktemp("connect"))
    found.start()
    yield found
    found.stop()


@pytest.fixture
def client(server: ConnectServer) -> Iterator[SparkSession]:
    with server.client() as session:
        yield session


class ConnectPipeline(Pipeline):
    """A pipeline whose sink has what it needs on Connect."""

    def sink(self, **changes: Any) -> TransactionalSink:
        return super().sink(**{"checkpoint": str(self.checkpoint)} | changes)

    def start(self, *given: Any, **named: Any) -> StreamingQuery:
        for _ in range(3):
            try:
                return super().start(*given, **named)
            except Exception as problem:
                # Spark waits ten seconds for a new Python process, whatever the load.
                if "failed to connect back" not in str(problem):
                    raise
        raise AssertionError("no Python process on the server")


@pytest.fixture
def pipeline(
    client: SparkSession, bootstrap: str, tmp_path: Path, new_topic: Callable[..., str]
) -> ConnectPipeline:
    return ConnectPipeline(client, bootstrap, tmp_path, new_topic())


def counted(lines: DataFrame) -> DataFrame:
    """A stateful query: how often each line has come so far."""
    return (
        lines.groupBy("value").count().selectExpr("value AS key", "value || ':' || count AS value")
    )


def is_stateful(cluster: Cluster, pipeline: Pipeline) -> bool | None:
    """What the ledger has recorded."""
    entry = describe_id(cluster, pipeline.transactional_id).entry
    assert entry is not None
    return entry.is_stateful


def test_a_stateful_query_is_exactly_once_whatever_fails_in_its_batches(
    pipeline: ConnectPipeline, server: ConnectServer, cluster: Cluster, tmp_path: Path
) -> None:
    pipeline.add(*(["a", "b", f"{batch}"] for batch in range(3)))

    def run(on_step: At | None) -> str:
        return pipeline.run(pipeline.sink(on_step=on_step), counted, "update") or ""

    assert "made to fail" in run(At("entered", 1))
    assert sorted(read_values(cluster, pipeline.topic)) == ["0:1", "a:1", "b:1"]
    assert is_stateful(cluster, pipeline)
    # Committed, but Spark does not know; the process that knew is gone.
    assert run(DieAt("ended", 1))
    expected = ["0:1", "1:1", "a:1", "a:2", "b:1", "b:2"]
    assert sorted(read_values(cluster, pipeline.topic)) == expected
    # Batch 1 is drained. In batch 2 the driver is killed, and its Python process lives on.
    waiting = WaitAt("written", 2, str(tmp_path / "marker"))
    told = Told(pipeline.sink(on_step=waiting), str(tmp_path / "told"))
    pipeline.start(told, counted, "update")
    chaos.await_file(f"{waiting.marker}.reached")
    server.kill()
    server.start()
    with server.client() as session:
        pipeline.spark = session
        assert run(None) == ""
        Path(f"{waiting.marker}.released").touch()
        chaos.await_file(told.path)
        assert Path(told.path).read_text() == "SinkFenced"
        pipeline.add(["b"])
        assert run(None) == ""
    expected += ["2:1", "a:3", "b:3", "b:4"]
    assert sorted(read_values(cluster, pipeline.topic)) == sorted(expected)


def test_rows_go_from_topic_to_topic_and_can_be_read_as_a_table(
    pipeline: ConnectPipeline, cluster: Cluster, new_topic: Callable[..., str]
) -> None:
    pipeline.add(numbered(0, 20))
    assert pipeline.run() is None
    assert is_stateful(cluster, pipeline) is False
    copy = new_topic()
    options = {"kafka.bootstrap.servers": pipeline.bootstrap, "startingOffsets": "earliest"}
    source = pipeline.spark.readStream.format("fencepost").options(**options)
    checkpoint = str(pipeline.folder / "second")
    sink = pipeline.sink(transactional_id=copy, topic=copy, checkpoint=checkpoint)
    query = (
        source.option("subscribe", pipeline.topic)
        .option("maxOffsetsPerTrigger", 12)
        .load()
        .select("key", "value")
        .writeStream.foreachBatch(sink)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    assert finish(query) is None
    assert sorted(read_values(cluster, copy)) == sorted(numbered(0, 20))
    table = pipeline.spark.read.format("fencepost").options(**options)
    rows = table.option("subscribe", copy).load().selectExpr("CAST(value AS STRING) AS value")
    assert sorted(row["value"] for row in rows.collect()) == sorted(numbered(0, 20))


def test_rows_for_the_topic_that_the_query_reads_are_refused(
    pipeline: ConnectPipeline, cluster: Cluster
) -> None:
    pipeline.add(numbered(0, 3))
    assert pipeline.run() is None
    checkpoint = str(pipeline.folder / "loop")
    sink = pipeline.sink(transactional_id=checkpoint, topic=None, checkpoint=checkpoint)
    query = (
        pipeline.spark.readStream.format("fencepost")
        .option("kafka.bootstrap.servers", pipeline.bootstrap)
        .option("startingOffsets", "earliest")
        .option("subscribe", pipeline.topic)
        .load()
        .writeStream.foreachBatch(sink)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    assert f"a row names topic '{pipeline.topic}', which this query reads" in (finish(query) or "")
    assert sorted(read_values(cluster, pipeline.topic)) == numbered(0, 3)


def test_a_function_may_skip_a_batch_and_write_several_dataframes(
    pipeline: ConnectPipeline, cluster: Cluster, new_topic: Callable[..., str]
) -> None:
    pipeline.add(numbered(0, 3), numbered(1, 3))
    sink, topic, other = pipeline.sink(), pipeline.topic, new_topic()

    def write(df: DataFrame, batch_id: int) -> None:
        if batch_id == 0:
            sink.skip(batch_id)
        else:
            sink.write({topic: df, other: df.where("value LIKE '%2'")}, batch_id)

    assert pipeline.run(write) is None
    assert sorted(read_values(cluster, topic)) == numbered(1, 3)
    assert read_values(cluster, other) == ["1-2"]


def test_a_sink_without_the_querys_checkpoint_is_refused(
    pipeline: ConnectPipeline, cluster: Cluster
) -> None:
    pipeline.add(numbered(0, 3))
    assert "pass checkpoint=" in (pipeline.run(pipeline.sink(checkpoint=None)) or "")
    wrong = pipeline.sink(checkpoint=str(pipeline.folder / "elsewhere"))
    assert "batch 0 is not under way" in (pipeline.run(wrong) or "")
    assert read_values(cluster, pipeline.topic) == []
    with pytest.raises(SinkRefused, match="receipts stay there"):
        _ = wrong.last_receipt


# The format.


class NotInFlow(PySparkException):
    """What Spark raises if the function of a flow asks for columns."""

    def getCondition(self) -> str:  # noqa: N802
        return "ATTEMPT_ANALYSIS_IN_PIPELINE_QUERY_FUNCTION"


def run_flow(pipeline: ConnectPipeline, patch: pytest.MonkeyPatch, *, may_ask: bool) -> str | None:
    """Routes as in the function of a flow, and runs the query."""

    def refuse(*_: object, **__: object) -> None:
        raise NotInFlow("columns are not known here")

    session: Any = pipeline.spark
    lines = session.readStream.text(str(pipeline.folder / "in"))
    with patch.context() as flow:
        flow.setattr("fencepost.spark.doors.route.select_rows", refuse)
        if not may_ask:
            flow.setattr(type(session.client), "schema", refuse)
        routed = route(lines.select("value"), pipeline.bootstrap, topic=pipeline.topic)
    writer = routed.writeStream.format("fencepost").trigger(availableNow=True)
    writer.option("kafka.bootstrap.servers", pipeline.bootstrap)
    writer.option("transactionalId", pipeline.transactional_id)
    return finish(writer.option("checkpointLocation", str(pipeline.checkpoint)).start())


def test_a_flow_is_routed_without_asking_for_columns(
    pipeline: ConnectPipeline, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.add(["a", "b"])
    assert run_flow(pipeline, monkeypatch, may_ask=False) is None
    assert sorted(read_values(cluster, pipeline.topic)) == ["a", "b"]


def test_without_the_private_name_spark_is_asked_for_columns_or_a_flow_is_refused(
    pipeline: ConnectPipeline, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(COLUMNS, "known", "_noSuchSchema")
    pipeline.add(["a", "b"])
    with pytest.raises(SinkRefused, match=r"route\(\) cannot be used in the function of a flow"):
        run_flow(pipeline, monkeypatch, may_ask=False)
    assert run_flow(pipeline, monkeypatch, may_ask=True) is None
    assert sorted(read_values(cluster, pipeline.topic)) == ["a", "b"]
