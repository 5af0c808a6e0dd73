"""The broker and the Python of a task are killed.

See test_driver_deaths.py and test_executors.py for drivers and executors.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fencepost.client.admin import NewTopic
from fencepost.client.blocking import Cluster, connect
from tests.spark import chaos
from tests.spark.conftest import BrokerProcess, on_spark, read_values
from tests.spark.pipeline import Pipeline, finish, numbered

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = on_spark(300)


def test_the_sink_survives_a_broker_restart_at_any_step(
    spark: SparkSession, own_broker: BrokerProcess, tmp_path: Path
) -> None:
    """The broker is killed once in each batch after the first, each time at the next step."""
    steps = {1: "writing", 2: "written", 3: "entered", 4: "ending"}
    batches = [numbered(batch) for batch in range(5)]
    with connect(own_broker.bootstrap_servers) as cluster:
        cluster.create_topics([NewTopic("out", 3, 1)])
        pipeline = Pipeline(spark, own_broker.bootstrap_servers, tmp_path, "out")
        pipeline.add(*batches)
        restarts: dict[str, threading.Thread] = {}

        def bounce(reached: str, batch_id: int) -> None:
            if reached != steps.get(batch_id) or reached in restarts:
                return
            for thread in restarts.values():
                thread.join()
            own_broker.kill()
            restarts[reached] = threading.Thread(target=own_broker.start)
            restarts[reached].start()

        assert pipeline.run(pipeline.sink(on_step=bounce)) is None
        assert list(restarts) == list(steps.values())
        restarts["ending"].join()
        assert sorted(read_values(cluster, "out")) == sorted(chain(*batches))


def test_the_sink_survives_a_broker_killed_in_mid_write(
    spark: SparkSession, own_broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = str(tmp_path / "writing")
    with connect(own_broker.bootstrap_servers) as cluster:
        cluster.create_topics([NewTopic("out", 3, 1)])
        pipeline = Pipeline(spark, own_broker.bootstrap_servers, tmp_path, "out")
        pipeline.add(numbered(0), numbered(1))
        chaos.in_tasks(
            monkeypatch,
            chaos.AfterFirstWrite(pipeline.bootstrap, marker, chaos.wait_to_be_released),
        )
        query = pipeline.start()
        chaos.await_file(f"{marker}.reached")
        own_broker.kill()
        own_broker.start()
        Path(f"{marker}.released").touch()
        assert finish(query) is None
        assert sorted(read_values(cluster, "out")) == sorted(numbered(0) + numbered(1))


@pytest.mark.parametrize(("way", "version"), [("direct", 2), ("direct", 1), ("shuffled", 2)])
def test_a_batch_is_written_once_if_a_worker_is_killed_in_mid_write(
    spark: SparkSession,
    bootstrap: str,
    cluster: Cluster,
    new_topic: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
    version: int,
) -> None:
    chaos.speak_by_name(monkeypatch)
    if way == "shuffled":
        chaos.through_the_shuffle(monkeypatch)
    topic, marker = new_topic(), str(tmp_path / "killed-once")
    chaos.in_tasks(monkeypatch, chaos.AfterFirstWrite(bootstrap, marker, chaos.kill_worker))
    pipeline = Pipeline(spark, bootstrap, tmp_path, topic, f"{topic}-tv{version}")
    pipeline.add(numbered(0))
    assert pipeline.run() is None
    assert Path(marker).exists()
    assert sorted(read_values(cluster, pipeline.topic)) == sorted(numbered(0))
