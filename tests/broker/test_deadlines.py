"""Deadlines that share a timer, on a virtual loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fencepost.broker.deadlines import Deadlines
from tests.broker.virtual_loop import VirtualLoop

pytestmark = pytest.mark.interpreted


class Time:
    """A runtime that counts its timers."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.timers = 0

    def steady_ms(self) -> int:
        return round(self.loop.time() * 1000)

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Any:
        self.timers += 1
        return self.loop.call_later(delay_ms / 1000, callback)

    def advance(self, milliseconds: int) -> None:
        self.loop.run_until_complete(asyncio.sleep(milliseconds / 1000))
        self.loop.settle()


@pytest.fixture
def time() -> Iterator[Time]:
    loop = VirtualLoop()
    yield Time(loop)
    loop.close()


def deadlines(time: Time, delay_ms: int = 100) -> Deadlines:
    runtime: Any = time
    return Deadlines(runtime, delay_ms)


def test_each_deadline_passes_at_its_own_time(time: Time) -> None:
    found: list[tuple[str, int]] = []
    limits, began_ms = deadlines(time), time.steady_ms()
    for name in "abc":
        limits.set(lambda name=name: found.append((name, time.steady_ms() - began_ms)))  # type: ignore[misc]
        time.advance(30)
    time.advance(1_000)
    assert found == [("a", 100), ("b", 130), ("c", 160)]


def test_a_cancelled_deadline_never_passes(time: Time) -> None:
    found: list[str] = []
    limits = deadlines(time)
    first = limits.set(lambda: found.append("a"))
    limits.set(lambda: found.append("b"))
    limits.cancel(first)
    limits.cancel(first)
    time.advance(1_000)
    assert found == ["b"]


def test_a_thousand_deadlines_that_are_cancelled_take_one_timer(time: Time) -> None:
    limits = deadlines(time)
    for _ in range(1_000):
        limits.cancel(limits.set(lambda: None))
    assert time.timers == 1
    time.advance(1_000)
    assert time.timers == 1


def test_a_deadline_may_set_and_cancel_others_when_it_passes(time: Time) -> None:
    found: list[str] = []
    limits = deadlines(time)

    def first() -> None:
        found.append("first")
        limits.cancel(second)
        limits.set(lambda: found.append("third"))

    limits.set(first)
    second = limits.set(lambda: found.append("second"))
    time.advance(100)
    assert found == ["first"]
    time.advance(100)
    assert found == ["first", "third"]
    assert time.timers == 2
