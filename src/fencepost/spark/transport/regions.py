"""The memory in which a task builds its batches: one arena, cut into regions that go round.

    take -> a batch grows, is sealed, travels, is acknowledged -> give back

Taking waits while all regions are on their way, so that a task that packs faster than brokers write
needs no more memory than this. Regions are given back by another thread; one that fails ends the
waiting.
"""

from __future__ import annotations

import threading
from typing import Final

from fencepost.records.batch import HEADER_BYTES
from fencepost.records.columns import Bytes
from fencepost.spark.transport.arena import ARENA_BYTES, leave_arena, take_arena

LEAST_REGION_BYTES: Final = 16 * 1024 + HEADER_BYTES
"""Smaller batches are not worth their header, however many partitions there are."""

MAX_REGIONS: Final = 4096
"""Enough, however small they are."""

LANES: Final = 64
"""Partitions that a task is thought to write to where nobody knows."""


class Regions:
    """The regions of one task."""

    def __init__(self, batch_bytes: int, lanes: int) -> None:
        wanted = ARENA_BYTES // (2 * max(1, lanes))
        self.region_bytes = min(batch_bytes + HEADER_BYTES, max(wanted, LEAST_REGION_BYTES))
        count = max(2, min(ARENA_BYTES // self.region_bytes, MAX_REGIONS))
        self._count = count
        self.arena = take_arena(count * self.region_bytes)
        self._free = list(range(count - 1, -1, -1))
        self._changed = threading.Condition()
        self._failure: BaseException | None = None

    @property
    def memory(self) -> Bytes:
        """All regions, one after the other."""
        return self.arena.memory[: self._count * self.region_bytes]

    def take(self) -> int:
        """A region that nobody uses; waits for one.

        Those given back last, whose memory is warm, come first.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._free or self._failure)
            if self._failure is not None:
                raise self._failure
            return self._free.pop()

    def give_back(self, region: int) -> None:
        with self._changed:
            self._free.append(region)
            self._changed.notify()

    def leave(self) -> None:
        """The task has ended.

        The next one gets the memory, unless somebody still has some of it.
        """
        with self._changed:
            if self._failure is None and len(self._free) == self._count:
                leave_arena(self.arena)

    def fail(self, problem: BaseException) -> None:
        """Nothing will be given back any more."""
        with self._changed:
            self._failure = problem
            self._changed.notify_all()
