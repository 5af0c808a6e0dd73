"""What compaction keeps of one batch: Kafka's rules, batch by batch, without any file.

- A record stays when it is the newest of its key as far as this round looked; a tombstone also
  needs its delete horizon not to have passed. The first cleaning that meets a tombstone sets the
  horizon to now + delete.retention.ms, in the header of its batch (KIP-534), so that readers have
  that long to see it.
- Records of aborted transactions go at once.
- A marker stays as long as any batch of its transaction does, and then until its own horizon has
  passed.
- A batch that ends up empty stays, without records, when it is the last one of an active producer:
  its sequence is what makes the next batch acceptable (KAFKA-5490, KAFKA-8335). So does the last
  batch of a segment: a segment ends where the next one begins, and recovery relies on it. (Kafka
  keeps only the last batch of a round in this way.)
- A batch that cannot be opened is nobody's to judge: it stays as it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterable, Mapping
from heapq import heappop, heappush
from typing import Final, NamedTuple

from fencepost.base.seams import Buffer
from fencepost.records.batch import BatchError, SealedBatch
from fencepost.records.builder import rebuild_batch
from fencepost.records.control import read_marker
from fencepost.records.index import AbortedTxn
from fencepost.records.opened import Record, iterate_records, open_batch

MAX_KEYS: Final = 1_000_000
"""Keys of one round. Kafka's map of 128 MB holds about five million; a Python dict needs 200 bytes
for each. What does not fit is left to the next round."""
RECORDS_PER_STEP: Final = 2_000
"""After so many records, some milliseconds, others have a turn."""
_DIGEST_BYTES: Final = 16


class LastRecord(NamedTuple):
    """The newest trace of a producer: its last data batch, or else the epoch of its last marker."""

    last_data_offset: int | None
    producer_epoch: int


class NewestOffsets:
    """For every key of the dirty part its newest offset; `end_offset` is where the map stops knowing."""

    __slots__ = ("_newest", "end_offset", "max_keys")

    def __init__(self, max_keys: int = MAX_KEYS) -> None:
        self._newest: dict[bytes, int] = {}
        self.max_keys = max_keys
        self.end_offset = 0

    def put(self, key: bytes, offset: int) -> bool:
        """False when there is no room for another key."""
        name = _fingerprint(key)
        if name not in self._newest and len(self._newest) >= self.max_keys:
            return False
        self._newest[name] = offset
        return True

    def is_newest(self, key: bytes, offset: int) -> bool:
        return offset >= self._newest.get(_fingerprint(key), -1)


def _fingerprint(key: bytes) -> bytes:
    """Long keys are remembered by a hash, as Kafka remembers all of them."""
    if len(key) <= _DIGEST_BYTES:
        return key
    return hashlib.blake2b(key, digest_size=_DIGEST_BYTES, person=b"key").digest() + b"#"


class CleanedTransactions:
    """Follows the transactions of the log in the order of their batches."""

    __slots__ = ("_aborted", "_committed", "_expected", "retained")

    def __init__(self) -> None:
        self._expected: list[tuple[int, AbortedTxn]] = []
        self._aborted: dict[int, tuple[AbortedTxn, bool]] = {}
        self._committed: set[int] = set()
        self.retained: list[AbortedTxn] = []
        """Aborted transactions of which a batch is still there: the new transaction index."""

    def expect(self, aborted: Iterable[AbortedTxn]) -> None:
        """Aborted transactions that touch the segment to come; known ones may come again."""
        for txn in aborted:
            heappush(self._expected, (txn.first_offset, txn))

    def _begin_up_to(self, offset: int) -> None:
        while self._expected and self._expected[0][0] <= offset:
            txn = heappop(self._expected)[1]
            self._aborted.setdefault(txn.producer_id, (txn, False))

    def is_aborted(self, batch: SealedBatch) -> bool:
        """Whether a data batch belongs to an aborted transaction."""
        self._begin_up_to(batch.last_offset)
        if not batch.is_transactional:
            return False
        if (found := self._aborted.get(batch.producer_id)) is not None:
            self._aborted[batch.producer_id] = (found[0], True)
            return True
        self._committed.add(batch.producer_id)
        return False

    def is_marker_idle(self, batch: SealedBatch) -> bool:
        """Whether nothing of the transaction that a control batch ends was there any more."""
        self._begin_up_to(batch.last_offset)
        if batch.record_count == 0:
            return True
        try:
            marker = read_marker(batch)
        except BatchError:
            return False
        if marker is None:
            return False
        if marker.commit:
            idle = batch.producer_id not in self._committed
            self._committed.discard(batch.producer_id)
            return idle
        txn, was_seen = self._aborted.pop(batch.producer_id, (None, False))
        if txn is None or not was_seen:
            return True
        self.retained.append(txn)
        return False


class Cleaner:
    """Decides about one batch after the other, from the beginning of the log on."""

    def __init__(
        self,
        newest: NewestOffsets,
        last_records: Mapping[int, LastRecord],
        *,
        now_ms: int,
        delete_retention_ms: int,
    ) -> None:
        self._newest = newest
        self._last_records = last_records
        self._now_ms = now_ms
        self._delete_retention_ms = delete_retention_ms
        self.transactions = CleanedTransactions()
        self.segment_end_offset = -1
        """Where the segment that is being written must end."""

    def clean(self, batch: SealedBatch) -> Generator[None, None, Buffer | None]:
        """What to write for a batch: its own bytes, new ones, or nothing.

        Yields where it has many records.
        """
        if batch.is_control:
            return self._clean_control(batch)
        if self.transactions.is_aborted(batch):
            return self._emptied(batch)
        kept: list[Record] = []
        is_bare = False
        try:
            for number, record in enumerate(iterate_records(batch), 1):
                if self._keeps(batch, record):
                    kept.append(record)
                    is_bare = is_bare or record.value is None
                if number % RECORDS_PER_STEP == 0:
                    yield
        except BatchError:
            return batch.data
        if not kept:
            return self._emptied(batch)
        sets_horizon = batch.delete_horizon_ms is None and is_bare
        if len(kept) == batch.record_count and not sets_horizon:
            return batch.data
        horizon = self._new_horizon() if sets_horizon else batch.delete_horizon_ms
        return rebuild_batch(batch, kept, delete_horizon_ms=horizon)

    def _clean_control(self, batch: SealedBatch) -> Buffer | None:
        if not self.transactions.is_marker_idle(batch):
            return batch.data
        horizon = batch.delete_horizon_ms
        if batch.record_count == 0 or (horizon is not None and horizon <= self._now_ms):
            return self._emptied(batch)
        if horizon is not None:
            return batch.data
        return rebuild_batch(batch, open_batch(batch), delete_horizon_ms=self._new_horizon())

    def _keeps(self, batch: SealedBatch, record: Record) -> bool:
        if record.offset >= self._newest.end_offset:
            return True
        if record.key is None:
            return False
        if not self._newest.is_newest(record.key, record.offset):
            return False
        horizon = batch.delete_horizon_ms
        return record.value is not None or horizon is None or self._now_ms < horizon

    def _new_horizon(self) -> int:
        return self._now_ms + self._delete_retention_ms

    def _emptied(self, batch: SealedBatch) -> Buffer | None:
        """Nothing, or the bare header where a producer or the range of offsets needs it."""
        if batch.next_offset != self.segment_end_offset and not self._is_last_of_producer(batch):
            return None
        if batch.record_count == 0:
            return batch.data
        return rebuild_batch(batch, (), delete_horizon_ms=None)

    def _is_last_of_producer(self, batch: SealedBatch) -> bool:
        last = self._last_records.get(batch.producer_id) if batch.has_producer_id else None
        if last is None:
            return False
        if last.last_data_offset is not None:
            return batch.last_offset == last.last_data_offset
        return batch.is_control and batch.producer_epoch == last.producer_epoch
