"""The garbage collector of the broker: long-lived objects are frozen, and checked as they grow.

Nothing of the broker is in a cycle (races/test_freed.py). If something is, only the hourly
collection of frozen objects frees it.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fencepost.broker import process

HANDLED = (signal.SIGTERM, signal.SIGINT)
AN_HOUR_SECONDS = 3_600


class Cycle:
    """Garbage that reference counting cannot free."""

    def __init__(self) -> None:
        self.itself = self


class Timers:
    """Notes what is scheduled, in place of a loop."""

    def __init__(self) -> None:
        self.scheduled: list[tuple[float, Callable[..., None], tuple[Any, ...]]] = []

    def call_later(self, delay: float, callback: Callable[..., None], *arguments: Any) -> None:
        self.scheduled.append((delay, callback, arguments))

    def run_next(self) -> None:
        _, callback, arguments = self.scheduled.pop(0)
        callback(*arguments)


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """The collector and the signals as they were before the test."""
    thresholds, callbacks = gc.get_threshold(), list(gc.callbacks)
    handlers = {number: signal.getsignal(number) for number in HANDLED}
    yield
    gc.callbacks[:] = callbacks
    gc.set_threshold(*thresholds)
    gc.unfreeze()
    gc.freeze()  # As after the collection of the tests.
    gc.enable()
    for number, handler in handlers.items():
        signal.signal(number, handler)


def frozen_garbage() -> weakref.ref[Cycle]:
    """A cycle that became garbage after it was frozen."""
    cycle = Cycle()
    found = weakref.ref(cycle)
    gc.collect()  # What survives is frozen.
    del cycle
    gc.collect()
    assert found() is not None, "the collector does not look at what is frozen"
    return found


def check_now(count_before: int) -> Timers:
    timers = Timers()
    process._collect_frozen(timers, count_before)  # type: ignore[arg-type]
    return timers


def test_garbage_among_frozen_objects_is_collected_when_they_have_doubled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process, "FEWEST_FROZEN", 0)
    process.freeze_garbage_collector()
    garbage = frozen_garbage()
    timers = check_now(gc.get_freeze_count() // 3)
    assert garbage() is None
    assert gc.get_freeze_count() > 0, "what is left is frozen again"
    (again,) = timers.scheduled
    assert again[0] == AN_HOUR_SECONDS
    garbage = frozen_garbage()
    timers.run_next()  # Nothing has doubled since.
    assert garbage() is not None
    assert len(timers.scheduled) == 1, "the next check follows in any case"


@pytest.mark.parametrize(("fewest", "share"), [(0, 1), (10**9, 3)])
def test_a_broker_whose_size_is_stable_or_small_never_stops_to_collect_everything(
    monkeypatch: pytest.MonkeyPatch, fewest: int, share: int
) -> None:
    monkeypatch.setattr(process, "FEWEST_FROZEN", fewest)
    process.freeze_garbage_collector()
    garbage = frozen_garbage()
    timers = check_now(gc.get_freeze_count() // share)
    assert garbage() is not None
    assert len(timers.scheduled) == 1


def test_a_serving_broker_looks_at_its_frozen_objects_regularly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "THOROUGH_SECONDS", 0.01)
    monkeypatch.setattr(process, "FEWEST_FROZEN", 0)
    kept: list[object] = []

    def announce(address: str) -> None:
        kept.extend([] for _ in range(3 * gc.get_freeze_count()))
        garbage = frozen_garbage()
        asyncio.get_running_loop().call_soon(stop_when_freed, garbage)

    def stop_when_freed(garbage: weakref.ref[Cycle]) -> None:
        if garbage() is None:
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            asyncio.get_running_loop().call_later(0.01, stop_when_freed, garbage)

    assert process.run(listen="127.0.0.1:0", data=str(tmp_path / "data"), announce=announce) == 0
