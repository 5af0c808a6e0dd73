"""The history of one transactional id, as its coordinators wrote it.

Theory of operation. Every change of a transaction is one record in the id's partition of
`__transaction_state`: state, producer id and epoch, timeout, partitions, and the time by the
coordinator's clock. The batch around it carries the epoch of the coordinator that wrote it. Read in
order, the records are the history:

    Empty -> Ongoing ... -> PrepareCommit -> CompleteCommit -> Ongoing ...
    Empty -> Ongoing ... -> PrepareAbort  -> CompleteAbort  -> Empty (a new epoch) ...

The topic is compacted: in the end only the newest record of an id remains. What is missing shows in
two ways. A pair of states that cannot follow each other has lost something in between, and a first
record that is not the birth of an id has lost what came before. Nothing here guesses what it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from fencepost.base.ids import NO_PRODUCER_ID
from fencepost.records.transaction_log import STATE_NAMES, TransactionMetadata

if TYPE_CHECKING:
    from fencepost.base.ids import TopicPartition

EMPTY, ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT = range(6)
TOMBSTONE: Final = "Dead"
UNREADABLE: Final = "unreadable"

_IDLE: Final = frozenset({EMPTY, ONGOING, PREPARE_ABORT})
_FOLLOWERS: Final = {
    # TV2 may abort before anything was written: PrepareAbort follows an idle state.
    EMPTY: _IDLE,
    ONGOING: frozenset({ONGOING, PREPARE_COMMIT, PREPARE_ABORT}),
    PREPARE_COMMIT: frozenset({COMPLETE_COMMIT}),
    PREPARE_ABORT: frozenset({COMPLETE_ABORT}),
    COMPLETE_COMMIT: _IDLE,
    COMPLETE_ABORT: _IDLE,
}
"""The states that the next record may have if none was compacted away."""


@dataclass(frozen=True, slots=True)
class StateChange:
    """One record of an id."""

    offset: int
    written_at_ms: int
    """The time of the record, by the coordinator's clock."""
    coordinator_epoch: int
    """The leader epoch of the batch; -1 if it is not known."""
    metadata: TransactionMetadata | None
    """None for a tombstone, and for a record that cannot be read."""
    problem: str | None = None
    """Why the record cannot be read."""

    @property
    def state(self) -> str:
        """The state by Kafka's name; `Dead` for a tombstone."""
        if self.metadata is None:
            return UNREADABLE if self.problem else TOMBSTONE
        return STATE_NAMES[self.metadata.state]

    @property
    def at_ms(self) -> int:
        """When the coordinator decided the change, shortly before it wrote the record."""
        return self.written_at_ms if self.metadata is None else self.metadata.last_update_ms

    @property
    def is_tombstone(self) -> bool:
        """Whether the id expired here."""
        return self.metadata is None and self.problem is None

    @property
    def identity(self) -> tuple[int, int] | None:
        """Producer id and epoch, if the record tells."""
        if self.metadata is None:
            return None
        return self.metadata.producer_id, self.metadata.producer_epoch


@dataclass(frozen=True, slots=True)
class History:
    """The records of one id that are left, oldest first."""

    transactional_id: str
    partition: TopicPartition
    changes: Sequence[StateChange]
    log_start: int
    log_end: int
    reached: int
    """The offset up to which the partition was read."""
    removed: int = 0
    """Offsets of the partition that compaction removed: records of any id."""

    @property
    def is_whole(self) -> bool:
        """Whether the partition was read to its end."""
        return self.reached >= self.log_end

    @property
    def has_birth(self) -> bool:
        """Whether the first record is the first that was ever written for the id."""
        first = self.changes[0].metadata if self.changes else None
        return (
            first is not None
            and first.state == EMPTY
            and first.producer_epoch == 0
            and first.previous_producer_id in (NO_PRODUCER_ID, first.producer_id)
        )

    @property
    def last(self) -> StateChange | None:
        """The newest record."""
        return self.changes[-1] if self.changes else None

    def gaps(self) -> Iterator[tuple[StateChange, StateChange]]:
        """Yields neighbours that lost records between them."""
        for before, after in pairwise(self.changes):
            if not follows(before, after):
                yield before, after


def follows(before: StateChange, after: StateChange) -> bool:
    """Whether nothing can be missing between two records."""
    if after.problem or before.problem:
        return True
    if before.metadata is None:
        return after.metadata is not None and after.metadata.state == EMPTY
    if after.metadata is None:
        return before.metadata.state in (EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT)
    if after.metadata.state not in _FOLLOWERS[before.metadata.state]:
        return False
    if before.metadata.state == ONGOING:
        # The next transaction of the same producer: the end of this one is missing.
        return before.metadata.start_ms == after.metadata.start_ms
    return True


def lost_in_words(history: History) -> str | None:
    """A sentence about what compaction took; None if the history is complete."""
    if not history.changes:
        return None
    gaps = sum(1 for _ in history.gaps())
    if history.has_birth and not gaps:
        return None
    parts = []
    if not history.has_birth:
        parts.append(f"what came before offset {history.changes[0].offset}")
    if gaps:
        parts.append(f"records at {gaps} place{'s' if gaps > 1 else ''} in between")
    return (
        f"Compaction of {history.partition.topic} took {' and '.join(parts)} "
        f"({history.removed:,} records of all ids are missing from {history.partition})."
    )
