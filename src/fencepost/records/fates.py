"""The fate of each batch of a partition: committed, aborted, open, or outside any transaction.

Theory of operation. A producer has at most one open transaction in a partition. It begins with the
producer's first transactional batch after its last marker, and the producer's next marker ends it,
whatever its epoch: in TV2, and when the coordinator fences, a marker has a higher epoch than the
batches. So a fate needs the batches in order and the markers, and nothing else:

    batches:       A1   B1   A2   plain   B:commit   A3   A:abort
    transactions:  A from A1, aborted; B from B1, committed

Three ways to use it:

    two passes   the first follows headers and markers and keeps each `Transaction` by its `key`;
                 in the second, `fates` has the fate of every batch at once
    one pass     `fates_when_decided` holds batches back until the fate of the oldest is decided
    by hand      `TransactionFollower` turns each batch into its `Transaction`, whose `end` is set
                 when the marker comes

A range need not begin with the log or contain the markers. `Known` carries what else is known:
which transactions were open where the range begins, which were aborted (a read_committed fetch or
`.txnindex`), and below which offset every transaction has ended. What remains is UNKNOWN if the
range ends before the log does, and OPEN otherwise.

A marker need not have a transaction: the coordinator also writes one to a partition that was added
and never written. It ends nothing here.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, NamedTuple

from fencepost.base.ids import NO_PRODUCER_EPOCH
from fencepost.records.batch import SealedBatch
from fencepost.records.control import read_marker
from fencepost.records.index import AbortedTxn

NO_OFFSET: Final = -1
MAX_HELD_BYTES: Final = 64 << 20
"""How much `fates_when_decided` holds back for the oldest open transaction."""


class Fate(Enum):
    """What became of a batch."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    OPEN = "open"
    """Its transaction had no marker when the log ended."""
    UNKNOWN = "unknown"
    """Its marker, if there is one, lies beyond what was read."""
    NOT_TRANSACTIONAL = "not transactional"
    CONTROL = "control"
    """A marker, or another control record."""


class End(NamedTuple):
    """The end of a transaction in one partition.

    If the marker was not read, its offset may be known from an index; the rest is -1.
    """

    commit: bool
    offset: int = NO_OFFSET
    at_ms: int = -1
    """The coordinator's clock."""
    coordinator_epoch: int = -1
    producer_epoch: int = NO_PRODUCER_EPOCH

    @property
    def fate(self) -> Fate:
        """The fate of the transaction's batches."""
        return Fate.COMMITTED if self.commit else Fate.ABORTED


@dataclass(slots=True, eq=False)
class Transaction:
    """A transaction of one producer in one partition. (producer id, first offset) identifies it."""

    producer_id: int
    producer_epoch: int
    """The epoch of its first batch that was read."""
    first_offset: int
    has_start: bool
    """Whether `first_offset` is the true one; if not, the transaction may have begun earlier."""
    end: End | None = None

    @property
    def key(self) -> tuple[int, int]:
        """What identifies the transaction in its partition."""
        return self.producer_id, self.first_offset


class BatchFate(NamedTuple):
    """A batch, its fate and its transaction."""

    batch: SealedBatch
    fate: Fate
    transaction: Transaction | None
    """For a marker the transaction that it ended, if there was one."""
    end: End | None
    """The end of the transaction; for a marker what it says. None: not ended, or no marker."""


@dataclass(frozen=True, slots=True)
class Known:
    """What is known about a range beside its batches."""

    open_at_start: Mapping[int, int] | None = None
    """The first offset of the transaction of each producer that had one open where the range
    begins: from a producer snapshot, DescribeProducers or an earlier scan. None: not known, so a
    batch may continue an earlier transaction."""
    aborted: Collection[AbortedTxn] = ()
    """Aborted transactions, from `.txnindex` or a fetch; `last_offset` -1 if not known."""
    stable_offset: int = 0
    """Every transaction that began below has ended, and `aborted` names those that were aborted."""
    reaches_log_end: bool = True
    """Whether a transaction without a marker is open, rather than unknown."""


