"""What the services of a node run on: its clock, its disk, timers, and the wait for durability.

A service gets the runtime and the neighbours that it calls, not the whole node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from fencepost.base.failures import SyncError
from fencepost.base.seams import Clock, Disk
from fencepost.broker.coordinators.log_loader import LoadQueue
from fencepost.broker.partitions.local_partitions import LocalPartitions
from fencepost.broker.turns import Line
from fencepost.partition.partition import Partition


class TimerHandle(Protocol):
    """A timer that can be cancelled."""

    def cancel(self) -> None: ...


class Timers(Protocol):
    """Calls a function later."""

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> TimerHandle: ...


class Runtime:
    """The clock, the disk, timers and durability of one node."""

    def __init__(self, clock: Clock, disk: Disk, partitions: LocalPartitions) -> None:
        self.clock = clock
        self.disk = disk
        self.line = Line(self)
        """The large requests that wait for their next turn."""
        self.loads = LoadQueue(self)
        """The coordinator logs that are being read."""
        self.crash_points: Callable[[str], None] | None = None
        """For tests: called with a name between any two writes of a transaction's end."""
        self._partitions = partitions
        self._loop: asyncio.AbstractEventLoop | None = None
        self._steady_from_ms = 0.0

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Sets the loop that runs the timers, and starts the steady time."""
        self._loop = loop
        self._steady_from_ms = self.clock.now_ms() - loop.time() * 1000

    def steady_ms(self) -> int:
        """The time for timeouts: the clock's at the start, then independent of changes to it."""
        assert self._loop is not None, "time needs a running loop"
        return int(self._steady_from_ms + self._loop.time() * 1000)

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> TimerHandle:
        """Sets a timer of the loop."""
        assert self._loop is not None, "timers need a running loop"
        return self._loop.call_later(delay_ms / 1000, callback)

    def sync_failed(self, problem: SyncError) -> None:
        """Ends the process."""
        self._partitions.sync_failed(problem)

    def when_durable(
        self, partition: Partition, end_offset: int, callback: Callable[[], None]
    ) -> None:
        """Calls back once everything below `end_offset` is durable, at once if it is already."""
        self._partitions.when_durable(partition, end_offset, callback)
