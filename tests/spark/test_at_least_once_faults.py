"""Goal: without a transaction, no fault of an executor or a broker loses a row.

Method: Spark with executors as processes, dynamic allocation, and speculation, which a transaction
does not allow: Spark may repeat any task. A task fails with everything written, an
executor is killed in mid-write, and the broker is killed in mid-batch and comes back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fencepost.client.admin import NewTopic
from fencepost.client.blocking import Cluster, connect
from fencepost.spark.sink.sink import TransactionalSink
from tests.spark import chaos
from tests.spark.conftest import BrokerProcess, Sessions, on_spark, read_values
from tests.spark.pipeline import Pipeline, finish, numbered

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = on_spark(300)

SETTINGS = {
    "spark.speculation": "true",
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.minExecutors": "2",
    "spark.dynamicAllocation.maxExecutors": "2",
}
ROWS = numbered(0) + numbered(1)


@pytest.fixture
def pipeline(
    sessions: Sessions, bootstrap: str, tmp_path: Path, new_topic: Callable[..., str]
) -> Pipeline:
    session = sessions.session("local-cluster[2,1,1024]", SETTINGS)
    pipeline = Pipeline(session, bootstrap, tmp_path, new_topic(8))
    pipeline.add(numbered(0), numbered(1))
    return pipeline


def plain_sink(pipeline: Pipeline, **changes: Any) -> TransactionalSink:
    fields: dict[str, Any] = {"topic": pipeline.topic, "guarantee": "at-least-once"}
    return TransactionalSink(pipeline.bootstrap, **fields | changes)


def in_two_tasks(lines: DataFrame) -> DataFrame:
    return lines.selectExpr("value AS key", "value").repartition(2)


def counted(cluster: Cluster, topic: str) -> Counter[str]:
    return Counter(read_values(cluster, topic))


def test_a_task_that_failed_with_everything_written_is_repeated_and_duplicates_its_rows_only(
    pipeline: Pipeline, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = pipeline.folder / "marker"
    chaos.in_unfenced_tasks(monkeypatch, chaos.FailOnce(str(marker)))
    sink = plain_sink(pipeline)
    assert pipeline.run(sink, in_two_tasks) is None
    assert marker.exists()
    found = counted(cluster, pipeline.topic)
    assert found.keys() == set(ROWS)
    doubled = [value for value, times in found.items() if times > 1]
    assert 0 < len(doubled) < 40
    assert set(doubled) < set(numbered(0))
    # Spark has repeated the task, so the sink had no reason to repeat the job.
    assert [one.attempts for one in sink.receipts] == [1, 1]


def test_a_killed_executor_loses_nothing(
    pipeline: Pipeline, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = pipeline.folder / "marker"
    act = chaos.AfterFirstUnfencedWrite(pipeline.bootstrap, str(marker), chaos.kill_executor)
    chaos.in_unfenced_tasks(monkeypatch, act)
    assert pipeline.run(plain_sink(pipeline), in_two_tasks) is None
    assert marker.exists()
    assert counted(cluster, pipeline.topic).keys() == set(ROWS)


def test_a_broker_that_is_killed_in_mid_batch_and_comes_back_has_every_row_once(
    pipeline: Pipeline, own_broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.bootstrap = own_broker.bootstrap_servers
    with connect(own_broker.bootstrap_servers) as cluster:
        cluster.create_topics([NewTopic(pipeline.topic, 8, 1)])
        marker = str(pipeline.folder / "marker")
        act = chaos.AfterFirstUnfencedWrite(pipeline.bootstrap, marker, chaos.wait_to_be_released)
        chaos.in_unfenced_tasks(monkeypatch, act)
        query = pipeline.start(plain_sink(pipeline), in_two_tasks)
        chaos.await_file(f"{marker}.reached")
        own_broker.kill()
        own_broker.start()
        Path(f"{marker}.released").touch()
        assert finish(query) is None
        # The requests were repeated by the task that sent them, and brokers know duplicates.
        assert counted(cluster, pipeline.topic) == Counter(ROWS)