WHOLE_LOG: Final = Known(open_at_start={})
"""The range is the log from its start to its end."""


class TransactionFollower:
    """Turns the batches of a partition, in order, into its transactions."""

    __slots__ = ("_aborted", "_closed_at", "_keeps_closed", "_known", "open")

    def __init__(self, known: Known = WHOLE_LOG) -> None:
        self._known = known
        self._aborted = _by_producer(known.aborted)
        self._closed_at: dict[int, int] = {}
        """The last marker of each producer: a listed transaction before it is over."""
        self._keeps_closed = known.open_at_start is None or bool(known.aborted)
        self.open: dict[int, Transaction] = {}
        """By producer id: the transactions without a marker so far."""
        for producer_id, first_offset in (known.open_at_start or {}).items():
            self._begin(producer_id, NO_PRODUCER_EPOCH, first_offset, first_offset, True)

    def learn(self, aborted: Iterable[AbortedTxn], stable_offset: int) -> None:
        """Uses the list and the last stable offset of the next fetch; the list replaces the last.

        Every reply of a read_committed fetch lists all aborted transactions that overlap it.
        """
        self._aborted = _by_producer(aborted)
        self._keeps_closed = True
        self._known = replace(self._known, stable_offset=stable_offset)

    def follow(self, batch: SealedBatch) -> Transaction | None:
        """Returns the transaction of a data batch, or the one that a marker ended."""
        if not batch.is_transactional:
            return None
        if not batch.is_control:
            return self.write(
                batch.producer_id, batch.producer_epoch, batch.base_offset, batch.base_sequence
            )
        marker = read_marker(batch)
        if marker is None:
            return None
        end = End(
            marker.commit,
            batch.base_offset,
            batch.max_timestamp,
            marker.coordinator_epoch,
            batch.producer_epoch,
        )
        return self.end(batch.producer_id, end)

    def write(
        self, producer_id: int, producer_epoch: int, base_offset: int, base_sequence: int
    ) -> Transaction:
        """Follows a data batch of a transaction."""
        found = self.open.get(producer_id)
        if found is not None:
            if found.producer_epoch == NO_PRODUCER_EPOCH:
                found.producer_epoch = producer_epoch
            return found
        # The first batch of an epoch begins a transaction: an epoch never begins inside one.
        has_start = base_sequence == 0 or self.knows_all_of(producer_id)
        return self._begin(producer_id, producer_epoch, base_offset, base_offset, has_start)

    def knows_all_of(self, producer_id: int) -> bool:
        """Whether a producer without an open transaction here has none from before the range."""
        return self._known.open_at_start is not None or producer_id in self._closed_at

    def end(self, producer_id: int, end: End) -> Transaction | None:
        """Follows a marker; returns the transaction that it ended."""
        if self._keeps_closed:
            self._closed_at[producer_id] = end.offset
        found = self.open.pop(producer_id, None)
        if found is not None:
            found.end = end
        return found

    def _begin(
        self,
        producer_id: int,
        producer_epoch: int,
        first_offset: int,
        seen_offset: int,
        has_start: bool,
    ) -> Transaction:
        begun = Transaction(producer_id, producer_epoch, first_offset, has_start)
        if aborted := self._find_aborted(producer_id, seen_offset):
            begun.first_offset = min(first_offset, aborted.first_offset)
            begun.has_start = True
            begun.end = End(False, aborted.last_offset)
        elif first_offset < self._known.stable_offset:
            begun.end = End(True)
        self.open[producer_id] = begun
        return begun

    def _find_aborted(self, producer_id: int, offset: int) -> AbortedTxn | None:
        """Returns the listed transaction that a batch at `offset` belongs to."""
        listed = self._aborted.get(producer_id)
        if listed is None:
            return None
        index = bisect_right(listed, offset, key=lambda txn: txn.first_offset) - 1
        if index < 0:
            return None
        txn = listed[index]
        if txn.first_offset <= self._closed_at.get(producer_id, NO_OFFSET):
            return None
        return txn if txn.last_offset == NO_OFFSET or offset < txn.last_offset else None

    def reach_log_end(self) -> None:
        """Notes that the log ends here: what has no marker yet is open."""
        self._known = replace(self._known, reaches_log_end=True)

    def fate(self, transaction: Transaction) -> Fate:
        """Returns the fate of a transaction's batches as far as it is known now."""
        if transaction.end is not None:
            return transaction.end.fate
        return Fate.OPEN if self._known.reaches_log_end else Fate.UNKNOWN


