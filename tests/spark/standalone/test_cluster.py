"""Goal: a machine of the cluster is killed with everything that it has started.

That a whole cluster leaves nothing behind is checked in `test_applications.py`.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.spark import chaos
from tests.spark.standalone.cluster import Machine


def test_a_process_that_leaves_its_session_is_killed_with_its_machine(tmp_path: Path) -> None:
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
