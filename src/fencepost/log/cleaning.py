"""What compaction keeps of each batch, by Kafka's rules; does no I/O.

- A record is kept if it is the newest of its key in this round. A tombstone is kept until its
  delete horizon. The first round that finds a tombstone sets the horizon to now +
  delete.retention.ms in the batch header (KIP-534), so that readers have that long to read it.
- Records of aborted transactions are removed.
- A marker is kept as long as a batch of its transaction is, and then until its horizon.
- An emptied batch is kept, without records, if it is the last one of an active producer: its
  sequence decides about the next batch (KAFKA-5490, KAFKA-8335). So is the last batch of a segment:
  recovery relies on segments that end where the next one begins. (Kafka keeps only the last batch
  of a round.)
- A batch that cannot be opened is kept unchanged.
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
per key. The next round cleans the rest."""
RECORDS_PER_STEP: Final = 2_000
"""Records between two yields: some milliseconds of work."""
_DIGEST_BYTES: Final = 16


class LastRecord(NamedTuple):
    """The end of a producer's last data batch, if there is one, and its epoch."""

    last_data_offset: int | None
    producer_epoch: int


class NewestOffsets:
    """The newest offset of every key of the dirty part; `end_offset` is where the map ends."""

    __slots__ = ("_newest", "end_offset", "max_keys")

    def __init__(self, max_keys: int = MAX_KEYS) -> None:
        self._newest: dict[bytes, int] = {}
        self.max_keys = max_keys
        self.end_offset = 0

    def put(self, key: bytes, offset: int) -> bool:
        """Sets the newest offset of a key; False when the map is full."""
        name = _fingerprint(key)
        if name not in self._newest and len(self._newest) >= self.max_keys:
            return False
        self._newest[name] = offset
        return True

    def is_newest(self, key: bytes, offset: int) -> bool:
        """Whether no later record of the key is in the map."""
        return offset >= self._newest.get(_fingerprint(key), -1)


def _fingerprint(key: bytes) -> bytes:
    """Long keys are stored as a hash; Kafka hashes all keys."""
    if len(key) <= _DIGEST_BYTES:
        return key
    return hashlib.blake2b(key, digest_size=_DIGEST_BYTES, person=b"key").digest() + b"#"


class CleanedTransactions:
    """Tracks the transactions of the log in the order of their batches."""

    __slots__ = ("_aborted", "_committed", "_expected", "retained")

    def __init__(self) -> None:
        self._expected: list[tuple[int, AbortedTxn]] = []
        self._aborted: dict[int, tuple[AbortedTxn, bool]] = {}
        self._committed: set[int] = set()
        self.retained: list[AbortedTxn] = []
        """Aborted transactions that still have a batch: the new transaction index."""

    def expect(self, aborted: Iterable[AbortedTxn]) -> None:
        """Adds the aborted transactions of the next segment; known ones may be repeated."""
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
        """Whether no batch is left of the transaction that a control batch ends."""
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
    """Cleans one batch after the other, from the beginning of the log on."""

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
        """The end offset of the segment that is being written."""

    def clean(self, batch: SealedBatch) -> Generator[None, None, Buffer | None]:
        """Returns the bytes to write for a batch, or None; yields if it has many records."""
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
        """None, or a batch without records if a producer or the segment's end needs it."""
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
