"""Goal: the cluster of the other tests here loses what it is told to lose, and leaves nothing."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.spark import chaos
from tests.spark.conftest import on_spark, require_spark
from tests.spark.standalone.cluster import StandaloneCluster

pytestmark = on_spark(600)


def test_workers_are_killed_added_and_decommissioned_and_nothing_is_left(tmp_path: Path) -> None:
    require_spark()
    with StandaloneCluster(tmp_path, workers=2) as cluster:
        first, second = cluster.workers
        cluster.await_workers(2)
        first.kill()
        cluster.await_workers(1)
        second.decommission()
        cluster.await_workers(0)
        assert second.is_alive
        first.start()
        cluster.await_workers(1)
        pids = [*first.pids(), *second.pids(), *cluster.master.pids()]
    assert len(pids) == 3
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_a_process_that_leaves_its_session_is_killed_with_its_machine(tmp_path: Path) -> None:
    from tests.spark.standalone.cluster import Machine

    ready = tmp_path / "ready"
    script = f"setsid sh -c 'touch {ready}; sleep 300' & wait"
    machine = Machine(["sh", "-c", script], tmp_path)
    machine.start()
    try:
        chaos.await_file(ready)
        pids = machine.pids()
        assert len(pids) >= 2
        machine.kill()
        assert not machine.pids()
        assert not machine.is_alive
    finally:
        for pid in machine.pids():
            os.kill(pid, signal.SIGKILL)
