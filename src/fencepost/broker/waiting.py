"""Replies that are not ready yet.

A handler returns its reply, or a `Parked` that a service answers later, once. Parked requests are
not part of the state of a coordinator or a partition: that state is a function of its log.

`FetchWaiters` holds the long polls. Each waits until its partitions together have enough to read,
or until its timeout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from fencepost.base.failures import StorageError
from fencepost.base.ids import TopicPartition

if TYPE_CHECKING:
    from fencepost.partition.partition import Partition


class NoReply:
    """The result of a request without a reply (Produce with acks=0).

    Such a client cannot receive an error. If there is a `problem`, its connection is closed, so
    that it refreshes its metadata.
    """

    __slots__ = ("problem",)

    def __init__(self, problem: str | None = None) -> None:
        self.problem = problem


NO_REPLY = NoReply()


class Parked:
    """A reply that comes later.

    `holds_followers` keeps later requests of the connection from taking effect before this one: a
    handler sets it when it returns before its own records are in the log. `promised_bytes` is the
    largest size of the reply, if that may be large.
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
        """Delivers the reply; a second call is a bug."""
        assert not self.answered, "a request is answered once"
        self.answered = True
        self.reply = reply
        self.release()
        # The callbacks refer to objects that refer to this one: without a cycle, a large reply is
        # freed at once.
        callback, self._callback = self._callback, None
        self._abandoned = None
        if callback is not None:
            self.reply = None
            callback(reply)

    def release(self) -> None:
        """Lets later requests proceed: this one has taken effect, even if its reply still waits."""
        if self.holds_followers:
            self.holds_followers = False
            if self._released is not None:
                self._released()

    def follow(self, reply: object) -> None:
        """Answers with a reply, or as another parked request is released and answered."""
        if isinstance(reply, Parked):
            self._abandoned = reply.abandon
            reply.when_released(self.release)
            reply.when_answered(self.answer)
        else:
            self.answer(reply)

    def when_answered(self, callback: Callable[[object], None]) -> None:
        """Calls back with the reply, at once if it is ready."""
        if self.answered:
            callback(self.reply)
        else:
            self._callback = callback

    def abandon(self) -> None:
        """The client has left: work that has begun continues, but a waiting request is dropped."""
        abandoned, self._abandoned = self._abandoned, None
        if abandoned is not None and not self.answered:
            abandoned()

    def when_abandoned(self, callback: Callable[[], None]) -> None:
        """Calls back if the client leaves before the reply."""
        self._abandoned = callback

    def when_released(self, callback: Callable[[], None]) -> None:
        """Calls back when later requests may proceed, at once if they already may."""
        if self.holds_followers:
            self._released = callback
        else:
            callback()


class FetchWaiter(Protocol):
    """A long poll."""

    def wake(self) -> None:
        """Reads again: one of the partitions may have enough now."""


Place = tuple[int, int]
"""A position in a log: the base offset of a segment and a byte position in it. Later positions
compare as greater."""


class _Bound:
    """The long polls that wait for a partition's high watermark, or for its last stable offset."""

    __slots__ = ("_next_due", "eager", "offset", "patient")

    def __init__(self, offset: int) -> None:
        self.offset = offset
        """The bound when it was last checked."""
        self.eager: dict[FetchWaiter, None] = {}
        """Polls for which one more byte is enough."""
        self.patient: dict[FetchWaiter, Place] = {}
        """The other polls, and the position that the bound has to reach first."""
        self._next_due: Place = (0, 0)

    @property
    def is_empty(self) -> bool:
        return not self.eager and not self.patient

    def add(self, waiter: FetchWaiter, partition: Partition, offset: int, more_bytes: int) -> None:
        if self.is_empty:
            self.offset = offset  # Without waiters, earlier moves were not recorded.
        if more_bytes <= 1:
            self.eager[waiter] = None
            return
        try:
            segment, position = partition.log.place_of(offset)
        except StorageError:
            self.eager[waiter] = None  # The next read reports the error.
            return
        due = (segment, position + more_bytes)
        if not self.patient or due < self._next_due:
            self._next_due = due
        self.patient[waiter] = due

    def remove(self, waiter: FetchWaiter) -> None:
        self.eager.pop(waiter, None)
        self.patient.pop(waiter, None)

    def reached(self, partition: Partition, offset: int) -> list[FetchWaiter]:
        """Removes and returns the polls to wake now that the bound has reached `offset`."""
        if offset == self.offset:
            return []
        self.offset = offset
        try:
            place = partition.log.place_of(offset) if self.patient else self._next_due
        except StorageError:
            return self.take_all()
        found = list(self.eager)
        self.eager.clear()
        if self.patient and place >= self._next_due:
            late = {waiter: due for waiter, due in self.patient.items() if due > place}
            found += [waiter for waiter in self.patient if waiter not in late]
            self.patient = late
            self._next_due = min(late.values(), default=place)
        return found

    def take_all(self) -> list[FetchWaiter]:
        """Removes and returns all polls."""
        found = [*self.eager, *self.patient]
        self.eager.clear()
        self.patient.clear()
        return found


class _Watched:
    """A partition with long polls."""

    __slots__ = ("high_watermark", "last_stable", "leader_epoch", "log_start_offset", "partition")

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.log_start_offset = partition.log_start_offset
        self.leader_epoch = partition.leader_epoch
        self.high_watermark = _Bound(partition.high_watermark)
        self.last_stable = _Bound(partition.last_stable_offset)

    def take_all(self) -> list[FetchWaiter]:
        return self.high_watermark.take_all() + self.last_stable.take_all()

    @property
    def is_empty(self) -> bool:
        return self.high_watermark.is_empty and self.last_stable.is_empty

    def is_unchanged(self, partition: Partition) -> bool:
        """False if the readers' offset or epoch may have become invalid."""
        return (
            partition is self.partition
            and partition.log_start_offset == self.log_start_offset
            and partition.leader_epoch == self.leader_epoch
        )


class FetchWaiters:
    """The long polls by partition, and how far a bound has to move before each is woken.

    An append to a partition with 500 long polls must not read 500 times. So a read_committed poll
    is woken when the last stable offset moves, other polls when the high watermark moves, and a
    poll that wants several bytes when the bound has moved by that many. A poll of several
    partitions divides its bytes by their number: as long as no partition has its share, the sum
    cannot be reached.

    Polls that `of` and `reached_by` return are removed. The caller wakes each of them once, and
    they add themselves again if they have to wait longer.
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
        """Adds a poll that needs `missing_bytes` more from its partitions together."""
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
        """Removes a poll from its partitions."""
        for partition in partitions:
            watched = self._watched.get(partition.name)
            if watched is not None:
                watched.high_watermark.remove(waiter)
                watched.last_stable.remove(waiter)
                if watched.is_empty:
                    del self._watched[partition.name]

    def of(self, name: TopicPartition) -> list[FetchWaiter]:
        """Removes and returns all polls of a partition that was closed."""
        watched = self._watched.get(name)
        return [] if watched is None else watched.take_all()

    def reached_by(self, partition: Partition) -> list[FetchWaiter]:
        """Removes and returns the polls to wake after a change of the partition."""
        watched = self._watched.get(partition.name)
        if watched is None:
            return []
        if not watched.is_unchanged(partition):
            watched.partition = partition
            watched.log_start_offset = partition.log_start_offset
            watched.leader_epoch = partition.leader_epoch
            return watched.take_all()
        found = watched.high_watermark.reached(partition, partition.high_watermark)
        return found + watched.last_stable.reached(partition, partition.last_stable_offset)
