"""The memory in which a task builds its batches: one array, cut into regions that are reused.

    take -> a batch grows, is sealed, travels, is acknowledged -> give back

`take` waits while all regions are in flight. So a task that packs faster than brokers write needs
no more memory. Another thread gives regions back; if it fails, `take` raises its failure.
"""

from __future__ import annotations

import threading
from typing import Final

import numpy as np

from fencepost.records.batch import HEADER_BYTES
from fencepost.records.columns import Bytes

MEMORY_BYTES: Final = 64 * 1024 * 1024
"""The size of the array, unless batches are very large. Only used pages take up memory."""

LEAST_REGION_BYTES: Final = 16 * 1024 + HEADER_BYTES
"""Smaller batches are not worth their header, even with many partitions."""

MAX_REGIONS: Final = 4096
"""Enough, even for the smallest regions."""

ASSUMED_PARTITIONS: Final = 64
"""The assumed number of partitions that a task writes to, if it is unknown."""


class Regions:
    """The regions of one task."""

    def __init__(self, batch_bytes: int, partitions: int) -> None:
        wanted = MEMORY_BYTES // (2 * max(1, partitions))
        self.region_bytes = min(batch_bytes + HEADER_BYTES, max(wanted, LEAST_REGION_BYTES))
        count = max(2, min(MEMORY_BYTES // self.region_bytes, MAX_REGIONS))
        self.memory: Bytes = np.empty(count * self.region_bytes, np.uint8)
        """All regions, one after the other."""
        self._free = list(range(count - 1, -1, -1))
        self._changed = threading.Condition()
        self._failure: BaseException | None = None

    def take(self) -> int:
        """A free region; waits for one.

        The last one given back, whose memory is warm, comes first.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._free or self._failure)
            if self._failure is not None:
                raise self._failure
            return self._free.pop()

    def give_back(self, region: int) -> None:
        """Frees a region."""
        with self._changed:
            self._free.append(region)
            self._changed.notify()

    def fail(self, problem: BaseException) -> None:
        """Makes `take` raise: no more regions will be given back."""
        with self._changed:
            self._failure = problem
            self._changed.notify_all()
