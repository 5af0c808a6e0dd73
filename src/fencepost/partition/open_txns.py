"""The open transactions of one partition, and the last stable offset that follows from them.

Theory of operation.

A transaction is open from its first batch to its marker. Offsets only grow, so the dictionary is in
the order of first offsets, and its first entry is the oldest.

A marker ends a transaction. While the marker is at or above the high watermark, a crash may still
lose it, so the transaction stays unstable: a reader must not get records as committed that a crash
reopens. Such transactions wait in `_ending` until the high watermark passes their marker.
"""

from __future__ import annotations

from fencepost.partition.producers import CompletedTxn
from fencepost.records.index import AbortedTxn


class OpenTxns:
    """The first offsets of open transactions, oldest first."""

    __slots__ = ("_ending", "_open")

    def __init__(self) -> None:
        self._open: dict[int, int] = {}  # first offset -> producer id
        self._ending: dict[int, int] = {}  # first offset -> offset of the marker

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, first_offset: int, producer_id: int) -> None:
        """Adds a transaction; first offsets must increase."""
        assert not self._open or first_offset > next(reversed(self._open)), (
            "transactions begin in order"
        )
        self._open[first_offset] = producer_id

    def stable_after(self, completed: CompletedTxn) -> int:
        """The last stable offset after `completed` ends; the aborted index stores it."""
        for first_offset in self._open:
            if first_offset != completed.first_offset:
                return first_offset
        return completed.last_offset + 1

    def as_aborted(self, completed: CompletedTxn) -> AbortedTxn:
        """The entry of the transaction index for a transaction that was aborted."""
        return AbortedTxn(
            completed.producer_id,
            completed.first_offset,
            completed.last_offset,
            self.stable_after(completed),
        )

    def end(self, completed: CompletedTxn) -> None:
        """Ends a transaction; it stays unstable until its marker is durable."""
        owner = self._open.pop(completed.first_offset)
        assert owner == completed.producer_id, "a marker ends a transaction of its producer"
        self._ending[completed.first_offset] = completed.last_offset

    def forget_ended(self, high_watermark: int) -> None:
        """Forgets the ended transactions whose marker is below the high watermark."""
        if self._ending:
            self._ending = {
                first: marker for first, marker in self._ending.items() if marker >= high_watermark
            }

    def oldest_producer_id(self) -> int | None:
        """Whose transaction is the oldest; None if none is open."""
        return next(iter(self._open.values()), None)

    def first_unstable_offset(self) -> int | None:
        """The first offset that is neither committed nor aborted durably; None if there is none."""
        oldest = next(iter(self._open), None)
        if self._ending:
            ending = min(self._ending)
            return ending if oldest is None else min(oldest, ending)
        return oldest
