"""A process that stood still closes the connections from before, and those that waited in it."""

from __future__ import annotations

from fencepost.cluster.broker.standstill import BACKLOG_SECONDS, LOOK_SECONDS, Standstill
from tests.broker.virtual_loop import VirtualLoop


class Slow(VirtualLoop):
    """A loop whose process can be stopped: its time goes on, its timers do not run."""

    def __init__(self) -> None:
        super().__init__()
        self._stood = 0.0

    def time(self) -> float:
        return super().time() + self._stood

    def stand_still(self, seconds: float) -> None:
        self._stood += seconds


def gaps_after(*pauses: float) -> list[tuple[float, float]]:
    """The gaps that are noticed, with what is left of the time in which connections are stale."""
    loop = Slow()
    found: list[tuple[float, float]] = []
    watch = Standstill(loop, lambda gap, until: found.append((gap, until - loop.time())))
    watch.start()
    for pause in pauses:
        loop.stand_still(pause)
        end = loop.create_future()
        loop.call_later(3 * LOOK_SECONDS, end.set_result, None)
        loop.run_until_complete(end)
    watch.stop()
    loop.close()
    return found


def test_a_gap_of_more_than_a_second_is_noticed_once() -> None:
    ((gap, left),) = gaps_after(0.0, 5.0, 0.0)
    assert 5.0 <= gap <= 5.0 + 2 * LOOK_SECONDS
    assert abs(left - BACKLOG_SECONDS) < 1e-6


def test_a_busy_loop_is_not_taken_for_one_that_stood_still() -> None:
    assert gaps_after(0.3, 0.6) == []
