"""A query that is stopped in the middle of a batch ends as stopped, not as failed."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from tests.spark import chaos
from tests.spark.conftest import on_spark, read_values
from tests.spark.pipeline import Pipeline, finish, numbered

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from fencepost.client.blocking import Cluster

pytestmark = on_spark()

STEPS = ("fencing", "fenced", "ledger read", "writing", "written", "entered", "ending", "ended")


class StopAt:
    """Stops the query at a step, and goes on once Spark has marked it as stopped."""

    def __init__(self, step: str, batch: int) -> None:
        self.at = (step, batch)
        self.started = threading.Event()
        self.query: StreamingQuery | None = None

    def __call__(self, step: str, batch: int) -> None:
        if (step, batch) != self.at:
            return
        self.started.wait()
        query = self.query
        assert query is not None
        threading.Thread(target=query.stop, daemon=True).start()
        chaos.await_truth(lambda: not query.isActive)


@pytest.mark.parametrize("batch", [0, 1], ids=["through tasks", "by the driver"])
@pytest.mark.parametrize("step", STEPS)
def test_a_query_stopped_at_a_step_has_no_exception_and_continues_later(
    pipeline: Pipeline, cluster: Cluster, step: str, batch: int
) -> None:
    if batch and step in STEPS[:3]:
        pytest.skip("only in the first batch of a run")
    pipeline.add(numbered(0, 8), numbered(1, 8))
    stop = StopAt(step, batch)
    stop.query = query = pipeline.start(pipeline.sink(on_step=stop))
    stop.started.set()
    failure = finish(query)
    print(step, batch, failure)
    assert failure is None
    assert pipeline.run() is None
    assert sorted(read_values(cluster, pipeline.topic)) == sorted(numbered(0, 8) + numbered(1, 8))
