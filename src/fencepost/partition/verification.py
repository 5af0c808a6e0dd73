"""Guards against hanging transactions (KIP-890): first writes that wait for the coordinator.

Theory of operation.

The first transactional write of a producer to a partition is appended only after the coordinator
has confirmed that the transaction is open and includes the partition. An abort marker may arrive
between that answer and the append; the write would then open a transaction that no marker ever
ends. So a request for verification creates a guard, and the append must present the same guard. A
marker removes the guard (KAFKA-14884), except in TV2 the marker of the producer's previous
transaction, which has the same epoch as the next transaction.

During a verification, batches with a higher sequence than the lowest one under verification are
refused. Otherwise a failed verification of the first batch would let the second one in
(KAFKA-14920).
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
        """The guard of a producer; None when no verification is under way."""
        return self._guards.get(producer_id)

    def begin(
        self, producer_id: int, epoch: int, sequence: int, now_ms: int, *, starts_at_zero: bool
    ) -> Guard:
        """Returns the guard of this producer; creates one unless its epoch has one."""
        guard = self._guards.get(producer_id)
        if guard is None or guard.epoch < epoch:
            guard = Guard(epoch, sequence, now_ms, starts_at_zero)
            self._guards[producer_id] = guard
        elif guard.epoch == epoch and sequence < guard.lowest_sequence:
            guard.lowest_sequence = sequence
        return guard

    def written(self, producer_id: int) -> None:
        """Removes the guard: the first write is in the log."""
        self._guards.pop(producer_id, None)

    def marked(self, producer_id: int, epoch: int, transaction_version: int) -> None:
        """Removes the guard after a marker, unless it belongs to the next transaction."""
        guard = self._guards.get(producer_id)
        if guard is not None and not (transaction_version >= 2 and guard.epoch == epoch):
            del self._guards[producer_id]

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Removes guards older than `expiration_ms`."""
        self._guards = {
            producer_id: guard
            for producer_id, guard in self._guards.items()
            if now_ms - guard.timestamp_ms < expiration_ms
        }
