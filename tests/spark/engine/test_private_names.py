"""Goal: on a Spark with other internals, the sink does what the table says, and never wrong.

Method: each private name in turn is spelled differently, so that Python and the JVM do not have it.
PySpark itself keeps using the right one.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from py4j.protocol import Py4JJavaError

from fencepost.base.failures import FencepostError
from fencepost.client.blocking import Cluster
from fencepost.spark import TransactionalSink, route
from fencepost.spark.engine import hosts, private_names, session, workers_python
from fencepost.spark.engine.frames import know_columns
from fencepost.spark.engine.micro_batch import find_run
from fencepost.spark.engine.private_names import (
    ARROW,
    BATCH,
    CHECKPOINT,
    CLONES,
    COLLECT,
    COLUMNS,
    EVENTS,
    FILES,
    HOSTS,
    JVM,
    PLAN,
    PROCESSES,
    PYTHON,
    QUERIES,
    SETTINGS,
    SLOTS,
    THREAD,
    Private,
)
from fencepost.spark.engine.read_topics import frame_options
from fencepost.spark.engine.stored_batch import read_checkpoint
from fencepost.spark.failures import SinkRefused
from fencepost.spark.settings import read_settings
from tests.spark.conftest import Sessions, on_spark, read_values
from tests.spark.pipeline import Pipeline, add_files, failed, numbered

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

pytestmark = on_spark()

ROWS = {label: row for label, row in vars(private_names).items() if isinstance(row, Private)}
PASSWORD = {
    "kafka.security.protocol": "SASL_PLAINTEXT",
    "kafka.sasl.mechanism": "PLAIN",
    "kafka.sasl.username": "me",
    "kafka.sasl.password": "hunter2",
}


class Name(NamedTuple):
    """One private name: a row of the table, and the field that has it."""

    row: Private
    field: str

    def __str__(self) -> str:
        return str(self.row.names[self.field])


def each(*rows: Private) -> pytest.MarkDecorator:
    """One test for each name of these rows; `missing` is the name that is not there."""
    return pytest.mark.parametrize("missing", names_of(*rows), ids=str, indirect=True)


def names_of(*rows: Private) -> list[Name]:
    return [Name(row, field) for row in rows for field in row.names]


@pytest.fixture(autouse=True)
def untold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing has been missing yet."""
    for row in ROWS.values():
        monkeypatch.setattr(row, "is_told", False)


@pytest.fixture
def missing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Name:
    name: Name = request.param
    monkeypatch.setattr(name.row, name.field, f"noSuch{name}")
    return name


def test_every_name_says_what_it_is_for_what_happens_without_it_and_where_it_was_tried() -> None:
    names = [name for row in ROWS.values() for name in row.names.values()]
    assert len(set(names)) == len(names), "each stands once"
    for row in ROWS.values():
        assert row.purpose
        assert row.without
        assert set(row.tried) <= set(private_names.TRIED)


# The sink.


def test_the_sink_writes_every_row_once_also_if_a_batch_is_repeated(
    pipeline: Pipeline, cluster: Cluster, new_topic: Callable[..., str]
) -> None:
    """One query has a sink and a topic for each missing name."""
    rows = (JVM, SETTINGS, PYTHON, COLLECT, SLOTS, THREAD, QUERIES, BATCH, PLAN)
    sinks: list[tuple[Name, TransactionalSink]] = []
    for name in names_of(*rows):
        topic = new_topic()
        sinks.append((name, pipeline.sink(transactional_id=topic, topic=topic)))
    written: Counter[int] = Counter()

    def write(df: DataFrame, batch_id: int) -> None:
        for name, sink in sinks:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(name.row, name.field, f"noSuch{name}")
                sink(df, batch_id)
            written[batch_id] += 1

    pipeline.add(numbered(0), numbered(1))
    assert pipeline.run(write) is None
    # As after a crash between EndTxn and Spark's own log; and the same sink again, in another run.
    (pipeline.checkpoint / "commits" / "1").unlink()
    (pipeline.checkpoint / "commits" / ".1.crc").unlink(missing_ok=True)
    pipeline.add(numbered(2))
    assert pipeline.run(write) is None
    assert written == {0: len(sinks), 1: 2 * len(sinks), 2: len(sinks)}
    expected = sorted(numbered(0) + numbered(1) + numbered(2))
    for name, sink in sinks:
        assert sorted(read_values(cluster, sink.transactional_id)) == expected, name


