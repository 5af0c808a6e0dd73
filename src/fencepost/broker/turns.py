"""Large requests are served over several turns of the loop, and others are served in between.

A request is served at once, for at most `ELEMENTS_PER_TURN` of its elements and `TURN_SECONDS`.
What is left waits in a line that all requests of a node share: each turn of the loop serves the
next of them for one turn. So the loop stands still for one turn at a time, however many clients
send large requests. Each element is decided on the state at its turn.

A request with 50,000 items takes some 10 MB once it is decoded. So with `LONG_LINE` in the line,
further large ones wait as the bytes that they are (`network/connection.py`). Small ones, and those
that carry records, must not wait behind these: they join, and with `MAX_WAITING` in the line are
served to their ends at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from fencepost.broker.waiting import Parked

if TYPE_CHECKING:
    from fencepost.broker.runtime import Timers

Steps = Iterator[int | None]
"""Each step is one element of a request, or yields how many it was."""

T = TypeVar("T")
Item = TypeVar("Item")
Part = TypeVar("Part")

# Not Final: a compiled module holds the value of a constant, and tests change these.
TURN_SECONDS = 0.005
"""How long one kind of work may hold the loop before others get a turn."""
SHORT_TURN_SECONDS = 0.002
"""The same for work that many requests cause at once: appending, opening and counting."""
ELEMENTS_PER_TURN = 1_000
"""Elements of one request that are served in one turn, at about 5 microseconds each."""
LONG_LINE: Final = 32
"""Requests in the line: some 320 MB if all are as large as they may be."""
MAX_WAITING: Final = 128
"""The same with small ones, of up to 3 MB, and with those that carry records."""


class Turn:
    """The rest of this turn of the loop, for one kind of work."""

    def __init__(self, *, is_short: bool = False) -> None:
        # loop.time() does not move within a turn.
        self._end = perf_counter() + (SHORT_TURN_SECONDS if is_short else TURN_SECONDS)

    def is_over(self) -> bool:
        """Whether the work should yield to others."""
        return perf_counter() >= self._end


class Line:
    """The work of one node that goes on in later turns of the loop."""

    def __init__(self, timers: Timers) -> None:
        self._timers: Final = timers
        self._waiting: Final[deque[_Work]] = deque()
        self._held_back: Final[dict[Callable[[], None], None]] = {}
        self._is_scheduled = False

    @property
    def is_long(self) -> bool:
        """Whether no more large requests should be decoded, which would wait here."""
        return len(self._waiting) >= LONG_LINE

    @property
    def is_full(self) -> bool:
        """Whether nothing more may wait here."""
        return len(self._waiting) >= MAX_WAITING

    def when_shorter(self, callback: Callable[[], None]) -> None:
        """Calls back when there is room, first come, first served."""
        self._held_back[callback] = None
        self._schedule()

    def join(self, work: _Work) -> None:
        """The work goes on when those before it have had a turn each."""
        self._waiting.append(work)
        self._schedule()

    def _schedule(self) -> None:
        if (self._waiting or self._held_back) and not self._is_scheduled:
            self._is_scheduled = True
            self._timers.call_later(0, self._serve_next)

    def _serve_next(self) -> None:
        self._is_scheduled = False
        try:
            if self._waiting:
                work = self._waiting.popleft()
                if not work.run_some():
                    self._waiting.append(work)
            if self._held_back and not self.is_long:
                callback = next(iter(self._held_back))
                del self._held_back[callback]
                callback()
        finally:
            self._schedule()  # A failure of one request does not stop the others.


class HasLine(Protocol):
    """What runs work in turns: the runtime of a node."""

    @property
    def line(self) -> Line: ...


class _Work:
    """Steps, and what follows the last one."""

    __slots__ = ("_done", "_steps")

    def __init__(self, steps: Steps, done: Callable[[], None]) -> None:
        self._steps: Steps | None = steps
        self._done: Callable[[], None] | None = done

    def run_some(self) -> bool:
        """Runs steps for one turn; returns whether there are no more."""
        steps, done = self._steps, self._done
        if steps is None or done is None:
            return True
        if not _run_some(steps):
            return False
        self.drop()
        done()
        return True

    def drop(self) -> None:
        """Runs no more steps, and frees what they refer to: nobody waits for the reply."""
        self._steps = self._done = None


def in_turns(
    runtime: HasLine, steps: Steps, reply: T, *, holds_followers: bool = False
) -> T | Parked:
    """Runs the steps that fill in the reply, over later turns of the loop if they take long.

    `holds_followers` keeps later requests of the same connection from changing the state that this
    one still has to read. The steps change nothing: they end when the client leaves.
    """
    if _run_some(steps):
        return reply
    parked = Parked(holds_followers=holds_followers)
    _continue(runtime, steps, partial(parked.answer, reply), parked)
    return parked


def then(runtime: HasLine, steps: Steps, go_on: Callable[[], object]) -> object:
    """Runs steps that decide about the elements of a request, then goes on with what they found.

    `go_on` returns the reply, or a `Parked`. The steps change nothing: they end when the client
    leaves, and `go_on` is not called.
    """
    if _run_some(steps):
        return go_on()
    parked = Parked(holds_followers=True)
    _continue(runtime, steps, partial(_follow, parked, go_on), parked)
    return parked


def _follow(parked: Parked, go_on: Callable[[], object]) -> None:
    parked.follow(go_on())


def _continue(runtime: HasLine, steps: Steps, done: Callable[[], None], parked: Parked) -> None:
    if runtime.line.is_full:
        _finish(steps, done)
        return
    work = _Work(steps, done)
    parked.when_abandoned(work.drop)
    runtime.line.join(work)


def _finish(steps: Steps, done: Callable[[], None]) -> None:
    for _ in steps:
        pass
    done()


def fill(
    parts: list[Part], items: Iterable[Item], describe: Callable[[Item], Part]
) -> Iterator[None]:
    """The steps of a reply with one part per item of the request; a single part takes no turn."""
    for number, item in enumerate(items):
        if number:
            yield
        parts.append(describe(item))


def run_in_turns(runtime: HasLine, steps: Steps, done: Callable[[], None]) -> bool:
    """Calls `done` after the last step, now or in a later turn; returns whether it was now.

    The steps may change something: they run to their end even if the client leaves.
    """
    if runtime.line.is_full:
        _finish(steps, done)
        return True
    if _run_some(steps):
        done()
        return True
    runtime.line.join(_Work(steps, done))
    return False


def _run_some(steps: Steps) -> bool:
    """Returns whether all steps are done."""
    turn, left = Turn(), ELEMENTS_PER_TURN
    for count in steps:
        left -= 1 if count is None else count
        if left <= 0 or turn.is_over():
            return False
    return True
