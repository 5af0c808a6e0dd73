"""The log of a partition: finds the segment of an offset, rolls, reads, and tracks syncs."""

from __future__ import annotations

import contextlib
import logging
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator
from typing import Final

from fencepost.base.failures import DamagedError, StorageError
from fencepost.base.seams import Disk
from fencepost.log import snapshots
from fencepost.log.config import LogConfig
from fencepost.log.durability import PendingSync, Unsynced
from fencepost.log.epochs import LeaderEpochs
from fencepost.log.names import LOG
from fencepost.log.recovery import finish_swap, open_segments_of
from fencepost.log.retention import expired_segments
from fencepost.log.segment.open_segments import OpenSegments
from fencepost.log.segment.segment import SMALL_LOG_BYTES, LogSlice, Segment
from fencepost.log.segment.survey import MAX_RELATIVE_OFFSET
from fencepost.log.times import TimestampOffset, find_newest, find_timestamp
from fencepost.records.batch import SealedBatch
from fencepost.records.entry import Entry, entries_of
from fencepost.records.index import AbortedTxn

_LOGGER: Final = logging.getLogger(__name__)

SMALLEST_PART: Final = 1024
"""A log is small only below this fraction of a segment (1/1024), however small segments are."""


class Log:
    """See the room's docstring; the caller assigns offsets, and they must be consecutive."""

    def __init__(
        self,
        disk: Disk,
        folder: str,
        config: LogConfig,
        segments: list[Segment],
        open_segments: OpenSegments,
        *,
        log_start_offset: int,
        recovery_point: int,
        recovered_from: int | None,
        was_clean: bool,
        make_folder: Callable[[], None] | None = None,
    ) -> None:
        """Use `Log.open` or `Log.unborn`."""
        self._make_folder = make_folder
        self.disk = disk
        self._open_segments = open_segments
        self._active = segments[-1]
        self._bases = [segment.base_offset for segment in segments]
        self._is_torn = False
        self._leftover: Segment | None = None
        self._failure: str | None = None
        self._swap: tuple[list[Segment], Segment] | None = None
        """A compacted segment that is not in its place yet, and the segments it replaces."""
        self._doomed: list[Segment] = []
        """Removed segments whose files the disk could not delete yet."""
        self.is_closed = False
        self._unsynced = Unsynced(disk, folder, is_known_durable=was_clean)
        self._indexes_end = segments[-1].next_offset if was_clean else -1
        """The log end offset of the active segment's index files; -1 when they are stale."""
        self.folder = folder
        self.config = config
        self.segments = segments
        self.log_end_offset = self._active.next_offset
        self.log_start_offset = max(log_start_offset, self._bases[0])
        self.recovery_point = min(recovery_point, self.log_end_offset)
        self.first_dirty_offset = self.log_start_offset
        """Where the next compaction starts; its owner may keep it across a restart."""
        self.missing: list[tuple[int, int]] = []
        """Offsets that were on the disk and are in no segment, as (first, end) ranges."""
        self._lost_end = recovery_point if recovery_point > self.log_end_offset else 0
        if self._lost_end:
            self.missing.append((self.log_end_offset, recovery_point))
        self.is_start_lost = (
            not config.is_deleted_from and log_start_offset < self._bases[0] and make_folder is None
        )
        """Whether the log begins after the owner's start, though it never removes segments."""
        if self.is_start_lost:
            self.missing.insert(0, (log_start_offset, self._bases[0]))
        self.recovered_from = recovered_from
        """The first offset that recovery has read; None after a clean close."""
        self.epochs = LeaderEpochs(disk, folder, is_new=make_folder is not None)
        for segment in segments[:-1]:
            if recovered_from is not None and segment.base_offset >= recovered_from:
                self._unsynced.add_segment(segment)

    @classmethod
    def open(
        cls,
        disk: Disk,
        folder: str,
        config: LogConfig,
        *,
        now_ms: int,
        clean: bool,
        recovery_point: int = 0,
        log_start_offset: int = 0,
        open_segments: OpenSegments | None = None,
        lost_power: bool = True,
    ) -> Log:
        """Opens or creates the log of a folder.

        `clean` means that the owner closed the log with `close(clean=True)`, and nothing came
        after. Otherwise the segments from the one with `recovery_point` on are checked and cut, and
        their transaction indexes are emptied: the partition scans these segments to rebuild its
        producers and the indexes. `lost_power` says whether bytes that were never synced may be
        missing. If not, only the last append can be torn.
        """
        shared = OpenSegments() if open_segments is None else open_segments
        try:
            segments, recovered_from, epochs = open_segments_of(
                disk,
                folder,
                config,
                shared,
                now_ms=now_ms,
                recovery_point=None if clean else recovery_point,
                log_start_offset=log_start_offset,
                lost_power=lost_power,
            )
            log = cls(
                disk,
                folder,
                config,
                segments,
                shared,
                log_start_offset=log_start_offset,
                recovery_point=max(segments[-1].next_offset, recovery_point)
                if clean
                else recovery_point,
                recovered_from=recovered_from,
                was_clean=clean and recovered_from is None and segments[-1].size_bytes > 0,
            )
            for first, end in log.missing:
                _LOGGER.error(
                    "%s: offsets %d to %d were on the disk and are missing: their files were "
                    "removed. Put the files back from a copy while the broker is stopped",
                    folder,
                    first,
                    end - 1,
                )
            log._mend_epochs(epochs)
            # Rebuilding a transaction index starts from the producers at `recovered_from`.
            usable = log.log_end_offset if recovered_from is None else recovered_from
            snapshots.delete_snapshots_after(disk, folder, usable)
        except OSError as problem:
            raise StorageError(f"{folder} cannot be opened: {problem}") from problem
        return log

    @classmethod
    def unborn(
        cls,
        disk: Disk,
        folder: str,
        config: LogConfig,
        *,
        now_ms: int,
        make_folder: Callable[[], None],
        open_segments: OpenSegments | None = None,
    ) -> Log:
        """The log of a folder that does not exist yet: the first batch creates it.

        `assign_epoch`, which comes before the first batch, calls `make_folder`. Until then there is
        nothing to close, sync, recover or delete: an unused partition costs only memory.
        """
        shared = OpenSegments() if open_segments is None else open_segments
        segment = Segment(disk, folder, 0, shared, created_ms=now_ms)
        segment.begin()
        return cls(
            disk,
            folder,
            config,
            [segment],
            shared,
            log_start_offset=0,
            recovery_point=0,
            recovered_from=None,
            was_clean=False,
            make_folder=make_folder,
        )

    @property
    def is_unborn(self) -> bool:
        """Whether the folder does not exist yet."""
        return self._make_folder is not None

    def _mend_epochs(self, found: list[tuple[int, int]]) -> None:
        """Completes the leader epochs from the batches: the file may be stale or lost."""
        epochs = self.epochs
        if epochs.is_lost:
            found = [
                (batch.leader_epoch, batch.base_offset)
                for batch in self.scan(self._bases[0], headers_only=True)
            ]
        changes = (
            epochs.cut_end(self.log_end_offset),
            epochs.restore(found),
            epochs.cut_start(self.log_start_offset),
        )
        if any(changes):
            self._note_epochs()

    def _note_epochs(self) -> None:
        self._unsynced.add(self.epochs.path)
        self._unsynced.names_changed()

    def __repr__(self) -> str:
        return (
            f"<log {self.folder} {self.log_start_offset}..{self.log_end_offset},"
            f" {len(self.segments)} segments, {self.size_bytes} bytes>"
        )

    @property
    def size_bytes(self) -> int:
        """The size of all segments."""
        return sum(segment.size_bytes for segment in self.segments)

    @property
    def is_sound(self) -> bool:
        """Whether no damage is known."""
        return not self.missing and not any(segment.damage for segment in self.segments)

    @property
    def is_small(self) -> bool:
        """Whether reading the whole log is faster than writing index files and snapshots."""
        small_bytes = min(SMALL_LOG_BYTES, self.config.segment_bytes // SMALLEST_PART)
        return len(self.segments) == 1 and self._active.size_bytes <= small_bytes

    # --- appending -----------------------------------------------------------------------------

    def append(self, batch: SealedBatch) -> None:
        """Writes a batch whose offsets were assigned; a StorageError changes nothing."""
        assert batch.base_offset == self.log_end_offset, "offsets are consecutive"
        assert len(batch.data) == batch.size_bytes, "a batch is appended as a whole"
        if self._is_torn or self._failure is not None:
            self._mend()
        try:
            self._active.append(batch, self.config.index_interval_bytes)
        except OSError as problem:
            self._is_torn = True
            self._try_to_mend()
            raise StorageError(f"{self.folder}: the append failed: {problem}") from problem
        self.log_end_offset = batch.base_offset + batch.last_offset_delta + 1

    def _try_to_mend(self) -> None:
        with contextlib.suppress(StorageError):
            self._mend()  # If this fails, the next append tries again before it writes.

    def _mend(self) -> None:
        """Removes what a failed append or roll left; appends fail until this works."""
        self._check_usable()
        try:
            if self._leftover is not None:
                self._leftover.delete()
                self._leftover = None
                self._unsynced.names_changed()
            self._active.cut_tail()
        except OSError as problem:
            raise StorageError(f"{self.folder}: the torn tail stays: {problem}") from problem
        self._is_torn = False

    def _check_usable(self) -> None:
        if self._swap is not None:
            self._finish_swap()
        if self._failure is not None:
            raise StorageError(self._failure)

    def should_roll(self, batch: SealedBatch, now_ms: int) -> bool:
        """Whether the batch starts a new segment, by Kafka's rules."""
        active = self._active
        if active.size_bytes == 0:
            return False
        config = self.config
        return (
            active.size_bytes + batch.size_bytes > config.segment_bytes
            or self._waited_ms(batch, now_ms) > config.segment_ms - config.segment_jitter_ms
            or active.index().is_full(config.segment_index_bytes)
            or batch.base_offset + batch.last_offset_delta - active.base_offset
            > MAX_RELATIVE_OFFSET
        )

    def _waited_ms(self, batch: SealedBatch, now_ms: int) -> int:
        """The age of the segment by its records' times; by the clock if they have none."""
        first = self._active.first_timestamp
        if first is None or first < 0:
            return now_ms - self._active.created_ms
        return batch.max_timestamp - first

    def roll(self, now_ms: int) -> None:
        """Seals the active segment and begins a new one at the log end offset."""
        old = self._active
        if old.size_bytes == 0:
            return  # The new one would have the same name.
        if self._is_torn:
            self._mend()
        new = Segment(
            self.disk, self.folder, self.log_end_offset, self._open_segments, created_ms=now_ms
        )
        try:
            old.aborted.write_behind()  # Recovery does not scan a sealed segment.
            old.write_indexes()
            new.create()
        except OSError as problem:
            # Its file may exist, and its name is an offset that the old segment will use.
            self._leftover, self._is_torn = new, True
            self._try_to_mend()
            raise StorageError(f"{self.folder}: no new segment: {problem}") from problem
        old.seal()
        self.segments.append(new)
        self._bases.append(new.base_offset)
        self._active = new
        self._unsynced.add_segment(old)

    # --- reading -------------------------------------------------------------------------------

    def read(
        self, offset: int, max_bytes: int, *, upper_offset: int, at_least_one: bool = True
    ) -> LogSlice:
        """Reads whole batches from the one with `offset` on, all below `upper_offset`.

        At most `max_bytes` of one segment. With `at_least_one`, a larger first batch is read too.
        An empty slice means that there is nothing to read.
        """
        assert self.log_start_offset <= offset <= self.log_end_offset, (
            "the caller checked the range"
        )
        if offset >= upper_offset:
            return LogSlice(b"", offset)
        self._check_usable()
        try:
            if offset >= self._active.base_offset:
                found = self._active.read(offset, max_bytes, upper_offset, at_least_one)
            else:
                found = self._read_sealed(offset, max_bytes, upper_offset, at_least_one)
        except OSError as problem:
            raise StorageError(f"{self.folder}: reading failed: {problem}") from problem
        return found or LogSlice(b"", offset)

    def _read_sealed(
        self, offset: int, max_bytes: int, upper_offset: int, at_least_one: bool
    ) -> LogSlice | None:
        """Reads the segment with the offset, or the next one that has a batch after it."""
        first = max(0, bisect_right(self._bases, offset) - 1)
        for index in range(first, len(self.segments)):
            found = self.segments[index].read(offset, max_bytes, upper_offset, at_least_one)
            if found is not None:
                return found
        return None

    def segments_from(self, offset: int) -> list[Segment]:
        """The segment that contains an offset, and all later ones."""
        return self.segments[max(0, bisect_right(self._bases, offset) - 1) :]

    def place_of(self, offset: int) -> tuple[int, int]:
        """The place of the batch with this offset: base offset of its segment, and position."""
        segment = self._active
        if offset < segment.base_offset:
            segment = self.segments_from(offset)[0]
        if offset >= segment.next_offset:
            return segment.base_offset, segment.size_bytes
        try:
            position = segment.find(offset)
        except OSError as problem:
            raise StorageError(f"{self.folder}: reading failed: {problem}") from problem
        return segment.base_offset, segment.size_bytes if position is None else position

    def scan(self, from_offset: int, *, headers_only: bool = False) -> Iterator[SealedBatch]:
        """Iterates over the batches from the one with an offset to the end of the log.

        With `headers_only` data batches may lack their bytes; control batches are always whole.
        Segments may be compacted or removed between two batches: the scan continues in the segment
        that replaced them.
        """
        offset = from_offset
        while offset < self.log_end_offset and not self._active.is_gone:
            self._check_usable()
            segment = self.segments_from(offset)[0]
            for batch in self._scan_segment(segment, offset, headers_only):
                yield batch
                offset = batch.next_offset
                if self.is_closed:
                    return
            if not segment.is_gone:
                if segment is self._active:
                    return
                offset = max(offset, segment.next_offset)

    def _scan_segment(
        self, segment: Segment, offset: int, headers_only: bool
    ) -> Iterator[SealedBatch]:
        try:
            position = segment.seek(offset)
            if position is not None:
                for _, batch in segment.batches(position, headers_only=headers_only):
                    yield batch
        except OSError as problem:
            raise StorageError(f"{self.folder}: reading failed: {problem}") from problem

    def entries(self, from_offset: int) -> Iterator[Entry]:
        """The records and markers from an offset to the end of the log, opened."""
        for batch in self.scan(from_offset):
            for entry in entries_of(batch):
                if entry.offset >= from_offset:
                    yield entry

    def whole_entries(self, from_offset: int) -> Iterator[Entry]:
        """The same for a reader that must not miss a record.

        Raises DamagedError if a batch is missing or fails its check. `entries` skips damage and
        does not check CRCs.
        """
        for first, end in self.missing:
            if end > from_offset:
                raise DamagedError(f"{self.folder}: offsets {first} to {end - 1} are missing")
        offset = max(from_offset, self.log_start_offset)
        while offset < self.log_end_offset and not self._active.is_gone:
            self._check_usable()
            segment = self.segments_from(offset)[0]
            try:
                offset = yield from self._whole_segment(segment, offset)
            except OSError as problem:
                raise StorageError(f"{self.folder}: reading failed: {problem}") from problem
            if segment is self._active:
                return

    def _whole_segment(self, segment: Segment, from_offset: int) -> Generator[Entry, None, int]:
        """Yields the entries of one segment from an offset on; returns the next offset to read."""
        segment.refuse_damage(from_offset)
        next_offset = -1
        for batch in self._scan_segment(segment, from_offset, headers_only=False):
            if batch.base_offset < next_offset or not batch.is_sound:
                segment.examine()
            segment.refuse_damage(from_offset)
            for entry in entries_of(batch):
                if entry.offset >= from_offset:
                    yield entry
            next_offset = batch.next_offset
        if segment.is_gone:  # Compacted or removed meanwhile: its replacement is read next.
            return max(next_offset, from_offset)
        if next_offset < segment.next_offset and not segment.is_active:
            segment.examine()
        segment.refuse_damage(from_offset)
        return segment.next_offset

    def offset_for_timestamp(self, timestamp_ms: int, upper_offset: int) -> TimestampOffset | None:
        """Finds the first record below `upper_offset` with at least this timestamp."""
        return find_timestamp(self, timestamp_ms, upper_offset)

    def max_timestamp_offset(self) -> TimestampOffset | None:
        """Finds the first record with the largest timestamp of the log."""
        return find_newest(self)

    # --- shortening ----------------------------------------------------------------------------

    def delete_before(self, offset: int) -> None:
        """Moves the log start offset and removes the segments below it."""
        self.start_at(offset)
        removable = [segment for segment in self.segments[:-1] if segment.next_offset <= offset]
        self.remove_oldest(len(removable))

    def start_at(self, offset: int) -> None:
        """Moves the log start offset (DeleteRecords); retention removes the segments below it."""
        assert offset <= self.log_end_offset
        self.log_start_offset = max(self.log_start_offset, offset)

    def expired(self, now_ms: int, upper_offset: int) -> list[Segment]:
        """The oldest segments that are past their retention and below `upper_offset`."""
        return expired_segments(self, now_ms, upper_offset)

    def remove_oldest(self, count: int) -> list[Segment]:
        """Removes `count` segments; the next call tries again where the disk failed."""
        assert count < len(self.segments), "the active segment stays"
        removed = self.segments[:count]
        if removed:
            del self.segments[:count]
            del self._bases[:count]
            self._doomed += removed
            self.log_start_offset = max(self.log_start_offset, self._bases[0])
        if not self._doomed:
            return []
        self._unsynced.names_changed()
        try:
            while self._doomed:
                self._doomed[0].delete()
                del self._doomed[0]
            if self.epochs.cut_start(self.log_start_offset):
                self._note_epochs()
            snapshots.delete_snapshots_before(self.disk, self.folder, self._bases[0])
        except OSError as problem:
            raise StorageError(f"{self.folder}: a segment stays: {problem}") from problem
        return removed

    def holds(self, group: list[Segment]) -> bool:
        """Whether these segments are still neighbours in the log."""
        if group[0] not in self.segments or self._active in group:
            return False
        first = self.segments.index(group[0])
        return self.segments[first : first + len(group)] == group

    def replace_segments(self, group: list[Segment], size_bytes: int) -> Segment:
        """Finishes the swap that compaction has prepared for `group`; returns the new segment.

        If the disk fails in the middle, files and memory disagree: the log raises StorageError
        until a later use finishes the swap.
        """
        assert self.holds(group)
        new = Segment(
            self.disk,
            self.folder,
            group[0].base_offset,
            self._open_segments,
            size_bytes=size_bytes,
        )
        new.next_offset = group[-1].next_offset
        group[0].close()
        self._swap = (group, new)
        self._finish_swap()
        return new

    def _finish_swap(self) -> None:
        assert self._swap is not None
        group, new = self._swap
        try:
            for segment in group[1:]:
                segment.delete()
            finish_swap(self.disk, self.folder, new.base_offset, new.next_offset)
            self._unsynced.names_changed()
        except OSError as problem:
            self._failure = f"{self.folder}: a compacted segment is half in place: {problem}"
            raise StorageError(self._failure) from problem
        self._swap = None
        self._failure = None
        first = self._bases.index(new.base_offset)
        self.segments[first : first + len(group)] = [new]
        self._bases[first : first + len(group)] = [new.base_offset]

    # --- durability ----------------------------------------------------------------------------

    @property
    def is_unsynced(self) -> bool:
        """Whether a sync would have anything to do."""
        return not self.is_unborn and (
            self.log_end_offset > self.recovery_point or self._unsynced.is_pending
        )

    @property
    def needs_flush(self) -> bool:
        """Whether a sealed segment has not been synced yet."""
        return self._unsynced.has_segments

    @property
    def saved_recovery_point(self) -> int:
        """The recovery point for the checkpoint file.

        The indexes of a segment that was sealed after the sync are not synced, even if the segment
        ends at the recovery point. So a point inside the active segment is written down as one
        less, which is never the end of that segment.
        """
        point = self.recovery_point
        if self.log_end_offset < self._lost_end:
            return self._lost_end  # The next start must report the loss too.
        if point == self._active.base_offset and not self._unsynced.has_segments:
            return point
        return max(0, point - 1)

    def prepare_sync(self) -> PendingSync:
        """The sync that makes everything appended so far durable; see `durability.py`."""
        if self.is_unborn:
            return PendingSync(self.disk, end_offset=0, number=0, paths=[], folders=[])
        is_ahead = self.log_end_offset > self.recovery_point
        active = [self._active.path(LOG)] if is_ahead else []
        return self._prepare(self.log_end_offset, active)

    def prepare_flush(self) -> PendingSync:
        """The sync that makes the sealed segments durable, without the active one."""
        return self._prepare(self._active.base_offset, [])

    def _prepare(self, end_offset: int, more: list[str]) -> PendingSync:
        if self._active.aborted.is_behind:
            # If this fails, recovery rebuilds the index from the active segment.
            with contextlib.suppress(OSError, StorageError):
                self._active.aborted.write_behind()
                self._unsynced.add(self._active.aborted.path)
                self._unsynced.names_changed()
        return self._unsynced.prepare(end_offset, more)

    def complete_sync(self, pending: PendingSync) -> int:
        """Moves the recovery point after a sync has run; returns it."""
        if not self.is_closed:
            self.recovery_point = max(self.recovery_point, pending.end_offset)
            self._unsynced.complete(pending)
        return self.recovery_point

    def sync(self) -> int:
        """Makes everything durable; returns the recovery point."""
        pending = self.prepare_sync()
        pending.run()
        return self.complete_sync(pending)

    def close(self, clean: bool) -> None:
        """Closes all files; a clean close first makes data and indexes durable."""
        try:
            if clean:
                self._make_clean()
        except OSError as problem:
            raise StorageError(f"{self.folder} cannot be closed: {problem}") from problem
        finally:
            # Stops a round of compaction: the folder may soon belong to another log.
            self.is_closed = True
            self._failure = self._failure or f"{self.folder} is closed"
            for segment in self.segments:
                segment.close()

    def _make_clean(self) -> None:
        """Writes nothing for an unchanged log: a broker has thousands of them."""
        self._check_usable()
        if self._is_torn:
            self._mend()
        if self._active.aborted.is_behind:
            self._active.aborted.write_behind()
            self._unsynced.add(self._active.aborted.path)
        self._write_indexes()
        if self.size_bytes:
            self.sync()

    def write_indexes(self) -> None:
        """Writes the indexes of the active segment, as a clean close does, without a sync."""
        try:
            self._write_indexes()
        except OSError as problem:
            raise StorageError(f"{self.folder}: no index: {problem}") from problem

    def _write_indexes(self) -> None:
        if self._indexes_end != self.log_end_offset and not self.is_small:
            self._active.write_indexes()
            self._unsynced.add_segment(self._active)
            self._indexes_end = self.log_end_offset

    # --- aborted transactions ------------------------------------------------------------------

    def append_aborted(self, txn: AbortedTxn) -> None:
        """Adds an aborted transaction to the index of the segment with its marker.

        If the disk fails, the entry is kept in memory and written later.
        """
        index = self.segments_from(txn.last_offset)[0].aborted
        try:
            index.append(txn)
        except (OSError, StorageError) as problem:
            _LOGGER.warning("%s cannot be written; will be tried again: %s", index.path, problem)
            return
        self._unsynced.add(index.path)
        if len(index.entries()) == 1:
            self._unsynced.names_changed()

    def aborted_between(self, fetch_offset: int, upper_offset: int) -> list[AbortedTxn]:
        """The aborted transactions for a reader of [fetch_offset, upper_offset)."""
        found: list[AbortedTxn] = []
        try:
            for segment in self.segments_from(fetch_offset):
                if segment.aborted.collect(fetch_offset, upper_offset, found):
                    break
        except OSError as problem:
            raise StorageError(f"{self.folder}: reading failed: {problem}") from problem
        return found

    # --- snapshots -----------------------------------------------------------------------------

    def write_snapshot(self, offset: int, data: bytes) -> None:
        """Writes a snapshot of the producers; durable before the recovery point passes it."""
        try:
            snapshots.write_snapshot(self.disk, self.folder, offset, data)
        except OSError as problem:
            raise StorageError(f"{self.folder}: no snapshot: {problem}") from problem
        self._unsynced.add(snapshots.snapshot_path(self.folder, offset))
        self._unsynced.names_changed()

    def latest_snapshot(self, at_or_before: int) -> tuple[int, bytes] | None:
        """The newest snapshot at or before an offset, with its offset."""
        if self.is_unborn:
            return None
        return snapshots.latest_snapshot(self.disk, self.folder, at_or_before)

    def list_snapshots(self) -> list[int]:
        """The offsets of all snapshots, ascending."""
        if self.is_unborn:
            return []
        return snapshots.list_snapshots(self.disk, self.folder)

    def delete_snapshot(self, offset: int) -> None:
        """Removes one snapshot."""
        snapshots.delete_snapshot(self.disk, self.folder, offset)

    # --- leader epochs -------------------------------------------------------------------------

    def assign_epoch(self, epoch: int, start_offset: int) -> None:
        """Starts a leader epoch at an offset; durable together with its first record."""
        try:
            if self._make_folder is not None:
                self._make_folder()
                self._make_folder = None
            if self.epochs.assign(epoch, start_offset):
                self._note_epochs()
        except OSError as problem:
            raise StorageError(f"{self.folder}: no leader epoch: {problem}") from problem

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest known epoch not above `epoch` and its end offset; (-1, -1) when unknown."""
        return self.epochs.end_offset_for(epoch, self.log_end_offset)
