"""Replies that are not there yet.

A handler answers at once or returns a `Parked`; whoever has the answer later calls `answer` once.
Nothing that waits is kept in the state of a coordinator or a partition: a state must be a function
of its log.

`FetchWaiters` are the long polls: each waits until its partitions together have enough to read, or
for its time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from fencepost.base.failures import StorageError
from fencepost.base.ids import TopicPartition

if TYPE_CHECKING:
    from fencepost.partition.partition import Partition


class NoReply:
    """The answer to a request that wants none (Produce with acks=0).

    A `problem` cannot be told to such a client, so its connection is closed: then it looks what has
    changed.
    """

    __slots__ = ("problem",)

    def __init__(self, problem: str | None = None) -> None:
        self.problem = problem


NO_REPLY = NoReply()


class Parked:
    """A reply that comes later.

    `holds_followers` keeps the next requests of the connection from taking effect before this one
    has: a handler sets it when it returns before its own effect is in the log. `promised_bytes` is
    how large the reply may become, where that is worth knowing.
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
        # Whoever waited refers to us and we to them: let go, or a large reply would live until the
        # next garbage collection.
        callback, self._callback = self._callback, None
        self._abandoned = None
        if callback is not None:
            self.reply = None
            callback(reply)

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
        abandoned, self._abandoned = self._abandoned, None
        if abandoned is not None and not self.answered:
            abandoned()

    def when_abandoned(self, callback: Callable[[], None]) -> None:
        self._abandoned = callback

    def when_released(self, callback: Callable[[], None]) -> None:
        if self.holds_followers:
            self._released = callback
        else:
            callback()


class FetchWaiter(Protocol):
    """A long poll that is told when one of its partitions may have what it waits for."""

    def wake(self) -> None: ...


Place = tuple[int, int]
"""A place in a log: the base offset of a segment and a byte in it. A later place compares as
greater."""


class _Bound:
    """The long polls that wait for one bound of a partition: its high watermark or its last stable offset."""

    __slots__ = ("_next_due", "eager", "offset", "patient")

    def __init__(self, offset: int) -> None:
        self.offset = offset
        """Where the bound was when it was looked at last."""
        self.eager: dict[FetchWaiter, None] = {}
        """Those for whom one byte more is enough."""
        self.patient: dict[FetchWaiter, Place] = {}
        """The others, and the place that the bound has to reach first."""
        self._next_due: Place = (0, 0)

    @property
    def is_alone(self) -> bool:
        return not self.eager and not self.patient

    def add(self, waiter: FetchWaiter, partition: Partition, offset: int, more_bytes: int) -> None:
        if self.is_alone:
            self.offset = offset  # Nobody was told of earlier moves because nobody waited.
        if more_bytes <= 1:
            self.eager[waiter] = None
            return
        try:
            segment, position = partition.log.place_of(offset)
        except StorageError:
            self.eager[waiter] = None  # The next read says what is wrong.
            return
        due = (segment, position + more_bytes)
        if not self.patient or due < self._next_due:
            self._next_due = due
        self.patient[waiter] = due

    def remove(self, waiter: FetchWaiter) -> None:
        self.eager.pop(waiter, None)
        self.patient.pop(waiter, None)

    def reached(self, partition: Partition, offset: int) -> list[FetchWaiter]:
        """Takes out those who have something to look at now that the bound is here."""
        if offset == self.offset:
            return []
        self.offset = offset
        try:
            place = partition.log.place_of(offset) if self.patient else self._next_due
        except StorageError:
            return self.everybody()
        found = list(self.eager)
        self.eager.clear()
        if self.patient and place >= self._next_due:
            late = {waiter: due for waiter, due in self.patient.items() if due > place}
            found += [waiter for waiter in self.patient if waiter not in late]
            self.patient = late
            self._next_due = min(late.values(), default=place)
        return found

    def everybody(self) -> list[FetchWaiter]:
        """Takes all of them out."""
        found = [*self.eager, *self.patient]
        self.eager.clear()
        self.patient.clear()
        return found


class _Watched:
    """A partition that somebody waits for."""

    __slots__ = ("high_watermark", "last_stable", "leader_epoch", "log_start_offset", "partition")

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.log_start_offset = partition.log_start_offset
        self.leader_epoch = partition.leader_epoch
        self.high_watermark = _Bound(partition.high_watermark)
        self.last_stable = _Bound(partition.last_stable_offset)

    def everybody(self) -> list[FetchWaiter]:
        return self.high_watermark.everybody() + self.last_stable.everybody()

    @property
    def is_alone(self) -> bool:
        return self.high_watermark.is_alone and self.last_stable.is_alone

    def is_as_before(self, partition: Partition) -> bool:
        """False when its readers may have become wrong about more than the end: their offset, their epoch."""
        return (
            partition is self.partition
            and partition.log_start_offset == self.log_start_offset
            and partition.leader_epoch == self.leader_epoch
        )


class FetchWaiters:
    """Who waits for which partition, and for which of its bounds to move how far.

    An append to a partition with 500 long polls must not read 500 times. So a poll that reads
    committed records is woken when the last stable offset moves and the others when the high
    watermark does, and a poll that wants more than a byte is woken when the bound has moved by that
    many bytes. A poll of several partitions has its wish divided by their number: unless one of
    them brings its share, the sum cannot be there.

    Whoever is named by `of` or `reached_by` has been taken out, will be woken once, and comes back
    if that was in vain.
    """

    __slots__ = ("_watched",)

    def __init__(self) -> None:
        self._watched: dict[TopicPartition, _Watched] = {}

    def __contains__(self, name: TopicPartition) -> bool:
        return name in self._watched

    def add(
        self,
        waiter: FetchWaiter,
        partitions: Sequence[Partition],
        *,
        missing_bytes: int,
        read_committed: bool,
    ) -> None:
        """`missing_bytes` more must be readable in all of the partitions together."""
        share = -(-missing_bytes // max(1, len(partitions)))
        for partition in partitions:
            watched = self._watched.get(partition.name)
            if watched is None:
                watched = self._watched[partition.name] = _Watched(partition)
            if read_committed:
                watched.last_stable.add(waiter, partition, partition.last_stable_offset, share)
            else:
                watched.high_watermark.add(waiter, partition, partition.high_watermark, share)

    def remove(self, waiter: FetchWaiter, partitions: Sequence[Partition]) -> None:
        for partition in partitions:
            watched = self._watched.get(partition.name)
            if watched is not None:
                watched.high_watermark.remove(waiter)
                watched.last_stable.remove(waiter)
                if watched.is_alone:
                    del self._watched[partition.name]

    def of(self, name: TopicPartition) -> list[FetchWaiter]:
        """Everybody who waits for a partition: it is gone."""
        watched = self._watched.get(name)
        return [] if watched is None else watched.everybody()

    def reached_by(self, partition: Partition) -> list[FetchWaiter]:
        """Whom it concerns that a partition is where it is now."""
        watched = self._watched.get(partition.name)
        if watched is None:
            return []
        if not watched.is_as_before(partition):
            watched.partition = partition
            watched.log_start_offset = partition.log_start_offset
            watched.leader_epoch = partition.leader_epoch
            return watched.everybody()
        found = watched.high_watermark.reached(partition, partition.high_watermark)
        return found + watched.last_stable.reached(partition, partition.last_stable_offset)
