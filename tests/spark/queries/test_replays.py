"""Goal: a query that repeats a batch writes what it would have written without a failure.

Method: every query of `cases.py` runs twice. In the first run its second batch fails after it is
written: it is aborted and written again, through the shuffle. That run ends with the batch
committed and Spark not told, so the second run drains it and goes on. The plan of the batch has run
three times then, and the state of the query must be that of one run.
"""

from __future__ import annotations

import pytest

from fencepost.client.blocking import Cluster
from fencepost.spark.failures import SinkFailed
from tests.spark.conftest import on_spark, read_values
from tests.spark.pipeline import Pipeline
from tests.spark.queries.cases import CASES, Case

pytestmark = on_spark()


class FailingHook:
    """Fails the second batch when it is written, and then the run when the batch is committed."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        """The steps of the second batch."""

    def __call__(self, step: str, batch_id: int) -> None:
        if batch_id != 1:
            return
        self.steps.append(step)
        if step == "written" and self.steps.count("written") == 1:
            raise SinkFailed("the attempt failed")
        if step == "ended":
            raise RuntimeError("the driver died")


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_repeated_batch_is_written_once_and_changes_the_state_once(
    pipeline: Pipeline, cluster: Cluster, case: Case
) -> None:
    pipeline.add(*case.files)
    hook, steps = FailingHook(), []
    with case.in_session(pipeline.spark):
        failure = pipeline.run(pipeline.sink(on_step=hook), case.shape, case.mode)
        assert failure is not None
        assert "the driver died" in failure
        assert hook.steps.count("writing") == 2
        sink = pipeline.sink(on_step=lambda step, batch_id: steps.append((step, batch_id)))
        assert pipeline.run(sink, case.shape, case.mode) is None
    assert ("draining", 1) in steps
    assert ("writing", 1) not in steps
    assert sorted(read_values(cluster, pipeline.topic)) == sorted(case.expected)
