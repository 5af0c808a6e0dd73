"""Large requests are served over several turns of the loop, and others are served in between."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, TypeVar

from fencepost.broker.waiting import Parked

if TYPE_CHECKING:
    from fencepost.broker.runtime import Timers

T = TypeVar("T")
Item = TypeVar("Item")
Part = TypeVar("Part")

# Not Final: a compiled module holds the value of a constant, and tests change these.
TURN_SECONDS = 0.005
"""How long one kind of work may hold the loop before others get a turn."""
SHORT_TURN_SECONDS = 0.002
"""The same for work that many requests cause at once: appending, opening and counting."""


class Turn:
    """The rest of this turn of the loop, for one kind of work."""

    def __init__(self, *, is_short: bool = False) -> None:
        # loop.time() does not move within a turn.
        self._end = perf_counter() + (SHORT_TURN_SECONDS if is_short else TURN_SECONDS)

    def is_over(self) -> bool:
        """Whether the work should yield to others."""
        return perf_counter() >= self._end


def in_turns(
    timers: Timers, steps: Iterator[None], reply: T, *, holds_followers: bool = False
) -> T | Parked:
    """Runs the steps that fill in the reply, over later turns of the loop if they take long.

    `holds_followers` keeps later requests of the same connection from changing the state that this
    one still has to read.
    """
    parked = Parked()
    if run_in_turns(timers, steps, partial(parked.answer, reply)):
        return reply
    parked.holds_followers = holds_followers
    return parked


def fill(
    parts: list[Part], items: Iterable[Item], describe: Callable[[Item], Part]
) -> Iterator[None]:
    """The steps of a reply with one part per item of the request; a single part takes no turn."""
    for number, item in enumerate(items):
        if number:
            yield
        parts.append(describe(item))


def run_in_turns(timers: Timers, steps: Iterator[None], done: Callable[[], None]) -> bool:
    """Calls `done` after the last step, now or in a later turn; returns whether it was now."""
    if _run_some(steps):
        done()
        return True
    timers.call_later(0, partial(_go_on, timers, steps, done))
    return False


def _go_on(timers: Timers, steps: Iterator[None], done: Callable[[], None]) -> None:
    # Not a closure: one that refers to itself is a cycle, which only the garbage collector frees.
    if _run_some(steps):
        done()
    else:
        timers.call_later(0, partial(_go_on, timers, steps, done))


def _run_some(steps: Iterator[None]) -> bool:
    """Returns whether all steps are done."""
    turn = Turn()
    for _ in steps:  # noqa: SIM110 - a generator expression is slow where this is compiled.
        if turn.is_over():
            return False
    return True
