"""The batches of one partition, from a broker or from a folder.

A log yields complete batches in order of their offsets, from the one that holds an offset to the
end of the log, and checks their CRCs. The first of two passes checks those of markers only, so
that the records of a segment need not be in memory. A batch is a view of memory, valid as long as
it is referenced.
"""

from __future__ import annotations

import logging
import mmap
import os
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from fencepost.base.failures import ConfigError, CorruptError
from fencepost.base.ids import TopicPartition
from fencepost.records.batch import HEADER_BYTES, BatchError, SealedBatch, read_header
from fencepost.records.fates import Fate, Known, Transaction, TransactionFollower, fates
from fencepost.records.segment_walk import is_zero
from fencepost.records.snapshot import ProducerSnapshotEntry, decode_snapshot
from fencepost.spark.connection import cluster_of
from fencepost.spark.source.options import SourceOptions
from fencepost.spark.source.positions import fetch_partition
from fencepost.spark.views.log_folders import LogFolder

if TYPE_CHECKING:
    from fencepost.client.fetched import FetchedPartition

log = logging.getLogger(__name__)

_USUAL_RECORD_BYTES: Final = 512


class JudgedBatch(NamedTuple):
    """A batch, its fate and the first offset of its transaction; None if that is not known."""

    batch: SealedBatch
    fate: Fate
    transaction_start: int | None


class PartitionLog(Protocol):
    """One partition."""

    @property
    def place(self) -> TopicPartition:
        """Which partition it is."""
        ...

    def record_estimate(self, start: int, end: int) -> int:
        """About how many records [start, end) has: whether it pays to load compiled loops."""
        ...

    def batches(self, start: int, *, checked: bool = True) -> Iterator[SealedBatch]:
        """The batches from the one that holds `start`, or the next one, to the end of the log."""
        ...

    def open_at(self, start: int) -> Mapping[int, int] | None:
        """By producer: where its transaction that is open at `start` began. None: not known."""
        ...

    def judged(self, start: int, end: int) -> Iterator[JudgedBatch]:
        """The batches of [start, end) with their fates."""
        ...


@dataclass(frozen=True, slots=True)
class FolderLog:
    """A partition in a folder."""

    folder: LogFolder

    @property
    def place(self) -> TopicPartition:
        return self.folder.place

    def record_estimate(self, start: int, end: int) -> int:
        segment = self.folder.segment(start)
        return os.path.getsize(segment) // _USUAL_RECORD_BYTES if os.path.exists(segment) else 0

    def batches(self, start: int, *, checked: bool = True) -> Iterator[SealedBatch]:
        bases = self.folder.base_offsets
        first = max(bisect_right(bases, start) - 1, 0)
        for base in bases[first:]:
            yield from self._segment(base, start, checked=checked, is_last=base == bases[-1])

    def _segment(
        self, base: int, start: int, *, checked: bool, is_last: bool
    ) -> Iterator[SealedBatch]:
        path = self.folder.segment(base)
        data = _contents(path)
        position = 0
        while position < len(data):
            try:
                batch = _batch_at(data, position)
            except BatchError:
                if is_zero(data[position:]):
                    return  # Preallocated space.
                raise CorruptError(_damage(path, position, self.place)) from None
            if batch is None:
                if not is_last:
                    raise CorruptError(_damage(path, position, self.place))
                # A copy of a log that was being written, or the torn tail of a crash.
                log.warning("%s ends inside a batch at byte %d; read up to there", path, position)
                return
            position += batch.size_bytes
            if batch.next_offset > start:
                if (checked or batch.is_control) and not batch.is_sound:
                    raise CorruptError(_damage(path, position - batch.size_bytes, self.place))
                yield batch

    def open_at(self, start: int) -> Mapping[int, int]:
        entries = self.snapshot(start)
        if entries is None:
            return self._open_by_reading(start)
        return {
            entry.producer_id: entry.current_txn_first_offset
            for entry in entries
            if entry.current_txn_first_offset >= 0
        }

    def snapshot(self, offset: int) -> list[ProducerSnapshotEntry] | None:
        """The producer snapshot at the start of a segment; None if it cannot be used."""
        try:
            with open(self.folder.file(offset, "snapshot"), "rb") as file:
                return decode_snapshot(file.read())
        except (OSError, ValueError):
            return None

    def _open_by_reading(self, start: int) -> Mapping[int, int]:
        follower = TransactionFollower()
        for batch in self.batches(0, checked=False):
            if batch.base_offset >= start:
                break
            follower.follow(batch)
        return _open_in(follower)

    def judged(self, start: int, end: int) -> Iterator[JudgedBatch]:
        return judge_twice(self, start, end, self.open_at(start))


