"""The pings beside a large operation: what they count, and that every operation runs."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import fencepost
from bench.load import Scale
from bench.loads import stalls
from bench.pinger import INTERVAL_SECONDS, Pings, pinging


class Smallest(Scale):
    """A tenth of what a quick run does."""

    def of(self, full: int, quick: int) -> int:
        return max(1, quick // 10)


def test_a_stall_counts_for_every_ping_that_was_due_during_it() -> None:
    stop_seconds = 0.2
    with fencepost.Broker() as broker, pinging(broker.bootstrap_servers, os.getpid()) as pings:
        broker.call(lambda _: time.sleep(stop_seconds))
    assert pings.worst >= stop_seconds * 1000 * 0.9
    late = [wait for wait in pings.waits if wait > INTERVAL_SECONDS * 1000]
    assert len(late) >= stop_seconds / INTERVAL_SECONDS / 2


def test_the_99th_percentile_is_where_the_slowest_hundredth_begins() -> None:
    pings = Pings()
    pings.waits = [float(n) for n in range(1, 101)]
    assert (pings.p99, pings.worst) == (100.0, 100.0)
    pings.waits = [1.0] * 199 + [70.0]
    assert (pings.p99, pings.worst) == (1.0, 70.0)


@pytest.mark.parametrize("name", [name for name in stalls.OPERATIONS if name != "nothing"])
def test_every_operation_runs(name: str, tmp_path: Path) -> None:
    with fencepost.Broker(data=tmp_path / "data") as running:
        broker: Any = SimpleNamespace(
            bootstrap_servers=running.bootstrap_servers, data=tmp_path / "data"
        )
        with ExitStack() as ends, stalls.Talk(broker) as talk:
            _, prepare = stalls.OPERATIONS[name]
            prepare(stalls.Stage(broker, talk, Smallest(quick=True), ends))()


def test_every_operation_has_its_measures() -> None:
    names = {measure.name for measure in stalls.LOAD.measures}
    assert {
        f"{kind} {name}" for name in stalls.OPERATIONS for kind in ("p99", "worst", "busy")
    } == (names)
