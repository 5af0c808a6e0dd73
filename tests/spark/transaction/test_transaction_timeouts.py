"""A transaction that is open for longer than its timeout, on a broker that aborts it."""

from __future__ import annotations

import pytest

from fencepost.client.blocking import Cluster
from tests.spark import chaos
from tests.spark.conftest import on_spark, read_values
from tests.spark.pipeline import Pipeline, failed, numbered

pytestmark = on_spark()

SHORT = {"kafka.transaction.timeout.ms": "1000"}


@pytest.mark.parametrize(
    ("version", "step"),
    [(2, "written"), (2, "entered"), (2, "in a task"), (1, "written"), (1, "ending")],
)
def test_a_batch_that_exceeds_the_transaction_timeout_stops_the_query_with_a_clear_message(
    pipeline: Pipeline, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, step: str, version: int
) -> None:
    chaos.speak_by_name(monkeypatch)
    name = pipeline.transactional_id = f"{pipeline.transactional_id}-tv{version}"
    attempts = []

    slow = chaos.WaitForState(pipeline.bootstrap, name, "CompleteAbort")

    def wait(reached: str, batch_id: int) -> None:
        attempts.extend([batch_id] if reached == "writing" else [])
        if reached == step:
            slow()

    if step == "in a task":
        marker = str(pipeline.folder / "slow")
        chaos.in_tasks(monkeypatch, chaos.AfterFirstWrite(pipeline.bootstrap, marker, slow))
    pipeline.add(numbered(0))
    failure = failed(pipeline.run(pipeline.sink(on_step=wait, options=SHORT)))
    assert "open for longer than kafka.transaction.timeout.ms (1000), and the brokers" in failure
    assert attempts == [0]
    assert read_values(cluster, pipeline.topic) == []
    assert pipeline.run() is None
    assert sorted(read_values(cluster, pipeline.topic)) == sorted(numbered(0))