@each(CLONES, QUERIES)
def test_a_call_in_a_thread_of_the_users_own_is_refused(
    pipeline: Pipeline, cluster: Cluster, missing: Name
) -> None:
    sink = pipeline.sink()

    def write(df: DataFrame, batch_id: int) -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(sink, df, batch_id).result()

    pipeline.add(numbered(0))
    failure = failed(pipeline.run(write))
    assert "this Spark does not show which query a thread of your own belongs to" in failure
    assert read_values(cluster, pipeline.topic) == []


# What is known of a running query.


@pytest.fixture(scope="module")
def idle(sessions: Sessions, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StreamingQuery]:
    """A query that has finished two batches, without a checkpointLocation."""
    folder = tmp_path_factory.mktemp("idle")
    add_files(folder, ["a"], ["b"])
    spark = sessions.session("local[2]")
    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(str(folder / "in"))
    write = lines.writeStream.foreachBatch(lambda df, _: None)
    query = write.trigger(processingTime="1 second").start()
    query.processAllAvailable()
    yield query
    query.stop()


def known_of(spark: SparkSession, query: StreamingQuery) -> set[str]:
    """What the engine shows of the idle query."""
    found = find_run(spark, str(query.id), 7)
    shown = {
        "run": found.run_id != "",
        "end": found.end_offsets != (),
        "start": found.start_offsets != (),
        "sources": found.source_options() == [None],  # Files show no options.
        "state": found.is_stateful is False,
    }
    try:
        found.check_batch()
    except SinkRefused:
        shown["number"] = True
    return {name for name, is_shown in shown.items() if is_shown}


EVERYTHING = {"run", "end", "start", "sources", "state", "number"}
LOST = {
    "getLatestExecutionContext": {"end", "start", "number"},
    "batchId": {"number"},
    "startOffsets": {"start"},
    "endOffsets": {"end"},
    "logicalPlan": {"state"},
    "analyzedPlan": {"sources"},
    "collectLeaves": {"sources"},
    "isStreaming": {"sources", "state"},
    "nodeName": {"state"},
    "children": {"state"},
    "sharedState": EVERYTHING,
    "activeStreamingQueries": EVERYTHING,
    "_jsparkSession": EVERYTHING,
    "_jvm": EVERYTHING,
}


def test_the_engine_shows_everything_if_no_name_is_missing(
    spark: SparkSession, idle: StreamingQuery
) -> None:
    assert known_of(spark, idle) == EVERYTHING


@each(JVM, QUERIES, BATCH, PLAN)
def test_what_the_engine_does_not_show_is_unknown_and_nothing_else(
    spark: SparkSession, idle: StreamingQuery, missing: Name
) -> None:
    assert known_of(spark, idle) == EVERYTHING - LOST.get(str(missing), set())


@each(CHECKPOINT)
def test_where_the_sources_began_is_unknown(
    spark: SparkSession, idle: StreamingQuery, monkeypatch: pytest.MonkeyPatch, missing: Name
) -> None:
    assert find_run(spark, str(idle.id), 0).initial_files == ()
    monkeypatch.undo()
    assert find_run(spark, str(idle.id), 0).initial_files != ()


@pytest.fixture(scope="module")
def rate(sessions: Sessions) -> Iterator[StreamingQuery]:
    """A query whose source has options, in its first batch or after it."""
    spark = sessions.session("local[2]")
    begun = threading.Event()
    rows = spark.readStream.format("rate").option("rowsPerSecond", "7").load()
    write = rows.writeStream.foreachBatch(lambda *_: begun.set())
    query = write.trigger(processingTime="1 hour").start()
    assert begun.wait(60)
    yield query
    query.stop()


OPTIONS_IN = {
    "logicalPlan": set[str](),
    "analyzedPlan": {"running"},
    "_jdf": {"stream", "table"},
    "queryExecution": {"stream", "table"},
    "analyzed": {"stream", "table"},
    "extraOptions": {"running", "stream"},
    "options": {"table"},
    "isStreaming": {"running", "stream"},
    "nodeName": set[str](),
    "children": set[str](),
}
"""In which of the three forms of a plan each name is needed; those that are not here, in all."""


@each(PLAN)
def test_the_options_of_sources_are_known_or_unknown(
    spark: SparkSession, bootstrap: str, rate: StreamingQuery, missing: Name
) -> None:
    stream = spark.readStream.format("rate").option("rowsPerSecond", "7").load()
    table = spark.read.format("fencepost").option("kafka.bootstrap.servers", bootstrap)
    forms = {
        "running": find_run(spark, str(rate.id), 0).source_options(),
        "stream": frame_options(stream),
        "table": frame_options(table.option("subscribe", "t").load()),
    }
    unknown = {form for form, options in forms.items() if options in ([], [None])}
    assert unknown == OPTIONS_IN.get(str(missing), forms.keys())
    for form in forms.keys() - unknown:
        (options,) = forms[form]
        assert options is not None
        assert options["subscribe" if form == "table" else "rowsPerSecond"] in ("t", "7")


