"""Processes that are killed for good: the driver, an executor's Python, and the broker."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fencepost.client.admin import NewTopic
from fencepost.client.blocking import Cluster, connect
from tests.spark.conftest import BrokerProcess, environment, read_values, require_spark
from tests.spark.test_sink import Pipeline, numbered

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("default"),
]

PROGRAM = str(Path(__file__).with_name("dying_query.py"))


def test_a_driver_that_is_killed_again_and_again_loses_and_doubles_nothing(
    bootstrap: str, cluster: Cluster, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    require_spark()
    topic = new_topic()
    (tmp_path / "in").mkdir()
    for batch in range(4):
        (tmp_path / "in" / f"{batch}.txt").write_text("\n".join(numbered(batch)))
    deaths = [("written", 1), ("sent", 2), ("ended", 3), ("never", -1)]
    for step, batch in deaths:
        arguments = [bootstrap, str(tmp_path), topic, step, str(batch)]
        ended = subprocess.run(
            [sys.executable, PROGRAM, *arguments],
            env=environment(),
            capture_output=True,
            check=False,
        )
        expected = 0 if step == "never" else -signal.SIGKILL
        assert ended.returncode == expected, ended.stderr.decode()[-3000:]
    expected_rows = [line for batch in range(4) for line in numbered(batch)]
    assert sorted(read_values(cluster, topic)) == sorted(expected_rows)


@pytest.mark.parametrize("step", ["writing", "written", "entered", "ending"])
def test_a_broker_that_is_killed_and_comes_back_is_waited_for(
    spark: SparkSession, own_broker: BrokerProcess, tmp_path: Path, step: str
) -> None:
    with connect(own_broker.bootstrap_servers) as cluster:
        cluster.create_topics([NewTopic("out", 3, 1)])
        pipeline = Pipeline(spark, own_broker.bootstrap_servers, tmp_path, "out")
        pipeline.add(numbered(0))
        pipeline.add(numbered(1))
        threads: list[threading.Thread] = []

        def bounce(reached: str, batch_id: int) -> None:
            if (reached, batch_id) != (step, 1):
                return
            own_broker.kill()
            threads.append(threading.Thread(target=own_broker.start))
            threads[-1].start()

        assert pipeline.run(pipeline.sink(on_step=bounce)) is None
        threads[0].join()
        assert sorted(read_values(cluster, "out")) == sorted(numbered(0) + numbered(1))


def test_an_executor_that_is_killed_in_mid_write_is_made_good(
    spark: SparkSession,
    bootstrap: str,
    cluster: Cluster,
    new_topic: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from pyspark import cloudpickle

    from fencepost.spark import job

    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
    marker = str(tmp_path / "killed-once")
    genuine = job._delivering_task

    def killing(plan: Any) -> Any:
        deliver = genuine(plan)

        def run(batches: Any) -> Any:
            import os

            reports = list(deliver(batches))
            if not Path(marker).exists():
                Path(marker).touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return iter(reports)

        return run

    monkeypatch.setattr(job, "_delivering_task", killing)
    pipeline = Pipeline(spark, bootstrap, tmp_path, new_topic())
    pipeline.add(numbered(0))
    assert pipeline.run() is None
    assert Path(marker).exists()
    assert sorted(read_values(cluster, pipeline.topic)) == sorted(numbered(0))
