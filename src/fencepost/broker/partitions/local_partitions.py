"""The partitions that this process leads: their registry, their syncs, and who waits for them.

Theory of operation
-------------------
One asyncio loop owns every partition and coordinator of the process, so there are no locks:
everything within one turn of the loop is atomic. A request decides, appends and applies in one
turn; only its reply waits, for durability.

The mode defines durable:

- `os`: an append is durable when the operating system has it. It survives the death of the process,
  but not a power loss. The high watermark moves with the append, and no reply waits.
- `fsync`: an append is durable when the disk confirms it. Appends gather while a sync runs, and the
  next sync covers all of them, so ten producers pay for one sync. The sync runs in a thread of the
  loop's executor, because it blocks for milliseconds; it touches only file descriptors. The high
  watermark moves when it returns.

A sync of a log that fails ends the process (`sync_failed`), in every phase: after a failed fsync
the content of the disk is unknown, and any acknowledgement would be a guess. So does an exception
in a callback, or anywhere else between two syncs: it is a bug, and a process that no longer syncs
would look alive and answer no request. After a failure nothing is synced and nothing is called
back.

A partition may be removed (its topic is deleted) while requests wait for its durability. They are
called back nevertheless, and find the partition `closed`. There may be a topic of the same name by
then, so code that continues after a wait checks the `Partition` that it holds, not the name.

A partition that another broker will lead is withdrawn. It is `closed` and `is_moved` at once: no
request finds it, and nothing is appended to it. Its log is closed later, when all that was appended
is durable. So whatever waits for its durability is called back as usual, and finds the high
watermark where it waited for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Final

from fencepost.base.ids import TopicPartition
from fencepost.broker.turns import Turn
from fencepost.broker.waiting import FetchWaiter, FetchWaiters
from fencepost.log.durability import PendingSync
from fencepost.partition.partition import Partition

log = logging.getLogger(__name__)

Callback = Callable[[], None]


class LocalPartitions:
    """The partitions by name, the shared sync, and the long polls that wait for records."""

    def __init__(self, *, fsync: bool, on_fatal: Callable[[str], None]) -> None:
        self.fsync: Final = fsync
        self.by_name: dict[TopicPartition, Partition] = {}
        self.offline: set[TopicPartition] = set()
        """Partitions of this broker that could not be opened."""
        self.fetch_waiters = FetchWaiters()
        self._on_fatal = on_fatal
        self._loop: asyncio.AbstractEventLoop | None = None
        self._moved: dict[TopicPartition, None] = {}
        self._to_wake: deque[FetchWaiter] = deque()
        self._reading: Turn | None = None
        self.has_ended = False
        """Whether the process ends after a failure: nothing is acknowledged or marked as clean."""
        self._dirty: dict[Partition, None] = {}
        self._waiting: defaultdict[Partition, list[tuple[int, Callback]]] = defaultdict(list)
        self._sync_running = False
        self._last_sync: asyncio.Future[None] | None = None

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Sets the loop that runs syncs and wake-ups."""
        self._loop = loop

    # -- partitions -------------------------------------------------------------------------------

    def add(
        self, partition: Partition, on_sealed: Callable[[Partition], None] | None = None
    ) -> None:
        """Registers an open partition."""
        assert partition.name not in self.by_name, f"{partition.name} is open already"
        self.by_name[partition.name] = partition
        partition.observe(self._on_moved, on_sealed)

    def get(self, topic: str, index: int) -> Partition | None:
        """The partition of this name, if this node leads it."""
        return self.by_name.get((topic, index))  # type: ignore[call-overload, no-any-return]

    def remove(self, name: TopicPartition) -> Partition | None:
        """Removes a partition; callbacks that wait for it run now, and find it closed."""
        partition = self.by_name.pop(name, None)
        if partition is None:
            return None
        partition.closed = True
        self.forget(partition)
        self.wake_soon(self.fetch_waiters.of(name))
        return partition

    def withdraw(self, name: TopicPartition) -> Partition | None:
        """Stops serving a partition that another broker will lead; its log stays open for now."""
        partition = self.by_name.pop(name, None)
        if partition is None:
            return None
        partition.closed = True
        partition.is_moved = True
        self.wake_soon(self.fetch_waiters.of(name))
        return partition

    def forget(self, partition: Partition) -> None:
        """Stops syncing a partition whose log is closed; what waits for it runs now."""
        self._dirty.pop(partition, None)
        for _, callback in self._waiting.pop(partition, ()):
            self._call(callback)

    # -- waking long polls ------------------------------------------------------------------------

    def _on_moved(self, partition: Partition) -> None:
        """A bound of a partition has moved: wakes its long polls in the next turn."""
        if partition.name in self.fetch_waiters and self._loop is not None:
            if not self._moved:
                self._loop.call_soon(self._wake_moved)
            self._moved[partition.name] = None

    def _wake_moved(self) -> None:
        moved, self._moved = self._moved, {}
        for name in moved:
            partition = self.by_name.get(name)
            if partition is not None:  # Otherwise `remove` has woken them.
                self.wake_soon(self.fetch_waiters.reached_by(partition))

    def may_read_now(self) -> bool:
        """Whether a fetch is read at once; not when this turn has been reading for long."""
        if self._reading is not None:
            return not self._reading.is_over()
        self._reading = Turn()
        if self._loop is not None:
            self._loop.call_soon(self._end_of_reading)
        return True

    def _end_of_reading(self) -> None:
        self._reading = None

    def wake_soon(self, waiters: list[FetchWaiter]) -> None:
        """Wakes these long polls in the next turns of the loop."""
        if waiters and self._loop is not None:
            if not self._to_wake:
                self._loop.call_soon(self._wake_some)
            self._to_wake.extend(waiters)

    def _wake_some(self) -> None:
        """Wakes some in each turn, because each of them reads."""
        assert self._loop is not None
        turn = Turn()
        while self._to_wake:
            self._to_wake.popleft().wake()
            if self._to_wake and turn.is_over():
                self._loop.call_soon(self._wake_some)
                return

    # -- durability -------------------------------------------------------------------------------

    def when_durable(self, partition: Partition, end_offset: int, callback: Callback) -> None:
        """Calls back once everything below `end_offset` is durable, at once if it is already.

        Also when the partition is removed: the callback checks whether it is `closed`.
        """
        if partition.high_watermark >= end_offset or not self.fsync or _is_deleted(partition):
            callback()
            return
        self._waiting[partition].append((end_offset, callback))
        self.appended(partition)

    def appended(self, partition: Partition) -> None:
        """Notes that there is something to sync, even if no reply waits for it (acks 0 and 1)."""
        if not self.fsync or _is_deleted(partition) or partition.log.is_closed:
            return
        self._dirty[partition] = None
        if not self._sync_running and self._loop is not None:
            self._sync_running = True
            # In the next turn, so that everything that this turn appends shares the sync.
            self._loop.call_soon(self._start_sync)

    def _start_sync(self) -> None:
        try:
            self._sync_dirty()
        except Exception as problem:  # noqa: BLE001 - any failure ends the process.
            self._fail("a sync could not be started", problem)

    def _sync_dirty(self) -> None:
        assert self._loop is not None
        if self.has_ended:
            return
        pending = [(partition, partition.log.prepare_sync()) for partition in self._dirty]
        self._dirty.clear()
        if not pending:
            self._sync_running = False
            return
        future = self._loop.run_in_executor(None, _run_all, [each for _, each in pending])
        future.add_done_callback(lambda done: self._synced(pending, done))
        self._last_sync = future

    async def finish_syncs(self) -> None:
        """Waits until no sync is running, so that the logs can be closed."""
        await asyncio.sleep(0)  # A sync that was requested in this turn starts now.
        while self._last_sync is not None and not self._last_sync.done():
            await asyncio.wait((self._last_sync,))

    def _synced(
        self, pending: list[tuple[Partition, PendingSync]], done: asyncio.Future[None]
    ) -> None:
        try:
            done.result()
        except (Exception, asyncio.CancelledError) as problem:  # noqa: BLE001 - the process ends.
            self.sync_failed(problem)
            return
        try:
            for partition, sync in pending:
                partition.log.complete_sync(sync)
                self._release(partition, sync.end_offset)
        except Exception as problem:  # noqa: BLE001 - any failure ends the process.
            self._fail("the end of a sync could not be applied", problem)
        if self._dirty:
            self._start_sync()
        else:
            self._sync_running = False

    def _release(self, partition: Partition, durable: int) -> None:
        if _is_deleted(partition):
            return  # During the sync; `remove` has called back.
        partition.advance_high_watermark(min(durable, partition.log_end_offset))
        waiting = self._waiting.pop(partition, None)
        if not waiting:
            return
        later = [item for item in waiting if item[0] > durable]
        if later:
            self._waiting[partition] = later
        for end_offset, callback in waiting:
            if end_offset <= durable:
                self._call(callback)

    # -- failures ---------------------------------------------------------------------------------

    def _call(self, callback: Callback) -> None:
        """Calls back, unless there was a failure: after that nothing is answered."""
        if self.has_ended:
            return
        try:
            callback()
        except Exception as problem:  # noqa: BLE001 - any failure ends the process.
            self._fail("a request that waited for durability could not continue", problem)

    def _fail(self, what: str, problem: Exception) -> None:
        if self.has_ended:
            return
        log.critical("%s; stopping", what, exc_info=problem)
        self.end(f"{what}: {type(problem).__name__}: {problem}")

    def sync_failed(self, problem: BaseException) -> None:
        """Ends the process, because what the disk holds is unknown: the one way out."""
        self.end(f"{problem}; what the disk holds is unknown, stopping")

    def end(self, reason: str) -> None:
        """Ends the process; if it lives on (an embedded broker), no stop counts as clean."""
        self.has_ended = True
        self._on_fatal(reason)


def _is_deleted(partition: Partition) -> bool:
    return partition.closed and not partition.is_moved


def _run_all(pending: list[PendingSync]) -> None:
    """Runs in a thread, and touches only the disk."""
    for each in pending:
        each.run()
