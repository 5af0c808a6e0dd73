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


@pytest.mark.parametrize(
    ("step", "batch"),
    [("written", 0), ("writing", 1)],
    ids=["after the tasks", "before the driver collects"],
)
def test_a_query_stopped_in_a_batch_has_no_exception_and_continues_later(
    pipeline: Pipeline, cluster: Cluster, step: str, batch: int
) -> None:
    pipeline.add(numbered(0, 8), numbered(1, 8))
    stop = StopAt(step, batch)
    stop.query = query = pipeline.start(pipeline.sink(on_step=stop))
    stop.started.set()
    assert finish(query) is None
    # No transaction is left open until its timeout.
    view = cluster.describe_transactions([pipeline.transactional_id])[pipeline.transactional_id]
    assert view is not None
    assert view.state != "Ongoing"
    assert pipeline.run() is None
    assert sorted(read_values(cluster, pipeline.topic)) == sorted(numbered(0, 8) + numbered(1, 8))