# The application, its settings and rows.


@each(SETTINGS)
def test_settings_are_read_from_the_jvm(spark: SparkSession, missing: Name) -> None:
    assert session.setting(spark, "spark.master") == "local[2]"
    assert session.setting(spark, "spark.no.such.setting", "none") == "none"


@each(PYTHON)
def test_the_workers_run_the_python_of_the_environment(
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    missing: Name,
) -> None:
    monkeypatch.setattr(workers_python, "PYTHON_SET_HERE", True)
    for _ in range(2):
        with workers_python.workers_python(spark), caplog.at_level(logging.WARNING):
            assert spark.sparkContext.parallelize([1]).map(lambda n: n + 1).collect() == [2]
    assert not hasattr(spark.sparkContext, f"noSuch{missing}")
    (record,) = caplog.records
    assert PYTHON.without in record.getMessage()


def test_what_java_throws_is_raised_and_what_java_lacks_is_not(spark: SparkSession) -> None:
    jvm: Any = spark.sparkContext._jvm
    with pytest.raises(Py4JJavaError), SLOTS.optional():
        jvm.java.util.ArrayDeque().pop()
    with SLOTS.optional():
        jvm.java.util.ArrayDeque().noSuchMethod()
    assert SLOTS.is_told


@each(SLOTS)
def test_one_task_writes(spark: SparkSession, missing: Name) -> None:
    assert session.concurrent_tasks(spark) == 1


@each(HOSTS)
def test_rows_are_shuffled_and_passwords_refused_if_hosts_are_unknown(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, missing: Name
) -> None:
    monkeypatch.setattr(hosts, "_is_local", lambda _: False)
    plain = read_settings("broker:9092", PASSWORD, "plain")
    assert hosts.executor_hosts(spark) is None
    assert hosts.exchange_hosts(spark, plain) is None
    with pytest.raises(SinkRefused, match="hosts that this Spark does not show"):
        hosts.check_secrets(spark, read_settings("broker:9092", PASSWORD))


def test_without_the_jvms_context_each_of_its_uses_does_without(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(JVM, "context", "noSuchContext")
    slept: list[float] = []
    monkeypatch.setattr(session, "time", SimpleNamespace(sleep=slept.append))
    session.await_events(spark, 2.0)
    assert (session.concurrent_tasks(spark), hosts.executor_hosts(spark)) == (1, None)
    assert slept == [2.0]


@each(EVENTS)
def test_the_last_events_are_awaited_for_a_fixed_time(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, missing: Name
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(session, "time", SimpleNamespace(sleep=slept.append))
    session.await_events(spark, 2.0)
    assert slept == [2.0]


# The format.


@each(ARROW)
def test_route_is_refused_without_sparks_types(
    spark: SparkSession, bootstrap: str, new_topic: Callable[..., str], missing: Name
) -> None:
    with pytest.raises(SinkRefused, match="does not show its types for those of Arrow"):
        route(spark.range(1).selectExpr("'a' AS value"), bootstrap, topic=new_topic())


@each(COLUMNS)
def test_spark_is_asked_for_columns(spark: SparkSession, missing: Name) -> None:
    wrong: StructType = spark.range(1).schema
    frame = spark.sql("SELECT 'a' AS value")
    know_columns(frame, wrong)
    assert frame.schema.simpleString() == "struct<value:string>"


@each(FILES)
def test_offsets_of_another_version_are_unknown(
    pipeline: Pipeline, missing: Name, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.add(numbered(0))
    assert pipeline.run() is None
    found = read_checkpoint(str(pipeline.checkpoint))
    assert found is not None
    assert (found.batch_id, found.fingerprint) == (0, "")
    monkeypatch.undo()
    known = read_checkpoint(str(pipeline.checkpoint))
    assert known is not None
    assert known.fingerprint


@pytest.mark.parametrize("lost", [None, *PROCESSES.names])
def test_an_error_comes_with_its_traceback_if_a_name_is_missing(
    spark: SparkSession, lost: str | None
) -> None:
    def fail(_: Iterator[Any]) -> Iterator[Any]:
        from fencepost.spark.engine.private_names import PROCESSES
        from fencepost.spark.sentences import plain_errors

        if lost is not None:
            setattr(PROCESSES, lost, "noSuchName")
        with plain_errors():
            raise FencepostError("one sentence")

    with pytest.raises(Exception, match="one sentence") as raised:
        spark.range(1).mapInArrow(fail, "id LONG").collect()
    assert ("Traceback" in str(raised.value)) is (lost is not None)
