"""Replies that are not there yet.

A handler answers at once or returns a `Parked`; whoever has the answer later calls `answer` once. Nothing that
waits is kept in the state of a coordinator or a partition: a state must be a function of its log.

`FetchWaiters` are the long polls: each waits for any of its partitions to have more to read, or for its time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from fencepost.base.ids import TopicPartition


class NoReply:
    """The answer to a request that wants none (Produce with acks=0).

    A `problem` cannot be told to such a client, so its connection is closed: then it looks what has changed.
    """

    __slots__ = ("problem",)

    def __init__(self, problem: str | None = None) -> None:
        self.problem = problem


NO_REPLY = NoReply()


class Parked:
    """A reply that comes later.

    `holds_followers` keeps the next requests of the connection from taking effect before this one has: a
    handler sets it when it returns before its own effect is in the log. `promised_bytes` is how large the reply
    may become, where that is worth knowing.
    """

    __slots__ = (
        "_abandoned",
        "_callback",
        "_released",
        "answered",
        "holds_followers",
        "promised_bytes",
        "reply",
    )

    def __init__(self, *, holds_followers: bool = False, promised_bytes: int = 0) -> None:
        self.promised_bytes = promised_bytes
        self.reply: object = None
        self.answered = False
        self.holds_followers = holds_followers
        self._abandoned: Callable[[], None] | None = None
        self._callback: Callable[[object], None] | None = None
        self._released: Callable[[], None] | None = None

    def answer(self, reply: object) -> None:
        """Hands the reply over; the second call is a bug."""
        assert not self.answered, "a request is answered once"
        self.answered = True
        self.reply = reply
        self.release()
        if self._callback is not None:
            self._callback(reply)

    def release(self) -> None:
        """The request has taken effect: its followers may go on, though the answer may still wait."""
        if self.holds_followers:
            self.holds_followers = False
            if self._released is not None:
                self._released()

    def when_answered(self, callback: Callable[[object], None]) -> None:
        """Calls back with the reply, at once if it is there."""
        if self.answered:
            callback(self.reply)
        else:
            self._callback = callback

    def abandon(self) -> None:
        """The client is gone. What has begun takes its course; what only waits may be given up."""
        if self._abandoned is not None and not self.answered:
            self._abandoned()

    def when_abandoned(self, callback: Callable[[], None]) -> None:
        self._abandoned = callback

    def when_released(self, callback: Callable[[], None]) -> None:
        if self.holds_followers:
            self._released = callback
        else:
            callback()


class FetchWaiter(Protocol):
    """A long poll that is told when one of its partitions has moved."""

    def wake(self) -> None: ...


class FetchWaiters:
    """Who waits for which partition."""

    __slots__ = ("_by_partition",)

    def __init__(self) -> None:
        self._by_partition: dict[TopicPartition, dict[FetchWaiter, None]] = {}

    def __contains__(self, name: TopicPartition) -> bool:
        return name in self._by_partition

    def add(self, waiter: FetchWaiter, names: list[TopicPartition]) -> None:
        for name in names:
            self._by_partition.setdefault(name, {})[waiter] = None

    def remove(self, waiter: FetchWaiter, names: list[TopicPartition]) -> None:
        for name in names:
            waiters = self._by_partition.get(name)
            if waiters is not None:
                waiters.pop(waiter, None)
                if not waiters:
                    del self._by_partition[name]

    def of(self, name: TopicPartition) -> list[FetchWaiter]:
        return list(self._by_partition.get(name, ()))
