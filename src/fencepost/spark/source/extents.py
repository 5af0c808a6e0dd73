"""Where a partition can be cut without splitting a transaction.

Theory of operation. The extent of a transaction reaches from its first to its last visible record.
A cut at offset x divides the records below x from the others, so x splits every transaction with

    first < x <= last

A walk over the batches of a partition finds the extents. It begins at a cut, where no transaction
is split, or anywhere: what was before is not its concern. The extent of a transaction is known when
its marker comes; until then each offset after its first record may split it. Transactions of
several producers may overlap, and then a cut must be outside of all:

    offsets   0   1   2   3   4   5   6   7   8
    batches   A1  B1  A2  A:c B2  B:c n   n   C1
    extents   A: 0 to 2, B: 1 to 4, C: from 8 on
    cuts      0, 5, 6, 7, 8

Aborted transactions have no visible records, and neither have markers. Both may be cut anywhere,
like records outside of transactions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fencepost.records.fates import NO_OFFSET, Known, TransactionFollower
from fencepost.records.index import AbortedTxn

if TYPE_CHECKING:
    from fencepost.client.fetched import AbortedTransaction, FetchedPartition
    from fencepost.records.batch import SealedBatch


@dataclass(slots=True, order=True)
class Extent:
    """Offsets `first` < x <= `last` cannot be a cut."""

    first: int
    last: int


class Extents:
    """The extents of committed transactions in one partition, as far as it was walked."""

    def __init__(self, start: int) -> None:
        self.start = start
        """The first offset for which this knows the cuts; taken for a cut itself."""
        self.position = start
        """Where the walk continues."""
        self._ended: list[Extent] = []
        """In the order of their markers."""
        self._open: dict[int, Extent] = {}
        """By producer id: transactions whose marker has not come yet."""
        self._follower = TransactionFollower(Known(open_at_start={}))

    def walk(self, fetched: FetchedPartition) -> None:
        """Follows the batches of the next fetch."""
        self._follower.learn(map(_as_indexed, fetched.aborted), fetched.last_stable_offset)
        for batch in fetched.batches:
            if batch.next_offset > self.position:
                self._follow(batch)
                self.position = batch.next_offset

    def last_cut(self, most: int) -> int:
        """The last known cut that is not after `most`; the start counts as one."""
        cut = min(most, self.position)
        for extent in [*self._opened(), *sorted(self._ended, reverse=True)]:
            if extent.first < cut <= extent.last:
                cut = extent.first
        return max(cut, self.start)

    def next_cut(self, least: int) -> int | None:
        """The first known cut not before `least`."""
        cut = least
        for extent in sorted(self._ended):
            if extent.first < cut <= extent.last:
                cut = extent.last + 1
        is_open = any(extent.first < cut for extent in self._open.values())
        return None if is_open or cut > self.position else cut

    def forget_before(self, cut: int) -> None:
        """Makes a known cut the start."""
        self.start = max(self.start, cut)
        self._ended = [extent for extent in self._ended if extent.last >= cut]

    def _opened(self) -> list[Extent]:
        """Open extents as if they had no end, the last one first."""
        firsts = sorted((extent.first for extent in self._open.values()), reverse=True)
        return [Extent(first, self.position) for first in firsts]

    def _follow(self, batch: SealedBatch) -> None:
        if not batch.is_control and not batch.record_count:
            # Compaction keeps empty batches, whose marker may be gone.
            return
        transaction = self._follower.follow(batch)
        if transaction is None:
            return
        if batch.is_control:
            extent = self._open.pop(batch.producer_id, None)
            if extent is not None and extent.first < extent.last:
                self._ended.append(extent)
        elif transaction.end is None or transaction.end.commit:
            first = max(batch.base_offset, self.position)
            extent = self._open.setdefault(batch.producer_id, Extent(first, first))
            extent.last = batch.last_offset


def _as_indexed(aborted: AbortedTransaction) -> AbortedTxn:
    return AbortedTxn(aborted.producer_id, aborted.first_offset, NO_OFFSET, NO_OFFSET)