@dataclass(frozen=True, slots=True)
class BrokerLog:
    """A partition of a broker, up to an end that was fetched when the query was planned."""

    place: TopicPartition
    options: SourceOptions
    log_start: int
    end: int
    topic_id: bytes | None

    def record_estimate(self, start: int, end: int) -> int:
        return end - start

    def batches(self, start: int, *, checked: bool = True) -> Iterator[SealedBatch]:
        # Always checked: the client does that.
        position = start
        while position < self.end:
            fetched = self._fetch(position, "read_uncommitted")
            if fetched.next_offset <= position:
                raise TimeoutError(
                    f"{self.place}: nothing came after offset {position}, and records up to "
                    f"{self.end} must be there: look at the brokers"
                )
            for batch in fetched.batches:
                if batch.next_offset > position and batch.base_offset < self.end:
                    yield batch
            position = fetched.next_offset

    def _fetch(self, position: int, isolation: str) -> FetchedPartition:
        cluster = cluster_of(self.options.client)
        # Nothing to wait for: what is asked for has been written, or is behind open transactions.
        return fetch_partition(
            cluster, self.place, position, self.topic_id, isolation=isolation, max_wait_ms=0
        )

    def open_at(self, start: int) -> Mapping[int, int] | None:
        # Finding what began before the span would mean reading the partition twice.
        return {} if start == self.log_start else None

    def judged(self, start: int, end: int) -> Iterator[JudgedBatch]:
        """Below the last stable offset a broker names the aborted transactions in every reply."""
        follower = TransactionFollower(Known(open_at_start=self.open_at(start)))
        position = start
        while position < end:
            fetched = self._fetch(position, "read_committed")
            if not fetched.batches:
                break
            visible = {id(batch) for batch in fetched.visible_batches()}
            for batch in fetched.batches:
                if batch.base_offset >= end:
                    return
                transaction = follower.follow(batch)
                if batch.next_offset > start:
                    fate = _settled_fate(batch, is_visible=id(batch) in visible)
                    yield JudgedBatch(batch, fate, start_of(transaction))
            position = fetched.next_offset
        # The rest is behind the last stable offset: only its markers decide.
        yield from judge_twice(self, position, end, _open_in(follower))


def _open_in(follower: TransactionFollower) -> dict[int, int]:
    return {each.producer_id: each.first_offset for each in follower.open.values()}


def judge_twice(
    log: PartitionLog, start: int, end: int, open_at_start: Mapping[int, int] | None
) -> Iterator[JudgedBatch]:
    """Reads headers until all markers are found, even beyond the end; then the batches again.

    `open_at_start` is what `open_at(start)` would say.
    """
    known = Known(open_at_start=open_at_start)
    found = transactions_from(log, start, end, known)
    for judged in fates(_until(log.batches(start), end), found, known):
        yield JudgedBatch(judged.batch, judged.fate, start_of(judged.transaction))


def transactions_from(
    log: PartitionLog, start: int, end: int, known: Known
) -> dict[tuple[int, int], Transaction]:
    """The transactions in [start, end), each with its end if the log has it."""
    follower = TransactionFollower(known)
    found = {each.key: each for each in follower.open.values()}
    for batch in log.batches(start, checked=False):
        if batch.base_offset >= end:
            # What begins here does not count: what is open was open at the end of the span.
            if not follower.open:
                break
            if not batch.is_control:
                continue
        transaction = follower.follow(batch)
        if transaction is not None and not batch.is_control:
            found.setdefault(transaction.key, transaction)
    return found


def start_of(transaction: Transaction | None) -> int | None:
    """The first offset of a transaction; None if it is not known, or there is none."""
    return transaction.first_offset if transaction is not None and transaction.has_start else None


def _settled_fate(batch: SealedBatch, *, is_visible: bool) -> Fate:
    if batch.is_control:
        return Fate.CONTROL
    if not batch.is_transactional:
        return Fate.NOT_TRANSACTIONAL
    return Fate.COMMITTED if is_visible else Fate.ABORTED


def _until(batches: Iterator[SealedBatch], end: int) -> Iterator[SealedBatch]:
    for batch in batches:
        if batch.base_offset >= end:
            return
        yield batch


def _contents(path: str) -> memoryview:
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            # An empty file cannot be mapped. Every batch refers to the mapping, so it stays.
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
    except OSError as problem:
        raise ConfigError(
            f"{path} cannot be read: {problem.strerror}. Every executor must have the folder of "
            "path, and nothing may be deleted from it during the query"
        ) from problem
    return memoryview(mapped)


def _batch_at(data: memoryview, position: int) -> SealedBatch | None:
    """The batch at a position; None if the file ends inside it, BatchError if it is no batch."""
    if len(data) - position < HEADER_BYTES:
        return None
    batch = read_header(data, position)
    return batch if len(batch.data) == batch.size_bytes else None


def _damage(path: str, position: int, place: TopicPartition) -> str:
    return (
        f"{place}: {path} is damaged at byte {position}. `fencepost dump {path}` shows what is "
        "before and behind it; leave the partition out with assign to read the others"
    )
