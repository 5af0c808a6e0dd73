"""`wholeTransactions`: batches end where no transaction is split.

Theory of operation. Two things can split a committed transaction of a partition between two
batches: `maxOffsetsPerTrigger`, and the last stable offset, which an open transaction holds back
while others that began before it commit after it. The end of a batch is therefore moved to a cut
(`extents.py`): the last one up to the wanted end, or, if there is none, the first one after it. So
a batch is larger than its limit only if a transaction is. If there is no cut up to the last stable
offset, the partition waits for the open transaction.

Markers and producers are in the batches only, so this walks over the batches between two cuts: the
planner fetches what the tasks will fetch, and looks at the headers. It need not do so if the wanted
end is both the last stable offset and the high watermark: then no transaction is open there, and
each has its marker before it. For that the high watermark is requested second: it never decreases,
so if it equals the stable offset of an earlier moment, the two were equal at that moment.

Spark stores the ends in its checkpoint, so a batch that runs again is the same. What a walk has
found is kept for the next batch, and lost with the process: a new one begins at the last end, which
is a cut.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from fencepost.client.failures import OffsetOutOfRange, UnknownTopicOrPartition
from fencepost.spark.source.extents import Extents
from fencepost.spark.source.positions import Positions, fetch_partition

if TYPE_CHECKING:
    from fencepost.base.ids import TopicPartition
    from fencepost.spark.offsets import PartitionOffsets

log = logging.getLogger(__name__)


class CutFinder:
    """Finds cuts for one reader."""

    def __init__(self) -> None:
        self._walks: dict[tuple[TopicPartition, bytes | None], Extents] = {}
        self._waiting: dict[TopicPartition, int] = {}
        """Partitions without a cut, and where they stand: a warning is given once."""

    def cut(
        self,
        positions: Positions,
        begin: Mapping[TopicPartition, int],
        wanted: Mapping[TopicPartition, int],
        stable: Mapping[TopicPartition, int],
        topic_ids: Mapping[str, bytes],
    ) -> PartitionOffsets:
        """The ends of a batch: `wanted`, moved to cuts that are not behind `stable`."""
        found = dict(wanted)
        unread = [tp for tp, offset in wanted.items() if offset > begin.get(tp, offset)]
        at_end = [tp for tp in unread if wanted[tp] == stable[tp]]
        highest = positions.high_watermarks(at_end) if at_end else {}
        self._walks = {key: walk for key, walk in self._walks.items() if key[0] in wanted}
        for tp in unread:
            if highest.get(tp) != wanted[tp]:
                topic_id = topic_ids.get(tp.topic)
                walk = _Walk(positions, tp, topic_id, stable[tp])
                found[tp] = self._cut(walk, begin[tp], wanted[tp])
        return found

    def _cut(self, walk: _Walk, start: int, wanted: int) -> int:
        key = (walk.place, walk.topic_id)
        extents = self._walks.get(key)
        if extents is None or not extents.start <= start <= extents.position:
            extents = Extents(start)
        extents.forget_before(start)
        try:
            self._walks[key], cut = walk.find(extents, start, wanted)
        except UnknownTopicOrPartition:
            # Just deleted, which the planning of the batch reports.
            return wanted
        if cut == start:
            self._warn(walk, start)
        return cut

    def _warn(self, walk: _Walk, start: int) -> None:
        if self._waiting.get(walk.place) != start:
            self._waiting[walk.place] = start
            log.warning(
                "%s: transactions overlap without a gap from offset %d to the end at %d, where one "
                "is open: with wholeTransactions their records wait until it ends",
                walk.place,
                start,
                walk.stable,
            )


class _Walk:
    """Walks over one partition, up to its last stable offset."""

    def __init__(
        self, positions: Positions, place: TopicPartition, topic_id: bytes | None, stable: int
    ) -> None:
        self._positions = positions
        self.place = place
        self.topic_id = topic_id
        self.stable = stable

    def find(self, extents: Extents, start: int, wanted: int) -> tuple[Extents, int]:
        """Walks until a cut is known, and returns it; `start` if there is none.

        Returns what was found, too: after lost records the walk begins again behind them.
        """
        while True:
            cut = extents.last_cut(wanted)
            if extents.position >= wanted:
                later = extents.next_cut(wanted + 1) if cut <= start else cut
                if later is not None or extents.position >= self.stable:
                    return extents, start if later is None or later > self.stable else later
            extents.forget_before(cut)
            try:
                fetched = fetch_partition(
                    self._positions.cluster, self.place, extents.position, self.topic_id
                )
            except OffsetOutOfRange:
                extents = Extents(self._first_offset(extents.position))
                if extents.start >= wanted:
                    return extents, wanted
                continue
            if not fetched.batches:
                if fetched.last_stable_offset < self.stable:
                    # A leader that lags behind its predecessor: the next trigger looks again.
                    return extents, cut
                # Compaction has removed what was there.
                extents.position = self.stable
            extents.walk(fetched)

    def _first_offset(self, position: int) -> int:
        """The first offset that exists; the stable one if the partition ends before `position`."""
        earliest = self._positions.earliest([self.place])[self.place]
        return earliest if position < earliest < self.stable else self.stable
