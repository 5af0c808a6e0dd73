"""The log of a partition: appends, rolls and reads.

A log is composed of parts that keep their own state: `segment_list`, `epochs`, `snapshots`, its
durability, its pending removals. The log itself keeps the ends: where it starts, where it ends, and
what a failed append, roll or swap has left behind.

Appends and reads go straight to the segment. Nothing may come between (decision 0007).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from fencepost.base.failures import StorageError
from fencepost.base.seams import Disk
from fencepost.log.config import LogConfig
from fencepost.log.durability import Durability, PendingSync
from fencepost.log.epochs import LeaderEpochs
from fencepost.log.retention import Removal
from fencepost.log.saved_points import SavedPoints
from fencepost.log.scan import scan_batches, scan_entries, scan_whole_entries
from fencepost.log.segment.open_segments import OpenSegments
from fencepost.log.segment.reading import LogSlice, find_position, read_segment
from fencepost.log.segment.segment import SMALL_LOG_BYTES, Segment
from fencepost.log.segment.wrong_epochs import EpochRun, find_wrong
from fencepost.log.segment_list import SegmentList
from fencepost.log.snapshots import SnapshotFiles
from fencepost.log.swap import Swap
from fencepost.records.batch import SealedBatch
from fencepost.records.entry import Entry
from fencepost.records.index import AbortedTxn

if TYPE_CHECKING:
    from fencepost.log.recovery import Recovered

_LOGGER: Final = logging.getLogger(__name__)

SMALL_PART: Final = 1024
"""A log is small only up to this part of a segment (1/1024), however small segments are."""


class Log:
    """See the room's docstring; the caller assigns offsets, and they must be consecutive."""

    def __init__(
        self,
        disk: Disk,
        folder: str,
        config: LogConfig,
        segments: SegmentList,
        open_segments: OpenSegments,
        *,
        epochs: LeaderEpochs,
        durability: Durability,
        log_start_offset: int,
        recovered_from: int | None,
        points: SavedPoints,
        make_folder: Callable[[], None] | None = None,
    ) -> None:
        """Use `open_log` or `unborn_log` (`opening.py`)."""
        self.disk = disk
        self.folder = folder
        self.config = config
        self.segment_list = segments
        self.active = segments.active
        """The last segment; here because every append needs it."""
        self.epochs = epochs
        self.snapshots = SnapshotFiles(disk, folder, durability)
        self.points = points
        self._open_segments = open_segments
        self._durability = durability
        self._removal = Removal(folder, segments, epochs, self.snapshots, durability)
        self._make_folder = make_folder
        self._is_torn = False
        """Whether a failed append or roll has left something that the next one must remove."""
        self._leftover: Segment | None = None
        self._swap: Swap | None = None
        """The swap that has not ended; see `swap.py`."""
        self._failure: str | None = None
        """Why the log cannot be used: a swap that has begun and not ended, or it is closed."""
        self._rebuild_aborted: Callable[[int, int], list[AbortedTxn]] | None = None
        self.is_closed = False
        self.log_end_offset = segments.active.next_offset
        self.log_start_offset = max(log_start_offset, segments.base_offset)
        self.first_dirty_offset = self.log_start_offset
        """Where the next compaction starts; its owner may keep it across a restart."""
        self.recovered_from = recovered_from
        """The first offset that recovery has read; None after a clean close."""
        self.recovered: Recovered | None = None
        """What recovery has read and removed; None without a scan."""
        self.missing: list[tuple[int, int]] = []
        """Offsets that were on the disk and are in no segment, as (first, end) ranges."""
        self.is_start_lost = False
        """Whether the log begins after the owner's start, though it never removes segments."""

    def __repr__(self) -> str:
        return (
            f"<log {self.folder} {self.log_start_offset}..{self.log_end_offset},"
            f" {len(self.segments)} segments, {self.size_bytes} bytes>"
        )

    @property
    def segments(self) -> list[Segment]:
        """All segments, oldest first; the last one is active."""
        return self.segment_list.all

    @property
    def size_bytes(self) -> int:
        """The size of all segments."""
        return self.segment_list.size_bytes

    @property
    def is_unborn(self) -> bool:
        """Whether the folder does not exist yet."""
        return self._make_folder is not None

    @property
    def is_sound(self) -> bool:
        """Whether no damage is known."""
        return not self.missing and not any(segment.damage for segment in self.segments)

    @property
    def is_small(self) -> bool:
        """Whether reading the whole log is faster than writing index files and snapshots."""
        small_bytes = min(SMALL_LOG_BYTES, self.config.segment_bytes // SMALL_PART)
        return len(self.segments) == 1 and self.active.size_bytes <= small_bytes

    def check_usable(self) -> None:
        """Every use begins with this; StorageError if the log is closed, or a swap is half done.

        Finishes a swap that has begun.
        """
        if self._failure is None:
            return
        if self._swap is None:
            raise StorageError(self._failure)
        self._finish_swap(self._swap)

    def end_swap(self) -> None:
        """Every change of sealed segments begins with this: ends a swap that was left over.

        A swap that has begun is finished, one that is only promised is withdrawn: it would replace
        segments that are about to change. StorageError if that fails, or if the log is closed.
        """
        self.check_usable()
        swap = self._swap
        if swap is not None:
            try:
                swap.withdraw()
            except OSError as problem:
                raise StorageError(
                    f"{self.folder}: a swap cannot be withdrawn: {problem}"
                ) from problem
            self._swap = None

    def check_epochs(self, segment: Segment, runs: Sequence[EpochRun]) -> None:
        """Compares the leader epochs of a segment's batches with the file of leader epochs."""
        inside = [run for run in runs if segment.base_offset <= run[1] < segment.next_offset]
        if inside:
            entries = self.epochs.entries
            segment.note_wrong_epochs(find_wrong(inside, segment.next_offset, entries))

    # --- appending -----------------------------------------------------------------------------

    def assign_epoch(self, epoch: int, start_offset: int) -> None:
        """Starts a leader epoch at an offset; durable together with its first record."""
        try:
            if self._make_folder is not None:
                self._make_folder()
                self._make_folder = None
            if self.epochs.assign(epoch, start_offset):
                self._durability.note_new_file(self.epochs.path)
        except OSError as problem:
            raise StorageError(
                f"{self.folder}: the leader epoch was not written: {problem}"
            ) from problem

    def append(self, batch: SealedBatch) -> None:
        """Writes a batch whose offsets were assigned; a StorageError changes nothing."""
        assert batch.base_offset == self.log_end_offset, "offsets are consecutive"
        assert len(batch.data) == batch.size_bytes, "a batch is appended as a whole"
        if self._is_torn or self._failure is not None:
            self._clear_tail()
        try:
            self.active.append(batch, self.config.index_interval_bytes)
        except OSError as problem:
            self._is_torn = True
            self._try_to_clear_tail()
            raise StorageError(f"{self.folder}: the append failed: {problem}") from problem
        self.log_end_offset = batch.base_offset + batch.last_offset_delta + 1

    def _try_to_clear_tail(self) -> None:
        with contextlib.suppress(StorageError):
            self._clear_tail()  # If this fails, the next append tries again before it writes.

    def _clear_tail(self) -> None:
        """Removes what a failed append or roll left; appends fail until this works."""
        self.check_usable()
        try:
            if self._leftover is not None:
                self._leftover.delete()
                self._leftover = None
                self._durability.note_names()
            self.active.cut_tail()
        except OSError as problem:
            raise StorageError(
                f"{self.folder}: the torn tail cannot be cut off: {problem}"
            ) from problem
        self._is_torn = False

    def roll(self, now_ms: int) -> None:
        """Seals the active segment and begins a new one at the log end offset."""
        old = self.active
        if old.size_bytes == 0:
            return  # The new one would have the same name.
        if self._is_torn:
            self._clear_tail()
        new = Segment(
            self.disk, self.folder, self.log_end_offset, self._open_segments, created_ms=now_ms
        )
        try:
            old.aborted.write_behind()  # Recovery does not scan a sealed segment.
            old.write_index()
            new.create()
        except OSError as problem:
            # Its file may exist, and its name is an offset that the old segment will use.
            self._leftover, self._is_torn = new, True
            self._try_to_clear_tail()
            raise StorageError(
                f"{self.folder}: a new segment was not created: {problem}"
            ) from problem
        old.seal()
        self._watch_aborted(new)
        self.segment_list.add(new)
        self.active = new
        self._durability.note_segment(old)

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
        if self._failure is not None:
            self.check_usable()
        try:
            if offset >= self.active.base_offset:
                found = read_segment(self.active, offset, max_bytes, upper_offset, at_least_one)
            else:
                found = self.segment_list.read(offset, max_bytes, upper_offset, at_least_one)
        except OSError as problem:
            raise StorageError(f"{self.folder}: reading failed: {problem}") from problem
        return LogSlice(b"", offset) if found is None else found

    def segments_from(self, offset: int) -> list[Segment]:
        """The segment that contains an offset, and all later ones."""
        return self.segment_list.starting_at(offset)

    def place_of(self, offset: int) -> tuple[int, int]:
        """The place of the batch with this offset: base offset of its segment, and position."""
        segment = self.active
        if offset < segment.base_offset:
            segment = self.segment_list.at(offset)
        if offset >= segment.next_offset:
            return segment.base_offset, segment.size_bytes
        try:
            position = find_position(segment, offset)
        except OSError as problem:
            raise StorageError(f"{self.folder}: reading failed: {problem}") from problem
        return segment.base_offset, segment.size_bytes if position is None else position

    def scan(self, from_offset: int, *, headers_only: bool = False) -> Iterator[SealedBatch]:
        """Iterates over the batches from the one with an offset to the end; skips damage.

        With `headers_only` data batches may lack their bytes; control batches are always whole.
        """
        return scan_batches(self, from_offset, headers_only)

    def entries(self, from_offset: int) -> Iterator[Entry]:
        """The records and markers from an offset to the end of the log, opened; skips damage."""
        return scan_entries(self, from_offset)

    def whole_entries(self, from_offset: int) -> Iterator[Entry]:
        """The same for a reader that must not miss a record: DamagedError if one is lost."""
        return scan_whole_entries(self, from_offset)

    # --- aborted transactions ------------------------------------------------------------------

    def rebuild_aborted_with(self, rebuild: Callable[[int, int], list[AbortedTxn]]) -> None:
        """Sets who reads the aborted transactions of a damaged index from a range of batches."""
        self._rebuild_aborted = rebuild
        for segment in self.segments:
            self._watch_aborted(segment)

    def _watch_aborted(self, segment: Segment) -> None:
        rebuild = self._rebuild_aborted
        if rebuild is not None:
            # A nested function would be part of a cycle when it is compiled.
            segment.aborted.rebuild = partial(_rebuild_aborted, rebuild, segment)

    def check_aborted(self, segment: Segment, aborts: Sequence[tuple[int, int]]) -> None:
        """Compares the transaction index of a sealed segment with its ABORT markers.

        Each is (offset, producer id). If the index does not have them, it is rebuilt: readers would
        take aborted records for committed ones. A failing disk leaves that to the next pass.
        """
        index = segment.aborted
        if segment.is_active or index.rebuild is None:
            return
        try:
            if not index.disagrees_with(aborts):
                return
            # A transaction without records has a marker, and no entry.
            rebuilt, before = index.rebuild(), index.entries()
            if rebuilt != before:
                _LOGGER.error(
                    "%s did not have the aborted transactions of its log (%d entries, %d in the "
                    "log) and is rebuilt. Until now, readers may have got aborted records as "
                    "committed ones. Check the disk",
                    index.path,
                    len(before),
                    len(rebuilt),
                )
                index.replace(rebuilt)
        except (OSError, StorageError) as problem:
            _LOGGER.warning("%s cannot be compared with its log: %s", index.path, problem)

    def append_aborted(self, txn: AbortedTxn) -> None:
        """Adds an aborted transaction to the index of the segment with its marker.

        If the disk fails, the entry is kept in memory and written later.
        """
        index = self.segment_list.at(txn.last_offset).aborted
        try:
            index.append(txn)
        except (OSError, StorageError) as problem:
            _LOGGER.warning("%s cannot be written; will be tried again: %s", index.path, problem)
            return
        self._durability.note_file(index.path)
        if len(index.entries()) == 1:
            self._durability.note_names()

    def aborted_between(self, fetch_offset: int, upper_offset: int) -> list[AbortedTxn]:
        """The aborted transactions for a reader of [fetch_offset, upper_offset)."""
        found: list[AbortedTxn] = []
        try:
            for segment in self.segment_list.starting_at(fetch_offset):
                if segment.aborted.collect(fetch_offset, upper_offset, found):
                    break
        except OSError as problem:
            raise StorageError(f"{self.folder}: reading failed: {problem}") from problem
        return found

    # --- shortening ----------------------------------------------------------------------------

    def start_at(self, offset: int) -> None:
        """Moves the log start offset (DeleteRecords); retention removes the segments below it."""
        assert offset <= self.log_end_offset
        self.log_start_offset = max(self.log_start_offset, offset)

    def delete_before(self, offset: int) -> None:
        """Moves the log start offset and removes the segments below it."""
        self.start_at(offset)
        self.remove_below(offset)

    def remove_below(self, offset: int) -> list[Segment]:
        """Removes the sealed segments that end at or below an offset; returns them.

        If the disk fails, the next call tries again.
        """
        if self.segments[0].next_offset <= offset:
            self.end_swap()  # May change the list.
        count = sum(segment.next_offset <= offset for segment in self.segments[:-1])
        removed = self.segment_list.remove_oldest(count)
        self.log_start_offset = max(self.log_start_offset, self.segment_list.base_offset)
        self._removal.run(removed, self.log_start_offset)
        return removed

    def promise_swap(self, group: list[Segment], size_bytes: int) -> Swap:
        """Begins the swap of a cleaned segment for `group`; the caller syncs the folder next.

        If the disk fails, `end_swap` withdraws the swap, now or later.
        """
        self.end_swap()
        assert self.segment_list.holds(group)
        swap = self._swap = Swap(self.disk, self.folder, self._open_segments, group, size_bytes)
        try:
            swap.promise()
        except OSError as problem:
            raise StorageError(f"{self.folder}: compaction failed: {problem}") from problem
        return swap

    def finish_swap(self, swap: Swap) -> None:
        """Replaces the segments of a swap that was promised durably.

        If the disk fails in the middle, files and memory disagree: the log raises StorageError
        until a later use finishes the swap.
        """
        assert swap is self._swap, "a swap that was withdrawn stays so"
        assert self.segment_list.holds(swap.group)
        self._finish_swap(swap)

    def _finish_swap(self, swap: Swap) -> None:
        try:
            swap.finish()
        except (OSError, StorageError) as problem:
            self._failure = f"{self.folder}: a compacted segment is half in place: {problem}"
            raise StorageError(self._failure) from problem
        self._swap = None
        self._failure = None
        self._durability.note_names()
        self._watch_aborted(swap.new)
        self.segment_list.replace(swap.group, swap.new)

    # --- durability ----------------------------------------------------------------------------

    @property
    def recovery_point(self) -> int:
        """Everything below this offset was synced."""
        return self._durability.recovery_point

    @property
    def saved_recovery_point(self) -> int:
        """The recovery point for the checkpoint file; see `durability.py`."""
        return self._durability.saved_recovery_point

    @property
    def is_unsynced(self) -> bool:
        """Whether a sync would have anything to do."""
        return not self.is_unborn and self._durability.is_pending

    @property
    def needs_flush(self) -> bool:
        """Whether a sealed segment has not been synced yet."""
        return self._durability.has_segments

    def prepare_sync(self) -> PendingSync:
        """The sync that makes everything appended so far durable; see `durability.py`."""
        if self.is_unborn:
            return PendingSync(self.disk, end_offset=0, number=0, paths=[], folders=[])
        return self._durability.prepare_sync()

    def prepare_flush(self) -> PendingSync:
        """The sync that makes the sealed segments durable, without the active one."""
        return self._durability.prepare_flush()

    def complete_sync(self, pending: PendingSync) -> int:
        """Moves the recovery point after a sync has run; returns it."""
        if not self.is_closed:
            self._durability.complete(pending)
        return self._durability.recovery_point

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
            self._rebuild_aborted = None  # It refers to this log.
            self._swap = None  # The next open finishes it.
            self._failure = self._failure or f"{self.folder} is closed"
            for segment in self.segments:
                segment.close()

    def _make_clean(self) -> None:
        """Writes nothing for an unchanged log: a broker has thousands of them."""
        self.check_usable()
        if self._is_torn:
            self._clear_tail()
        aborted = self.active.aborted
        if aborted.is_behind:
            aborted.write_behind()
            self._durability.note_file(aborted.path)
        self._write_index()
        if self.size_bytes:
            self.sync()

    def write_index(self) -> None:
        """Writes the index of the active segment, as a clean close does, without a sync."""
        try:
            self._write_index()
        except OSError as problem:
            raise StorageError(f"{self.folder}: the index was not written: {problem}") from problem

    def _write_index(self) -> None:
        if not self.active.has_index_files and not self.is_small:
            self.active.write_index()
            self._durability.note_segment(self.active)


def _rebuild_aborted(
    rebuild: Callable[[int, int], list[AbortedTxn]], segment: Segment
) -> list[AbortedTxn]:
    return rebuild(segment.base_offset, segment.next_offset)
