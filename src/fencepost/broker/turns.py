"""A request that asks for much is worked off in several turns of the loop: others are served in between."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Final, TypeVar

from fencepost.broker.waiting import Parked

if TYPE_CHECKING:
    from fencepost.broker.runtime import Timers

T = TypeVar("T")
Asked = TypeVar("Asked")
Told = TypeVar("Told")

TURN_SECONDS: Final = 0.005
"""How long one request may work in one turn."""


class Turn:
    """One turn of the loop, from now on."""

    def __init__(self) -> None:
        self._end = perf_counter() + TURN_SECONDS

    def is_over(self) -> bool:
        """Whether the request should yield to the others."""
        return perf_counter() >= self._end


def in_turns(
    timers: Timers, steps: Iterator[None], reply: T, *, holds_followers: bool = False
) -> T | Parked:
    """Runs the steps that fill in the reply: all of them now, or some now and the others in later turns.

    `holds_followers` keeps later requests of the same connection from changing what this one still
    has to look at.
    """
    parked = Parked()
    if run_in_turns(timers, steps, lambda: parked.answer(reply)):
        return reply
    parked.holds_followers = holds_followers
    return parked


def fill(told: list[Told], asked: Iterable[Asked], tell: Callable[[Asked], Told]) -> Iterator[None]:
    """The steps of a reply that has one part for each thing that was asked for; a single one is told at once."""
    for number, each in enumerate(asked):
        if number:
            yield
        told.append(tell(each))


def run_in_turns(timers: Timers, steps: Iterator[None], done: Callable[[], None]) -> bool:
    """Calls `done` after the last step, now or in a later turn; whether it was now."""
    if _run_some(steps):
        done()
        return True
    timers.call_later(0, partial(_go_on, timers, steps, done))
    return False


def _go_on(timers: Timers, steps: Iterator[None], done: Callable[[], None]) -> None:
    # No closure: one that names itself keeps all that it uses until the next garbage collection.
    if _run_some(steps):
        done()
    else:
        timers.call_later(0, partial(_go_on, timers, steps, done))


def _run_some(steps: Iterator[None]) -> bool:
    """Whether that was all."""
    turn = Turn()
    return not any(turn.is_over() for _ in steps)
