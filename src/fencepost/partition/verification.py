"""Guards against hanging transactions (KIP-890): who asked the coordinator and has not written yet.

Theory of operation ------------------- The first transactional write of a producer to a partition
is only appended after the coordinator has said that the transaction is open and lists the
partition. Between that answer and the append, an abort marker may slip in; the write would then
open a transaction that nobody will ever end. So whoever asks takes a guard, and the append must
show the same guard: a marker takes it away (KAFKA-14884), except the marker of the producer's
previous transaction in TV2, which carries the very epoch that the next transaction uses.

While the question is open, batches with higher sequences than the lowest one asked about are
refused, else a failed verification of the first batch would let the second one in (KAFKA-14920).
"""

from __future__ import annotations


class Guard:
    """A unique token; only its identity matters."""

    __slots__ = ("epoch", "lowest_sequence", "starts_at_zero", "timestamp_ms")

    def __init__(self, epoch: int, sequence: int, timestamp_ms: int, starts_at_zero: bool) -> None:
        self.epoch = epoch
        self.lowest_sequence = sequence
        self.timestamp_ms = timestamp_ms
        self.starts_at_zero = starts_at_zero


class Verification:
    """The guards of one partition, by producer id."""

    __slots__ = ("_guards",)

    def __init__(self) -> None:
        self._guards: dict[int, Guard] = {}

    def get(self, producer_id: int) -> Guard | None:
        return self._guards.get(producer_id)

    def begin(
        self, producer_id: int, epoch: int, sequence: int, now_ms: int, *, starts_at_zero: bool
    ) -> Guard:
        """The guard of this producer, made now unless one of the same epoch is there."""
        guard = self._guards.get(producer_id)
        if guard is None or guard.epoch < epoch:
            guard = Guard(epoch, sequence, now_ms, starts_at_zero)
            self._guards[producer_id] = guard
        elif guard.epoch == epoch and sequence < guard.lowest_sequence:
            guard.lowest_sequence = sequence
        return guard

    def written(self, producer_id: int) -> None:
        """The first write is in the log: the question is settled."""
        self._guards.pop(producer_id, None)

    def marked(self, producer_id: int, epoch: int, transaction_version: int) -> None:
        """A marker was written: takes the guard away unless it belongs to the next transaction."""
        guard = self._guards.get(producer_id)
        if guard is not None and not (transaction_version >= 2 and guard.epoch == epoch):
            del self._guards[producer_id]

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        self._guards = {
            producer_id: guard
            for producer_id, guard in self._guards.items()
            if now_ms - guard.timestamp_ms < expiration_ms
        }
