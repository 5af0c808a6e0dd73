"""A segment: its states, its append, its file, its index and its damage.

A segment is *active* while it is the last of its log and grows; then it is *sealed*. Its reads are
in `reading.py` and `batches.py`.

- The file is opened for a read or a write, and `OpenSegments` closes it when too many are open. The
  file of a new active segment is created at once; that of a log whose folder does not exist yet,
  with the first batch. Bytes after `size_bytes`, left by a failed append, are never read.
- The index of an active segment is in memory, and grows with each append. That of a sealed one is
  loaded on demand.
- Damage is a run of bytes that cannot be read (`damage.py`). Recovery or an examination finds it;
  readers and the scrub cause examinations.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from fencepost.base.failures import CorruptError, DamagedError, StorageError
from fencepost.base.ids import NO_TIMESTAMP
from fencepost.base.seams import Disk, File
from fencepost.log.names import INDEX, LOG, SEGMENT_SUFFIXES, TXN_INDEX, file_name
from fencepost.log.segment.aborted import AbortedIndex
from fencepost.log.segment.batches import sound_run
from fencepost.log.segment.damage import Damage
from fencepost.log.segment.index import SegmentIndex
from fencepost.log.segment.index_files import IndexFiles, is_plausible
from fencepost.log.segment.open_segments import OpenSegments
from fencepost.log.segment.survey import (
    EXAMINED_INDEX_INTERVAL_BYTES,
    Survey,
    examine,
    survey,
)
from fencepost.log.segment.wrong_epochs import WrongEpoch, right_epoch
from fencepost.records.batch import HEADER_BYTES, BatchError, SealedBatch, read_header
from fencepost.records.saved_point import SavedSegment

log = logging.getLogger(__name__)

SMALL_LOG_BYTES: Final = 16 * 1024
"""A log of this size is closed without index files: reading it is faster than creating them, and a
broker may have to close tens of thousands of logs."""


class Segment:
    """See the module's docstring. Offsets are absolute; positions are bytes in the file."""

    __slots__ = (
        "_bytes_since_index",
        "_disk",
        "_file",
        "_index",
        "_index_files",
        "_open_segments",
        "aborted",
        "base_offset",
        "created_ms",
        "damage",
        "first_timestamp",
        "folder",
        "hints",
        "is_active",
        "is_gone",
        "max_timestamp",
        "max_timestamp_offset",
        "next_offset",
        "size_bytes",
        "was_used",
        "wrong_epochs",
    )

    def __init__(
        self,
        disk: Disk,
        folder: str,
        base_offset: int,
        open_segments: OpenSegments,
        *,
        size_bytes: int = 0,
        created_ms: int = 0,
    ) -> None:
        self._disk = disk
        self._open_segments = open_segments
        self._file: File | None = None
        self._index: SegmentIndex | None = None
        self._index_files = IndexFiles(disk, folder, base_offset)
        self._bytes_since_index = 0
        self.folder = folder
        self.base_offset = base_offset
        self.aborted = AbortedIndex(disk, self.path(TXN_INDEX), base_offset)
        self.next_offset = base_offset
        self.size_bytes = size_bytes
        self.created_ms = created_ms
        self.hints: dict[int, int] = {}
        """Where reads ended: offset and position (`reading.py`)."""
        self.is_active = False
        self.is_gone = False
        """Whether the log is closed, or the segment was removed or replaced."""
        self.was_used = False
        """Whether the file was used since `OpenSegments` last checked it."""
        self.damage: tuple[Damage, ...] = ()
        """The runs that cannot be read, in file order."""
        self.wrong_epochs: tuple[WrongEpoch, ...] = ()
        """Batches that are served with another leader epoch than they have in the file."""
        self.first_timestamp: int | None = None
        self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = base_offset

    def __repr__(self) -> str:
        kind = "active" if self.is_active else "sealed"
        return (
            f"<{kind} segment {self.base_offset}..{self.next_offset - 1}, {self.size_bytes} bytes>"
        )

    def path(self, suffix: str) -> str:
        """The path of one of the segment's files."""
        return f"{self.folder}/{file_name(self.base_offset, suffix)}"

    # --- writing -------------------------------------------------------------------------------

    def append(self, batch: SealedBatch, index_interval_bytes: int) -> None:
        """Writes one batch at the end; an OSError changes nothing but the file's tail."""
        position = self.size_bytes
        assert self._index is not None, "only the active segment grows"
        file = self._file
        if file is None:
            file = self.file()
        self.was_used = True
        file.append((batch.data,))
        last_offset = batch.base_offset + batch.last_offset_delta
        if position == 0:
            self.first_timestamp = batch.max_timestamp
        if batch.max_timestamp > self.max_timestamp:
            self.max_timestamp = batch.max_timestamp
            self.max_timestamp_offset = last_offset
        if self._bytes_since_index > index_interval_bytes:
            base = self.base_offset
            self._index.add(
                last_offset - base, position, self.max_timestamp, self.max_timestamp_offset - base
            )
            self._bytes_since_index = 0
        size = batch.size_bytes
        self._bytes_since_index += size
        self.size_bytes = position + size
        self.next_offset = last_offset + 1

    def cut_tail(self) -> None:
        """Cuts the file to its known size after a failed append."""
        self.file().truncate(self.size_bytes)

    # --- states --------------------------------------------------------------------------------

    def activate(self) -> None:
        """Makes this the active segment; its index must be complete (`load_tail` or recovery)."""
        self.index()
        if self.size_bytes and self.first_timestamp is None:
            self.first_timestamp = self.first_time()
        self._open_segments.forget(self)
        self.is_active = True
        if self._file is not None:
            self._open_segments.grow(self)

    def create(self) -> None:
        """Creates the file of a new active segment; empties a leftover of the same name."""
        self.begin()
        file = self.file()
        if file.size():
            file.truncate(0)
        self.aborted.reset()

    def begin(self) -> None:
        """Starts an active segment whose file cannot exist; its first batch creates it."""
        self._index = SegmentIndex()
        self.aborted.begin()
        self.is_active = True

    def seal(self) -> None:
        """Makes this a sealed segment; its indexes were written before."""
        self._open_segments.forget(self)
        self.is_active = False
        self._open_segments.use(self)

    def release_file(self) -> None:
        """Closes the file; the next use opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def release(self) -> None:
        """Closes the file and drops the indexes; the next use loads them again."""
        self.release_file()
        self._index = None
        self.aborted.release()
        self.hints.clear()

    def close(self) -> None:
        """Closes the segment for good: the log is closed, or the segment deleted or replaced."""
        self._open_segments.forget(self)
        self.is_active = False
        self.is_gone = True
        self.aborted.rebuild = None
        self.release()

    def delete(self) -> None:
        """Removes all files of the segment, the log first.

        In another order a crash could leave a log without its aborted transactions.
        """
        self.close()
        for suffix in reversed(SEGMENT_SUFFIXES):
            self._disk.remove(self.path(suffix))

    # --- the file ------------------------------------------------------------------------------

    def file(self) -> File:
        """The open `.log` file; do not keep it over a wait."""
        if not self.is_active:
            if self.is_gone:
                raise StorageError(f"{self.path(LOG)} was deleted, or its log is closed")
            self._open_segments.use(self)
            if self._file is None:
                self._file = self._disk.open(self.path(LOG))
            return self._file
        self.was_used = True
        if self._file is None:
            self._open_segments.grow(self)
            try:
                self._file = self._disk.open(self.path(LOG), create=self.size_bytes == 0)
            except OSError:
                self._open_segments.forget(self)
                raise
        return self._file

    # --- the index -----------------------------------------------------------------------------

    def index(self) -> SegmentIndex:
        """The index; read from its files, or rebuilt if they are missing or wrong."""
        if self._index is None:
            self._open_segments.use(self)
            return self._use_index(self._load_index())
        return self._index

    def _use_index(self, index: SegmentIndex) -> SegmentIndex:
        """Keeps an index, and the largest timestamp, which its last time entry has."""
        newest, offset = index.newest()
        if newest > self.max_timestamp:
            self.max_timestamp = newest
            self.max_timestamp_offset = offset + self.base_offset
        self._index = index
        return index

    def _load_index(self) -> SegmentIndex:
        if self.size_bytes == 0:
            return SegmentIndex()
        index = self._index_files.read(self.size_bytes)
        if index is None or not is_plausible(index, self.file(), self.base_offset):
            index = self._examine()
            if self.size_bytes > SMALL_LOG_BYTES:
                try:
                    self._index_files.write(index, self.next_offset)
                except OSError as problem:
                    log.warning("%s cannot be written: %s", self.path(INDEX), problem)
        else:
            self._index_files.keep(index)
        return index

    @property
    def has_index_files(self) -> bool:
        """Whether the index files include the last batch."""
        return self._index_files.end_offset == self.next_offset

    def write_index(self) -> None:
        """Writes the complete index, without a sync.

        The last time entry is the segment's largest timestamp.
        """
        index = self.index()
        index.add_time(self.max_timestamp, self.max_timestamp_offset - self.base_offset)
        self._index_files.write(index, self.next_offset)

    def newest_time(self) -> int:
        """The largest timestamp; -1 without any."""
        if self.max_timestamp == NO_TIMESTAMP and self.size_bytes:
            self.index()  # Sets it from the last entry of the time index.
        return self.max_timestamp

    def first_time(self) -> int:
        """The largest timestamp of the first batch; -1 if it has none or is damaged."""
        try:
            return read_header(self.file().read(0, HEADER_BYTES)).max_timestamp
        except BatchError:
            self.examine()
            return NO_TIMESTAMP

    # --- the saved point -----------------------------------------------------------------------

    def save(self) -> SavedSegment:
        """Completes the files of the active segment without a sync; returns what was saved."""
        index = self.index()
        self.aborted.write_behind()
        if self.size_bytes > SMALL_LOG_BYTES:
            self._index_files.extend(index)
        return SavedSegment(
            self.next_offset,
            self.base_offset,
            self.size_bytes,
            NO_TIMESTAMP if self.first_timestamp is None else self.first_timestamp,
            self.max_timestamp,
            self.max_timestamp_offset,
            self._bytes_since_index,
            len(index.offsets),
            self.aborted.count_below(self.next_offset),
        )

    def resume(self, saved: SavedSegment, index_interval_bytes: int) -> Survey | None:
        """A survey that begins at a saved point; None if the point does not fit the files."""
        base, offset, position = self.base_offset, saved.offset, saved.position
        if saved.base_offset != base or not 0 < position <= self.size_bytes:
            return None
        index = self._index_below(saved)
        try:
            if (
                index is None
                or self.aborted.count_below(offset) != saved.aborted_entries
                or not self._begins_at(position, offset)
            ):
                return None
        except CorruptError:
            return None
        self._index_files.keep(index)
        found = Survey(base, index_interval_bytes)
        found.index = index
        found.size_bytes, found.next_offset = position, offset
        found.since_index = saved.since_index
        found.first_timestamp = saved.first_timestamp
        found.max_timestamp = saved.max_timestamp
        found.max_timestamp_offset = saved.max_timestamp_offset
        return found

    def _index_below(self, saved: SavedSegment) -> SegmentIndex | None:
        """The index up to a saved point; None if the files do not have it."""
        if saved.position <= SMALL_LOG_BYTES:
            return SegmentIndex()  # It has no files, and needs no entries.
        index = self._index_files.read(self.size_bytes)
        if index is None:
            return None
        index.truncate(saved.offset - self.base_offset, saved.position)
        is_complete = len(index.offsets) >= saved.index_entries
        return index if is_complete and is_plausible(index, self.file(), self.base_offset) else None

    def _begins_at(self, position: int, offset: int) -> bool:
        """Whether a batch with this offset begins at a position, or the file ends there."""
        if position == self.size_bytes:
            return True
        try:
            return read_header(self.file().read(position, HEADER_BYTES)).base_offset == offset
        except BatchError:
            return False

    def adopt(self, found: Survey, *, is_resumed: bool = False) -> None:
        """Adopts the result of a survey that has reached the end of the file."""
        self.note_damage(found.damage)
        self._index = found.index
        if found.damage or not is_resumed:
            self._index_files.forget()
        self._bytes_since_index = found.since_index
        self.size_bytes = found.size_bytes
        self.next_offset = found.next_offset
        self.first_timestamp = found.first_timestamp
        self.max_timestamp = found.max_timestamp
        self.max_timestamp_offset = found.max_timestamp_offset

    def load_tail(self) -> None:
        """Finds the next offset and the largest time of a segment that was closed cleanly.

        Reads the headers after the last index entry; of a small segment, which may have no index
        files, all batches.
        """
        if not self._survey_small():
            self._read_tail()
        self._index_files.end_offset = self.next_offset

    def _survey_small(self) -> bool:
        if self.size_bytes > SMALL_LOG_BYTES or self._index is not None or self.damage:
            return False
        found = survey(
            self.file(), self.size_bytes, self.base_offset, EXAMINED_INDEX_INTERVAL_BYTES
        )
        if found.size_bytes < self.size_bytes:
            return False
        self.adopt(found)
        return True

    def _read_tail(self) -> None:
        index = self.index()
        self.max_timestamp, relative = index.newest()
        self.max_timestamp_offset = relative + self.base_offset
        self.next_offset = self.base_offset
        self.first_timestamp = None
        start = index.positions[-1] if index.positions else 0
        self._bytes_since_index = self.size_bytes - start
        for batch in sound_run(self, start, self.size_bytes, headers_only=True):
            self.next_offset = batch.next_offset
            if batch.record_count and batch.max_timestamp > self.max_timestamp:
                self.max_timestamp = batch.max_timestamp
                self.max_timestamp_offset = batch.last_offset

    # --- damage --------------------------------------------------------------------------------

    def examine(self) -> None:
        """Reads the whole segment, notes damage, and builds the index again without it."""
        self._use_index(self._examine())

    def _examine(self) -> SegmentIndex:
        # While the log is being opened, the end of the segment is not known.
        end_offset = self.next_offset if self.next_offset > self.base_offset else None
        found = examine(self.file(), self.size_bytes, self.base_offset, end_offset)
        self.note_damage(found.damage)
        self._index_files.forget()
        found.index.add_time(found.max_timestamp, found.max_timestamp_offset - self.base_offset)
        return found.index

    def adopt_examination(self, found: Survey) -> None:
        """Adopts the result of a background examination; the segment may have grown since."""
        self.note_damage(found.damage)
        if not self.is_active and found.next_offset == self.next_offset:
            found.index.add_time(found.max_timestamp, found.max_timestamp_offset - self.base_offset)
            self._use_index(found.index)
            self._open_segments.use(self)

    def note_damage(self, found: list[Damage]) -> None:
        """Replaces the known damage, and logs each new run once."""
        for damage in found:
            if damage not in self.damage:
                log.error(
                    "%s: %s. They are kept as they are, and their readers get CORRUPT_MESSAGE; "
                    "everything else is served. Put the file back from a copy while the broker is "
                    "stopped. Without a copy they are lost: stop the broker and remove them, and "
                    "nothing else, with `fencepost repair`. `fencepost check` checks the whole "
                    "directory.",
                    self.path(LOG),
                    damage,
                )
        self.damage = tuple(found)
        self.hints.clear()

    def note_wrong_epochs(self, found: Sequence[WrongEpoch]) -> None:
        """Replaces the known wrong leader epochs, and logs each new run of batches once."""
        for wrong in found:
            if wrong not in self.wrong_epochs:
                log.warning(
                    "%s: %s: a bit has flipped where no CRC covers it. They are served with the "
                    "right epoch, and nothing is lost. Check the disk; `fencepost repair` corrects "
                    "the file while the broker is stopped.",
                    self.path(LOG),
                    wrong,
                )
        self.wrong_epochs = tuple(found)

    def leader_epoch_of(self, batch: SealedBatch) -> int:
        """The leader epoch that a batch was written in."""
        return right_epoch(self.wrong_epochs, batch.base_offset, batch.leader_epoch)

    def refuse_damage(self, from_offset: int) -> None:
        """Raises DamagedError if damage is known at or after an offset."""
        for damage in self.damage:
            if damage.end_offset > from_offset:
                raise DamagedError(f"{self.path(LOG)}: {damage}")

    def end_of_run(self, start: int) -> tuple[int, int]:
        """Position and offset where damage or the end of the segment follows `start`."""
        for damage in self.damage:
            if damage.position > start:
                return damage.position, damage.first_offset
        return self.size_bytes, self.next_offset

    def corrupt(self, position: int) -> CorruptError:
        """The error if no batch begins at a position, and no damage explains that."""
        return CorruptError(f"{self.path(LOG)}: no batch begins at byte {position}")
