"""The time of an embedded broker, which a test moves forwards.

    broker.clock.advance(minutes=15)      # transaction.timeout.ms has passed
    broker.clock.at("2030-01-01T00:00Z")

The broker's time is the real one plus an offset, which stays over `restart()`; `restore(snapshot)`
takes it back to that of the snapshot. There is no frozen clock: clients have timers of their own,
which live in real time. What moves: timeouts of transactions, expiry of transactional ids,
producers and committed offsets, retention, compaction, the timestamps that the broker writes, and
the sessions of members whose connection is closed. What does not: the waits of fetches and other
requests, retries, rebalances, and the sessions of members with a connection, whose heartbeats come
in real time (`group(name).expire(member)` ends one).

An advance stops at each moment at which a transaction times out, and aborts it there; sessions,
expiry, retention and compaction follow once, at the end, however many of their periods have passed.
So a week costs what a second costs. It returns when all that follows is done and durable.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, TypeVar

from fencepost.base.arguments import checked
from fencepost.base.failures import ConfigError, FencepostError
from fencepost.testing.crashing import BrokerCrashed

if TYPE_CHECKING:
    from fencepost.broker.node import Node

T = TypeVar("T")

_SETTLE_SECONDS: Final = 30.0
"""Longer than markers take, unless a partition cannot be written."""

_MILLISECOND: Final = timedelta(milliseconds=1)


class MovedClock:
    """The real time plus an offset: the clock seam of the broker."""

    def __init__(self) -> None:
        self.offset_ms = 0

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self.offset_ms


@checked
class Clock:
    """The time of one broker."""

    def __init__(
        self,
        moved: MovedClock,
        call: Callable[[Callable[[Node], T]], T],
        refuse: Callable[[], None],
    ) -> None:
        self._moved = moved
        self._call: Callable[..., object] = call
        self._refuse = refuse
        self._changing = threading.Lock()

    def __repr__(self) -> str:
        return f"<clock at {self.now.isoformat(timespec='seconds')}>"

    @property
    def now(self) -> datetime:
        """The broker's time, in UTC."""
        return datetime.fromtimestamp(self._moved.now_ms() / 1000, UTC)

    def advance(
        self,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        milliseconds: float = 0,
    ) -> None:
        """Lets so much time pass; returns when what is due is done and durable."""
        try:
            passed = timedelta(
                days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=milliseconds
            )
            _ = self.now + passed
        except OverflowError as problem:
            raise ConfigError("So much time cannot pass: the year is at most 9999.") from problem
        if passed < timedelta(0):
            back = f"{-passed.total_seconds():g} s"
            raise ConfigError(f"Time passes forwards only: it cannot go back by {back}.")
        self._refuse()
        with self._changing:
            # A timeout has passed when it is exceeded, and time is counted in whole milliseconds:
            # what began within this one times out, too.
            target_ms = self._moved.now_ms() + passed // _MILLISECOND + 1
            deadline = time.monotonic() + _SETTLE_SECONDS
            while not self._arrives_at(target_ms):
                if time.monotonic() > deadline:
                    raise self._stuck("what a crash interrupts again and again")

    def at(self, moment: datetime | str) -> None:
        """Lets time pass until this moment, a datetime or ISO 8601; without a zone it is UTC."""
        if isinstance(moment, str):
            try:
                moment = datetime.fromisoformat(moment)
            except ValueError as problem:
                raise ConfigError(
                    f"{moment!r} is not a time such as 2030-01-01T12:00Z."
                ) from problem
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        left = moment - self.now
        if left < timedelta(0):
            raise ConfigError(
                f"Time passes forwards only: it is {self.now.isoformat()}, after "
                f"{moment.isoformat()}."
            )
        self.advance(seconds=left.total_seconds())

    # -- in steps

    def _arrives_at(self, target_ms: int) -> bool:
        """False if the broker has crashed on the way, at a step of an abort, and has recovered."""
        try:
            self._advance_to(target_ms)
        except BrokerCrashed:
            self._refuse()  # Waits for it to recover by itself, or says that it will not.
            return False
        return True

    def _advance_to(self, target_ms: int) -> None:
        since = self._moved.offset_ms
        self._settle()
        deadline = time.monotonic() + _SETTLE_SECONDS
        while self._call(lambda node: self._next_timeout(node, target_ms)):
            self._settle()
            if time.monotonic() > deadline:
                raise self._stuck("the end of a transaction")
        done = threading.Event()
        self._call(lambda node: self._arrive(node, target_ms, since, done))
        if not done.wait(_SETTLE_SECONDS):
            raise self._stuck("expiry, retention or compaction")
        self._settle()

    def _next_timeout(self, node: Node, target_ms: int) -> bool:
        """Goes to the next moment at which a transaction times out; False if there is none."""
        due_ms = node.transactions.clock.earliest_timeout_ms()
        if due_ms is None or due_ms > target_ms:
            return False
        self._go_to(due_ms)
        node.transactions.clock.abort_timed_out()
        return True

    def _arrive(self, node: Node, target_ms: int, since: int, done: threading.Event) -> None:
        self._go_to(target_ms)
        # Their deadlines are on the real clock, on which the heartbeats of clients come.
        node.groups.pass_time(self._moved.offset_ms - since, node.client_addresses.__contains__)
        node.transactions.clock.expire_all()
        node.groups.remove_expired()
        node.housekeeping.run_now(lambda: node.groups.when_durable(done.set))

    def _go_to(self, moment_ms: int) -> None:
        """Never back: real time has passed meanwhile."""
        self._moved.offset_ms += max(0, moment_ms - self._moved.now_ms())

    def _settle(self) -> None:
        """Waits until no transaction is being ended."""
        deadline = time.monotonic() + _SETTLE_SECONDS
        while not self._call(_is_settled):
            if time.monotonic() > deadline:
                raise self._stuck("the end of a transaction")
            time.sleep(0.001)

    def _stuck(self, what: str) -> FencepostError:
        return FencepostError(
            f"The time has passed, but {what} is not done after {_SETTLE_SECONDS:.0f} s: the log "
            "of the broker says why."
        )


def _is_settled(node: Node) -> bool:
    """Whether the coordinators have loaded their logs, and no transaction is being ended."""
    if node.transactions.is_loading or node.groups.is_loading:
        return False
    return not any(each.pending or each.endings for each in node.transactions.coordinators())
