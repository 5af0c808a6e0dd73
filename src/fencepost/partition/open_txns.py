"""The open transactions of one partition, and the last stable offset that follows from them.

Theory of operation ------------------- A transaction is open here from its first batch to its
marker. Offsets only grow, so transactions are kept in the order in which they began and the oldest
is the first of the dictionary.

A marker ends a transaction, but as long as the marker itself may still be lost (it lies at or above
the high watermark) the transaction stays unstable: otherwise a reader could be shown records whose
fate a crash takes back. Such transactions wait in `_ending` until the high watermark passes their
marker.
"""

from __future__ import annotations

from fencepost.partition.producers import CompletedTxn


class OpenTxns:
    """First offsets of what is open, oldest first."""

    __slots__ = ("_ending", "_open")

    def __init__(self) -> None:
        self._open: dict[int, int] = {}  # first offset -> producer id
        self._ending: dict[int, int] = {}  # first offset -> offset of the marker

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, first_offset: int, producer_id: int) -> None:
        assert not self._open or first_offset > next(reversed(self._open)), (
            "transactions begin in order"
        )
        self._open[first_offset] = producer_id

    def stable_after(self, completed: CompletedTxn) -> int:
        """The last stable offset once `completed` has ended: what the aborted index stores with it."""
        for first_offset in self._open:
            if first_offset != completed.first_offset:
                return first_offset
        return completed.last_offset + 1

    def end(self, completed: CompletedTxn) -> None:
        owner = self._open.pop(completed.first_offset)
        assert owner == completed.producer_id, "a marker ends the transaction of its own producer"
        self._ending[completed.first_offset] = completed.last_offset

    def settle(self, high_watermark: int) -> None:
        """Forgets the ended transactions whose marker can no longer be lost."""
        if self._ending:
            self._ending = {
                first: marker for first, marker in self._ending.items() if marker >= high_watermark
            }

    def first_unstable_offset(self) -> int | None:
        """The first offset whose fate is not settled; None when all are."""
        oldest = next(iter(self._open), None)
        if self._ending:
            ending = min(self._ending)
            return ending if oldest is None else min(oldest, ending)
        return oldest
