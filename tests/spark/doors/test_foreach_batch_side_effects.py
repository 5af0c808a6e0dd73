"""The sink leaves the user's session and process as they were."""

from __future__ import annotations

import pickle
import socket
from typing import TYPE_CHECKING, Any

import pytest

from fencepost.spark.doors.foreach_batch import TransactionalSink
from fencepost.spark.ledger.store import LedgerStore
from fencepost.spark.settings import read_settings
from fencepost.spark.transaction.identity import DriverProducer
from fencepost.spark.ways.limits import TopicLimits
from tests.spark import chaos
from tests.spark.conftest import on_spark
from tests.spark.pipeline import Pipeline, numbered

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def test_nothing_connects_to_a_broker_when_it_is_created(monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(*_: object) -> None:
        raise AssertionError("a constructor connects")

    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.setattr(socket, "create_connection", connect)
    settings = read_settings("127.0.0.1:9", {})
    sink = TransactionalSink("127.0.0.1:9", transactional_id="id", topic="t")
    pickle.loads(pickle.dumps(sink))
    DriverProducer("id", settings)
    LedgerStore(settings.client, "id")
    TopicLimits(settings)


class Watched:
    """Calls the sink, and notes what the session was like before and after."""

    def __init__(self, sink: Any, columns: list[str]) -> None:
        self._sink = sink
        self._columns = columns
        self.seen: list[tuple[Any, Any]] = []

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        before = _state(df)
        try:
            self._sink(df.selectExpr(self._columns[batch_id]), batch_id)
        finally:
            self.seen.append((before, _state(df)))


def _state(df: DataFrame) -> tuple[dict[str, str], str]:
    session = df.sparkSession
    return dict(session.conf.getAll), session.sparkContext.pythonExec


class TestOnSpark:
    """Batch 0 goes from task to task, or through the shuffle; the driver collects the others."""

    pytestmark = on_spark()

    @pytest.mark.parametrize("fails_once", [False, True])
    def test_batches_leave_the_session_as_it_was(
        self, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, fails_once: bool
    ) -> None:
        if fails_once:
            chaos.in_tasks(monkeypatch, chaos.FailOnce(str(pipeline.folder / "failed-once")))
        pipeline.add(numbered(0), numbered(1))
        watched = Watched(pipeline.sink(), ["value"] * 2)
        assert pipeline.run(watched) is None
        assert len(watched.seen) == 2
        for before, after in watched.seen:
            assert before == after

    @pytest.mark.parametrize("failing", [0, 1])
    def test_a_batch_that_fails_leaves_the_session_as_it_was(
        self, pipeline: Pipeline, failing: int
    ) -> None:
        pipeline.add(numbered(0), numbered(1))
        columns = ["value", "value"]
        columns[failing] = "CAST(raise_error(value) AS STRING) AS value"
        watched = Watched(pipeline.sink(), columns)
        assert pipeline.run(watched) is not None
        assert len(watched.seen) == failing + 1
        for before, after in watched.seen:
            assert before == after
