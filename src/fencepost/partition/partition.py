"""A partition at its leader: appends, applies and reads.

See the room's docstring for the rules. There are three appends:

- `append_from_client`: one sealed batch of a producer, checked in Kafka's order: its records, their
  times and keys, duplicates, the producer's epoch, the verification guard, the sequence. A refusal
  changes nothing.
- `append_records`: the records of a coordinator as one batch, without checks.
- `append_marker`: the end of a transaction.

The broker calls `advance_high_watermark` when an append is durable. With `durable_at_append` (the
default: a batch survives the process, not a power loss) the append itself does.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from fencepost.base.errors import ErrorCode
from fencepost.base.failures import StorageError
from fencepost.base.ids import TopicPartition
from fencepost.base.refusal import Refusal
from fencepost.base.seams import Buffer
from fencepost.log.cleaning import LastRecord
from fencepost.log.config import LogConfig
from fencepost.log.durability import PendingSync
from fencepost.log.log import Log
from fencepost.log.retention import expired_segments
from fencepost.log.roll import should_roll
from fencepost.partition.admission import check_admission
from fencepost.partition.open_txns import OpenTxns
from fencepost.partition.opening import Opening, must_open
from fencepost.partition.producer_check import check_producer
from fencepost.partition.producers import CompletedTxn, Producers
from fencepost.partition.snapshots import ProducerSnapshots
from fencepost.partition.verification import Guard, Verification
from fencepost.records.batch import SealedBatch
from fencepost.records.builder import build_pairs
from fencepost.records.control import Marker, build_marker, read_marker
from fencepost.records.entry import Entry

NONE: Final = ErrorCode.NONE

POINT_BYTES: Final = 16 * 1024 * 1024
"""Written between two saved points. A survivor reads the headers of at most this much."""
POINT_BATCH_BYTES: Final = 3 * 1024
"""What a batch counts in addition to its size: reading its header takes as long as that."""
POINT_PRODUCER_BYTES: Final = 8 * 1024
"""Written per producer between two saved points, so that many producers are not saved too often."""
WORTH_SAVING: Final = POINT_BYTES // 16
"""Housekeeping saves a partition from here on, and a clean close any that is not read again."""

SCANNED_PER_STEP: Final = 500
"""Batches that recovery applies between two yields: about a millisecond."""


@dataclass(slots=True, init=False)
class Appended:
    """Where a batch is in the log; a duplicate gets the offsets of its first append."""

    base_offset: int
    end_offset: int
    append_time_ms: int

    def __init__(self, base_offset: int, end_offset: int, append_time_ms: int) -> None:
        self.base_offset = base_offset
        self.end_offset = end_offset
        self.append_time_ms = append_time_ms


class Fetched(NamedTuple):
    """The result of a fetch: whole batches, the bounds, and the aborted transactions in them."""

    error: ErrorCode
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: Sequence[tuple[int, int]] | None = None
    data: Buffer = b""


class Partition:
    """One topic-partition that this node leads."""

    __slots__ = (
        "_durable_at_append",
        "_first_unstable",
        "_on_moved",
        "_on_sealed",
        "_snapshots",
        "_until_point",
        "closed",
        "high_watermark",
        "is_moved",
        "is_under_min_isr",
        "leader_epoch",
        "log",
        "name",
        "open_txns",
        "producers",
        "topic_id",
        "verification",
    )

    def __init__(
        self,
        name: TopicPartition,
        topic_id: bytes,
        leader_epoch: int,
        log: Log,
        *,
        durable_at_append: bool,
        recover: bool = True,
    ) -> None:
        """Without `recover`, the caller runs all steps of `recovery` before any other call."""
        self.name = name
        self.topic_id = topic_id
        self.leader_epoch = leader_epoch
        self.log = log
        self.closed = False
        """Deleted or led by another broker: the folder may belong to another partition by now."""
        self.is_moved = False
        """Whether it is closed because another broker leads it, and not because it was deleted."""
        self.is_under_min_isr = False
        """Whether it has fewer in-sync replicas than `min.insync.replicas` requires."""
        self.producers = Producers()
        self.open_txns = OpenTxns()
        self.verification = Verification()
        self.high_watermark = log.log_start_offset
        self._durable_at_append = durable_at_append
        self._first_unstable: int | None = None
        self._on_moved: Callable[[Partition], None] | None = None
        self._on_sealed: Callable[[Partition], None] | None = None
        self._snapshots = ProducerSnapshots(log)
        log.rebuild_aborted_with(self._snapshots.aborted_between)
        self._until_point = POINT_BYTES
        """Bytes to write before the next saved point; each batch counts a little more."""
        if recover:
            for _ in self.recovery():
                pass

    def __repr__(self) -> str:
        return (
            f"Partition({self.name}, {self.log_start_offset}..{self.log_end_offset}, "
            f"stable to {self.last_stable_offset}, epoch {self.leader_epoch})"
        )

    # -- bounds ---------------------------------------------------------------------------------

    @property
    def log_start_offset(self) -> int:
        """The first offset that may be read."""
        return self.log.log_start_offset

    @property
    def log_end_offset(self) -> int:
        """The offset of the next record."""
        return self.log.log_end_offset

    @property
    def last_stable_offset(self) -> int:
        """The first offset that read_committed readers may not read."""
        unstable = self._first_unstable
        if unstable is None:
            return self.high_watermark
        return min(self.high_watermark, max(unstable, self.log.log_start_offset))

    def advance_high_watermark(self, offset: int) -> None:
        """Notes that everything below `offset` is durable by the chosen mode."""
        assert offset <= self.log.log_end_offset, (
            "the high watermark never passes the end of the log"
        )
        if offset > self.high_watermark:
            self.high_watermark = offset
            if self._first_unstable is not None:
                self.open_txns.forget_ended(offset)
                self._first_unstable = self.open_txns.first_unstable_offset()
            self._tell_moved()

    def observe(
        self,
        on_moved: Callable[[Partition], None],
        on_sealed: Callable[[Partition], None] | None = None,
    ) -> None:
        """Sets the callbacks: a bound or the leader epoch has moved; a segment is complete."""
        self._on_moved = on_moved
        self._on_sealed = on_sealed

    def _tell_moved(self) -> None:
        if self._on_moved is not None:
            self._on_moved(self)

    # -- writing --------------------------------------------------------------------------------

    def append_from_client(
        self,
        batch: SealedBatch,
        now_ms: int,
        guard: Guard | None = None,
        opening: Opening | None = None,
    ) -> Appended | Refusal:
        """Checks and appends one batch of a producer; `opening` if its records were checked."""
        config = self.log.config
        if opening is None and must_open(batch, config):
            opening = Opening(batch, config)
            opening.open_now()
        if refusal := check_admission(batch, config, now_ms, opening):
            return refusal
        if batch.producer_id >= 0:
            state = self.producers.get(batch.producer_id)
            if state is not None and (known := state.find_duplicate(batch)):
                return Appended(known.base_offset, known.last_offset + 1, known.timestamp_ms)
            if refusal := check_producer(self.producers, self.verification, batch, state, guard):
                return refusal
        if opening is not None and opening.repacked is not None:
            batch = opening.repacked
        append_time_ms = -1
        if config.is_append_time:
            batch.stamp_append_time(now_ms)
            append_time_ms = now_ms
        elif opening is not None and not batch.is_append_time:
            # Kafka does not trust the header either.
            batch.correct_max_timestamp(opening.newest_ms)
        base_offset = self.log.log_end_offset
        batch.assign(base_offset, self.leader_epoch)
        self._append(batch, now_ms)
        return Appended(base_offset, batch.next_offset, append_time_ms)

    def in_txn(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether this producer has an open transaction here at this epoch."""
        state = self.producers.get(producer_id)
        return state is not None and state.in_txn and state.epoch == producer_epoch

    def begin_verification(
        self, batch: SealedBatch, now_ms: int, *, starts_at_zero: bool
    ) -> Guard | Refusal | None:
        """Returns the guard for a first write that the coordinator must verify.

        None if the transaction is open here. A duplicate from an earlier transaction needs
        verification like any other batch: its producer may have been fenced since.
        """
        state = self.producers.get(batch.producer_id)
        if state is not None:
            if fenced := state.check_epoch(batch.producer_epoch):
                return fenced
            if state.in_txn and state.epoch == batch.producer_epoch:
                return None
        return self.verification.begin(
            batch.producer_id,
            batch.producer_epoch,
            batch.base_sequence,
            now_ms,
            starts_at_zero=starts_at_zero,
        )

    def append_records(
        self,
        records: Sequence[tuple[bytes | None, bytes | None]],
        now_ms: int,
        *,
        producer_id: int = -1,
        producer_epoch: int = -1,
        transactional: bool = False,
    ) -> int:
        """Appends the records of a coordinator as one batch; returns the log end offset."""
        base_offset = self.log.log_end_offset
        batch = build_pairs(
            records,
            timestamp_ms=now_ms,
            base_offset=base_offset,
            leader_epoch=self.leader_epoch,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transactional=transactional,
        )
        self._append(batch, now_ms)
        return batch.next_offset

    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        *,
        commit: bool,
        coordinator_epoch: int,
        transaction_version: int,
        now_ms: int,
    ) -> int | Refusal:
        """Ends a transaction here; returns the end of the log after the marker."""
        refusal = self.producers.check_marker(
            producer_id,
            producer_epoch,
            coordinator_epoch=coordinator_epoch,
            transaction_version=transaction_version,
        )
        if refusal is not None:
            return refusal
        batch = build_marker(
            Marker(commit, coordinator_epoch),
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            timestamp_ms=now_ms,
            base_offset=self.log.log_end_offset,
            leader_epoch=self.leader_epoch,
        )
        self._append(batch, now_ms)
        self.verification.marked(producer_id, producer_epoch, transaction_version)
        return batch.next_offset

    def _append(self, batch: SealedBatch, now_ms: int) -> None:
        log = self.log
        if self.closed:
            raise StorageError(f"{self.name} is closed")
        if log.epochs.latest != self.leader_epoch:
            # With the first batch of an epoch, as in Kafka: an empty partition needs no file.
            log.assign_epoch(self.leader_epoch, log.log_end_offset)
        if should_roll(log.active, log.config, batch, now_ms):
            self._roll(now_ms)
        log.append(batch)
        if batch.producer_id >= 0:
            self._apply(batch, index_aborted=True)
        self._until_point -= batch.size_bytes + POINT_BATCH_BYTES
        if self._until_point < 0:
            self.save_point()
        if self._durable_at_append:
            self.advance_high_watermark(log.log_end_offset)

    def _roll(self, now_ms: int) -> None:
        log = self.log
        log.roll(now_ms)
        self._snapshots.save(log.log_end_offset, self.producers)
        self.save_point()
        if self._on_sealed is not None:
            self._on_sealed(self)

    # -- applying: live and in recovery ---------------------------------------------------------

    def _apply(self, batch: SealedBatch, *, index_aborted: bool) -> None:
        if not batch.is_control:
            # Transactional offset commits have no sequence, but they open a transaction too.
            if (batch.base_sequence >= 0 or batch.is_transactional) and (
                self.producers.apply_batch(batch)
            ):
                self._begin(batch.base_offset, batch.producer_id)
            if batch.is_transactional:
                self.verification.written(batch.producer_id)
            return
        marker = read_marker(batch)
        if marker is None:  # A control record of an unknown type ends nothing.
            return
        if completed := self.producers.apply_marker(batch, marker):
            self._complete(completed, index_aborted=index_aborted)

    def _begin(self, first_offset: int, producer_id: int) -> None:
        self.open_txns.begin(first_offset, producer_id)
        if self._first_unstable is None:
            self._first_unstable = first_offset

    def _complete(self, completed: CompletedTxn, *, index_aborted: bool) -> None:
        if completed.aborted and index_aborted:
            # Before the last stable offset moves: no reader may get aborted records as committed.
            # The log keeps the entry in memory if the disk fails.
            self.log.append_aborted(self.open_txns.as_aborted(completed))
        self.open_txns.end(completed)

    # -- recovery -------------------------------------------------------------------------------

    def save_point(self) -> None:
        """Saves where recovery begins if the process is killed now; a failure costs only time."""
        log = self.log
        self._until_point = self._point_interval()
        if not self.closed and not log.is_unborn:
            log.points.save(log.active, self.topic_id, self.producers.save())

    def _point_interval(self) -> int:
        return max(POINT_BYTES, POINT_PRODUCER_BYTES * len(self.producers))

    @property
    def is_worth_saving(self) -> bool:
        """Whether a survivor would have to read more than a little of this log."""
        return self._point_interval() - self._until_point >= WORTH_SAVING

    def recovery(self) -> Generator[None, None, None]:
        """Restores the producers from the newest usable snapshot and the batches after it.

        Yields now and then, so that others can be served. After a crash the transaction indexes of
        the recovered segments are empty, or end at the saved point. They are rebuilt from the
        batches, so a snapshot above that point cannot be used.
        """
        log = self.log
        if log.is_unborn:
            return
        recovered_from = log.log_end_offset if log.recovered_from is None else log.recovered_from
        start, open_txns = self._snapshots.restore(self.producers, recovered_from, self.topic_id)
        scanned = 0
        for first_offset, producer_id in open_txns:
            self._begin(first_offset, producer_id)
        saved = set(log.snapshots.offsets())
        unsaved = [s.base_offset for s in log.segments if s.base_offset > start]
        for batch in log.scan(start, headers_only=True):
            scanned += 1
            if scanned % SCANNED_PER_STEP == 0:
                yield
            if batch.producer_id < 0 or batch.base_offset < start:
                continue
            self._snapshots.save_bases(unsaved, batch.base_offset, saved, self.producers)
            self._apply(batch, index_aborted=batch.base_offset >= recovered_from)
        self._snapshots.save_bases(unsaved, log.log_end_offset, saved, self.producers)
        self._snapshots.prune()
        self._until_point = self._point_interval() - scanned * POINT_BATCH_BYTES - _unsaved(log)
        log.points.found = None
        self.advance_high_watermark(log.log_end_offset)

    # -- reading --------------------------------------------------------------------------------

    def fetch(
        self, offset: int, max_bytes: int, *, read_committed: bool, at_least_one: bool = True
    ) -> Fetched:
        """Reads whole batches from `offset` up to the reader's bound."""
        log = self.log
        high_watermark = self.high_watermark
        stable = self.last_stable_offset
        start = log.log_start_offset
        if offset < start or offset > log.log_end_offset:
            return Fetched(ErrorCode.OFFSET_OUT_OF_RANGE, high_watermark, stable, start)
        upper = stable if read_committed else high_watermark
        if offset >= upper or (max_bytes <= 0 and not at_least_one):
            return Fetched(NONE, high_watermark, stable, start, () if read_committed else None)
        part = log.read(offset, max_bytes, upper_offset=upper, at_least_one=at_least_one)
        aborted: Sequence[tuple[int, int]] | None = None
        if read_committed:
            aborted = [
                (txn.producer_id, txn.first_offset)
                for txn in log.aborted_between(offset, part.next_offset)
            ]
        return Fetched(NONE, high_watermark, stable, start, aborted, part.data)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest epoch not above `epoch` and its end offset; (-1, -1) when unknown."""
        if epoch == self.leader_epoch:  # It may have no batch in the log yet.
            return epoch, self.log.log_end_offset
        return self.log.epochs.end_offset_for(epoch, self.log.log_end_offset)

    def entries(self, from_offset: int = 0) -> Iterator[Entry]:
        """Every record and marker from an offset on, opened; skips damage."""
        return self.log.entries(max(from_offset, self.log.log_start_offset))

    def whole_entries(self, from_offset: int = 0) -> Iterator[Entry]:
        """The same for the load of a coordinator: DamagedError if a record cannot be read."""
        return self.log.whole_entries(from_offset)

    # -- maintenance ----------------------------------------------------------------------------

    def reconfigure(self, config: LogConfig) -> None:
        """Replaces the config of the topic."""
        self.log.config = config

    def check_leader_epoch(self, epoch: int) -> ErrorCode | None:
        """The error for a client with an older or newer leader epoch; -1 if it sent none."""
        if epoch in (-1, self.leader_epoch):
            return None
        if epoch < self.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        return ErrorCode.UNKNOWN_LEADER_EPOCH

    def bump_leader_epoch(self, leader_epoch: int) -> None:
        """Raises the leader epoch of the batches to come."""
        assert leader_epoch >= self.leader_epoch, "leader epochs only grow"
        self.leader_epoch = leader_epoch
        self._tell_moved()

    def expire_producers(self, now_ms: int, expiration_ms: int) -> None:
        """Forgets producers and guards that were idle for `expiration_ms`."""
        self.producers.expire(now_ms, expiration_ms)
        self.verification.expire(now_ms, expiration_ms)

    def retention(self, now_ms: int) -> Generator[PendingSync, None, int]:
        """Removes segments past the topic's retention or below the log start; returns how many.

        The caller runs each sync that this yields before it continues.

        The producers are saved where the log will begin, and the snapshot is durable before
        anything is removed.
        """
        log = self.log
        log.check_usable()
        count = len(expired_segments(log, now_ms, self.high_watermark))
        if count == len(log.segments):
            self._roll(now_ms)
        begin = log.segments[count].base_offset
        if count:
            self._snapshots.save_start(begin, self.producers)
            if log.needs_flush or log.recovery_point < begin:
                pending = log.prepare_flush()
                yield pending
                log.complete_sync(pending)
        # The log may have changed during the sync: remove only what is still below the offset.
        removed = log.remove_below(begin if log.recovery_point >= begin else 0)
        if removed:
            self._tell_moved()
        return len(removed)

    def last_records(self) -> dict[int, LastRecord]:
        """What compaction must keep of each producer, so that its next sequence stays known."""
        return {
            state.producer_id: LastRecord(
                state.batches[-1].last_offset if state.batches else None, state.epoch
            )
            for state in self.producers
        }

    def delete_before(self, offset: int) -> ErrorCode:
        """Serves nothing below `offset` (DeleteRecords); retention removes the segments."""
        if offset > self.high_watermark or offset < 0:
            return ErrorCode.OFFSET_OUT_OF_RANGE
        if offset > self.log.log_start_offset:
            self.log.start_at(offset)
            self._tell_moved()
        return NONE

    def prepare_close(self) -> bool:
        """Writes what a clean close needs, without a sync; returns whether a sync is needed."""
        log = self.log
        if log.log_end_offset == 0:
            return False
        if not self._is_read_again():
            self._snapshots.save_end(self.producers)
        log.write_index()
        return log.is_unsynced

    def _is_read_again(self) -> bool:
        """Whether the next start reads so little of this log that it needs no snapshot.

        The log must tell everything: nothing was removed from it, and no producer has expired.
        """
        log = self.log
        return (
            self._snapshots.saved_at is None
            and log.is_small
            and log.log_start_offset == 0
            and not log.config.is_compacted
            and not self.producers.has_forgotten
        )

    def close(self, *, clean: bool) -> None:
        """Closes the log; StorageError when a clean close fails."""
        self.closed = True
        try:
            if clean and self.log.log_end_offset > 0 and not self._is_read_again():
                self._snapshots.save_end(self.producers)
                self._save_window()
        except StorageError:
            self.log.close(clean=False)
            raise
        self.log.close(clean=clean)

    def _save_window(self) -> None:
        """Saves the last batches of all producers, of which a snapshot has only one each.

        A producer may send its last batches again to the next leader, and must get their offsets.
        """
        log = self.log
        if len(self.producers) and log.points.offset != log.log_end_offset:
            log.points.save(log.active, self.topic_id, self.producers.save())


def _unsaved(log: Log) -> int:
    """The bytes of the active segment after the saved point."""
    point, active = log.points.found, log.active
    if point is None or point.segment.base_offset != active.base_offset:
        return active.size_bytes
    return active.size_bytes - point.segment.position
