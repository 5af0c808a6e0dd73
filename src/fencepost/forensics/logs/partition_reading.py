"""Reads a range of a partition over the wire, within a budget.

There is no request for headers alone, so a range costs its bytes. A partition may hold gigabytes:
every reader here has a budget (`--max-read`), reports its progress, and keeps one fetch in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fencepost.base.failures import FencepostError
from fencepost.client.failures import OffsetOutOfRange
from fencepost.client.reading import EARLIEST, LATEST

if TYPE_CHECKING:
    from fencepost.base.ids import TopicPartition
    from fencepost.client.blocking import Cluster
    from fencepost.client.fetched import FetchedPartition

FETCH_BYTES: Final = 4 << 20
"""Enough that a fetch on loopback costs more than its round trip, small enough to stop in."""

DEFAULT_MAX_READ_BYTES: Final = 256 << 20
"""About a second on loopback, and half a minute over a slow network."""

_TRIES: Final = 3

Progress = Callable[[str, int, int], None]
"""Called after each fetch: the partition, the offset reached, and the end."""


def no_progress(_partition: str, _offset: int, _end: int) -> None:
    """Reports nothing."""


@dataclass(slots=True)
class Budget:
    """The bytes that may still be read; shared by all ranges of one command."""

    left_bytes: int = DEFAULT_MAX_READ_BYTES

    @property
    def is_spent(self) -> bool:
        """Whether the next fetch would exceed it."""
        return self.left_bytes <= 0

    def spend(self, size_bytes: int) -> None:
        """Takes the bytes of one fetch."""
        self.left_bytes -= size_bytes


@dataclass(slots=True)
class Range:
    """A range of offsets, and how far it was read."""

    partition: TopicPartition
    start: int
    end: int
    """Where to stop. A fetch may reach beyond it."""
    reached: int = -1
    """The offset after the last batch that was read; `end` when all of it was."""

    @property
    def is_whole(self) -> bool:
        """Whether it was read to its end."""
        return self.reached >= self.end


def log_bounds(
    cluster: Cluster, partition: TopicPartition, *, isolation: str = "read_uncommitted"
) -> tuple[int, int]:
    """Returns the log start offset, and the end for this isolation level."""
    start = cluster.list_offsets({partition: EARLIEST}, isolation=isolation)[partition].offset
    end = cluster.list_offsets({partition: LATEST}, isolation=isolation)[partition].offset
    return start, end


def read_range(
    cluster: Cluster,
    wanted: Range,
    budget: Budget,
    *,
    isolation: str = "read_uncommitted",
    progress: Progress = no_progress,
) -> Iterator[FetchedPartition]:
    """Yields fetches from `start` on until `end` or the end of the budget; updates `wanted`."""
    partition, position = wanted.partition, wanted.start
    wanted.reached = position
    while position < wanted.end and not budget.is_spent:
        try:
            fetched = _fetch(cluster, wanted, position, isolation)
        except OffsetOutOfRange:
            # Retention removed it: go on where the log starts now.
            start, _ = log_bounds(cluster, partition, isolation=isolation)
            if start <= position:
                raise
            position = wanted.reached = start
            continue
        if fetched is None:
            wanted.reached = wanted.end
            return
        yield fetched
        budget.spend(sum(batch.size_bytes for batch in fetched.batches))
        position = wanted.reached = fetched.next_offset
        progress(str(partition), position, wanted.end)


def _fetch(
    cluster: Cluster, wanted: Range, position: int, isolation: str
) -> FetchedPartition | None:
    """Fetches until there is progress; None if compaction left nothing up to the end."""
    partition = wanted.partition
    for _ in range(_TRIES):
        fetched = cluster.fetch(
            {partition: position}, isolation=isolation, partition_max_bytes=FETCH_BYTES
        ).get(partition)
        if fetched is None:
            continue
        if fetched.next_offset > position:
            return fetched
        is_stable = isolation == "read_committed"
        limit = fetched.last_stable_offset if is_stable else fetched.high_watermark
        if limit >= wanted.end:
            return None
    raise FencepostError(
        f"{partition} returned nothing from offset {position} on, although its log goes on. Its "
        "leader may be moving: try again."
    )
