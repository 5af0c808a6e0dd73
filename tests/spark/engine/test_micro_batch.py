"""Finding the run and the query that call the sink."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the spark extra is not installed")

from fencepost.spark.engine.micro_batch import MicroBatch, read_micro_batch
from fencepost.spark.engine.private_names import QUERIES
from fencepost.spark.failures import SinkRefused


class Text(str):
    """A string of the JVM."""

    __slots__ = ()

    def toString(self) -> str:  # noqa: N802
        return str(self)


class FakeRun:
    """The engine's object of one run of a query."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.active = True

    def isActive(self) -> bool:  # noqa: N802
        return self.active

    def runId(self) -> Text:  # noqa: N802
        return Text(self.run_id)


class FakeEngine:
    """A session whose thread belongs to a query."""

    def __init__(self, query_id: str | None) -> None:
        self.properties = {"sql.streaming.queryId": query_id}
        """What the engine has set for its thread."""
        self.run = FakeRun("first")
        self.searches = 0

    def session(self) -> Any:
        context = SimpleNamespace(
            getLocalProperty=lambda name: self.properties.get(name),
            _jvm=SimpleNamespace(
                java=SimpleNamespace(util=SimpleNamespace(UUID=SimpleNamespace(fromString=str)))
            ),
        )
        none = SimpleNamespace(hasMoreElements=lambda: False)
        queries = SimpleNamespace(get=self._find, elements=lambda: none)
        shared = SimpleNamespace(activeStreamingQueries=lambda: queries)
        java_session = SimpleNamespace(sharedState=lambda: shared)
        return SimpleNamespace(sparkContext=context, _jsparkSession=java_session)

    def _find(self, query_id: str) -> FakeRun:
        self.searches += 1
        return self.run


def test_the_run_of_a_query_is_looked_up_once() -> None:
    engine = FakeEngine("q")
    first = read_micro_batch(engine.session(), 0)
    second = read_micro_batch(engine.session(), 1, first)
    assert first.run == second.run == ("q", "first")
    assert (second.batch_id, engine.searches) == (1, 1)


def test_a_restarted_query_is_another_run() -> None:
    engine = FakeEngine("q")
    first = read_micro_batch(engine.session(), 0)
    engine.run.active = False
    engine.run = FakeRun("second")
    assert read_micro_batch(engine.session(), 1, first).run == ("q", "second")


def test_another_query_does_not_reuse_the_previous_run() -> None:
    engine = FakeEngine("q")
    before = MicroBatch("other", "run", 3, FakeRun("run"))
    assert read_micro_batch(engine.session(), 4, before).run == ("q", "first")


def test_outside_a_streaming_query_the_call_is_refused() -> None:
    with pytest.raises(SinkRefused, match="outside of a streaming query"):
        read_micro_batch(FakeEngine(None).session(), 0)


def test_a_thread_whose_job_group_is_the_run_belongs_to_it_without_further_questions() -> None:
    engine = FakeEngine("q")
    first = read_micro_batch(engine.session(), 0)
    engine.properties = {"spark.jobGroup.id": "first"}
    second = read_micro_batch(engine.session(), 1, first)
    assert (second.run, second.batch_id, second.is_foreign) == (("q", "first"), 1, False)


def test_a_function_may_set_a_job_group_of_its_own() -> None:
    engine = FakeEngine("q")
    first = read_micro_batch(engine.session(), 0)
    engine.properties["spark.jobGroup.id"] = "nightly"
    assert read_micro_batch(engine.session(), 1, first).run == ("q", "first")


def test_a_later_batch_begins_where_the_last_one_ended_without_another_call() -> None:
    first = MicroBatch("q", "run", 3)
    first.end_offsets = ('{"t": {"0": 40}}',)
    first.is_stateful = True
    assert first.as_batch().ended is not None
    later = first.next(4)
    later.end_offsets = ('{"t": {"0": 65}}',)
    assert (later.start_offsets, later.expected_rows) == (first.end_offsets, 25)
    assert later.is_stateful is True
    assert first.next(5).start_offsets == ()


def test_runs_that_spark_does_not_show_are_told_apart_by_their_job_groups(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(QUERIES, "active", "noSuchMethod")
    engine = FakeEngine("q")
    engine.properties["spark.jobGroup.id"] = "first"
    first = read_micro_batch(engine.session(), 0)
    engine.properties["spark.jobGroup.id"] = "second"
    second = read_micro_batch(engine.session(), 0, first)
    assert (first.run, second.run) == (("q", "first"), ("q", "second"))
    assert (first.fingerprint, first.is_stateful) == ("", None)