def _by_producer(aborted: Iterable[AbortedTxn]) -> dict[int, list[AbortedTxn]]:
    grouped: dict[int, list[AbortedTxn]] = {}
    for txn in sorted(aborted, key=lambda each: each.first_offset):
        grouped.setdefault(txn.producer_id, []).append(txn)
    return grouped


# -- two passes -----------------------------------------------------------------------------------


def fates(
    batches: Iterable[SealedBatch],
    transactions: Mapping[tuple[int, int], Transaction],
    known: Known = WHOLE_LOG,
    *,
    follower: TransactionFollower | None = None,
) -> Iterator[BatchFate]:
    """The second pass over the same batches, or over a part of them with its own `known`.

    A `follower` replaces `known` and carries open transactions from part to part.
    """
    follower = follower or TransactionFollower(known)
    for batch in batches:
        followed = follower.follow(batch)
        if followed is not None:
            followed = transactions.get(followed.key, followed)
        yield _judge(batch, followed, follower)


def _judge(
    batch: SealedBatch, transaction: Transaction | None, follower: TransactionFollower
) -> BatchFate:
    if batch.is_control:
        return BatchFate(batch, Fate.CONTROL, transaction, end_of_marker(batch, transaction))
    if transaction is None:
        return BatchFate(batch, Fate.NOT_TRANSACTIONAL, None, None)
    return BatchFate(batch, follower.fate(transaction), transaction, transaction.end)


def end_of_marker(batch: SealedBatch, transaction: Transaction | None) -> End | None:
    """Returns what a control batch says; None if it is not a marker."""
    if transaction is not None and transaction.end and transaction.end.offset == batch.base_offset:
        return transaction.end
    marker = read_marker(batch)
    if marker is None:
        return None
    return End(
        marker.commit,
        batch.base_offset,
        batch.max_timestamp,
        marker.coordinator_epoch,
        batch.producer_epoch,
    )


# -- one pass -------------------------------------------------------------------------------------


def fates_when_decided(
    batches: Iterable[SealedBatch],
    known: Known = WHOLE_LOG,
    *,
    follower: TransactionFollower | None = None,
    max_held_bytes: int = MAX_HELD_BYTES,
) -> Iterator[BatchFate]:
    """Yields every batch in order, each when its fate is decided.

    An open transaction holds back what follows it. Beyond `max_held_bytes` the oldest batch is
    yielded as UNKNOWN, so memory stays bounded. A `follower` that learns between the batches
    replaces `known`.
    """
    follower = follower or TransactionFollower(known)
    held: deque[tuple[SealedBatch, Transaction | None]] = deque()
    held_bytes = 0
    for batch in batches:
        held.append((batch, follower.follow(batch)))
        held_bytes += len(batch.data)
        while held and (_is_decided(*held[0]) or held_bytes > max_held_bytes):
            oldest, transaction = held.popleft()
            held_bytes -= len(oldest.data)
            judged = _judge(oldest, transaction, follower)
            yield judged._replace(fate=Fate.UNKNOWN) if judged.fate is Fate.OPEN else judged
    for batch, transaction in held:
        yield _judge(batch, transaction, follower)


def _is_decided(batch: SealedBatch, transaction: Transaction | None) -> bool:
    return batch.is_control or transaction is None or transaction.end is not None
