"""Offset arithmetic: how much to read, and how to divide it into tasks.

Limits and splits work as in Spark's own source. Packing is ours: a barrier stage, in which the
sink's tasks exchange rows directly, needs a free slot for every task. So if there are more
topic-partitions than slots, a task reads several, one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import pairwise

from fencepost.base.ids import TopicPartition
from fencepost.spark.offsets import PartitionOffsets


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets of one partition; `end` is exclusive."""

    partition: TopicPartition
    start: int
    end: int
    topic_id: bytes | None = None
    """The id of the topic; None if the broker has no topic ids."""

    @property
    def size(self) -> int:
        """The number of offsets."""
        return self.end - self.start


def limit_offsets(
    start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], limit: int
) -> PartitionOffsets:
    """At most about `limit` offsets, in proportion to each partition's backlog, at least one."""
    sizes = {tp: end[tp] - start.get(tp, 0) for tp in end}
    total = sum(size for size in sizes.values() if size > 0)
    if total <= limit:
        return dict(end)
    limited: PartitionOffsets = {}
    for tp, size in sizes.items():
        share = limit * (size / total) if size > 0 else 0.0
        taken = math.ceil(share) if share < 1 else math.floor(share)
        limited[tp] = min(start.get(tp, 0) + taken, end[tp]) if size > 0 else end[tp]
    return limited


def split_ranges(
    ranges: Iterable[OffsetRange], *, max_records: int | None, min_partitions: int | None
) -> list[OffsetRange]:
    """The tasks of a batch: one per partition, or more if the options say so."""
    parts = [
        part
        for whole in ranges
        if whole.size > 0
        for part in _split(whole, math.ceil(whole.size / (max_records or whole.size)))
    ]
    if min_partitions is None or len(parts) >= min_partitions:
        return parts
    return _split_to(parts, min_partitions)


def pack_ranges(parts: list[OffsetRange], tasks: int) -> list[tuple[OffsetRange, ...]]:
    """At most `tasks` tasks of about the same size; each reads its ranges in order."""
    if len(parts) <= tasks:
        return [(part,) for part in parts]
    packed: list[list[OffsetRange]] = [[] for _ in range(tasks)]
    smallest = [(0, task) for task in range(tasks)]
    for part in sorted(parts, key=lambda part: (-part.size, part.partition, part.start)):
        size, task = heappop(smallest)
        packed[task].append(part)
        heappush(smallest, (size + part.size, task))
    return [tuple(sorted(ranges, key=lambda r: (r.partition, r.start))) for ranges in packed]


def _split_to(parts: list[OffsetRange], wanted: int) -> list[OffsetRange]:
    """About `wanted` tasks: small ranges stay whole, and the larger ones share the rest."""
    total = sum(part.size for part in parts)
    small = [part for part in parts if _share(part.size, total, wanted) == 1]
    whole = {part.partition for part in small}
    total -= sum(part.size for part in small)
    wanted = max(wanted - len(small), 1)
    return [
        piece
        for part in parts
        for piece in _split(
            part, 1 if part.partition in whole else _share(part.size, total, wanted)
        )
    ]


def _share(size: int, total: int, wanted: int) -> int:
    return max(1, math.floor(size / total * wanted + 0.5))


def _split(whole: OffsetRange, count: int) -> list[OffsetRange]:
    """Splits into `count` parts, the larger ones last."""
    count = min(count, whole.size)
    cuts = [whole.start]
    for left in range(count, 0, -1):
        cuts.append(cuts[-1] + (whole.end - cuts[-1]) // left)
    return [replace(whole, start=begin, end=stop) for begin, stop in pairwise(cuts)]
