"""One segment: a run of batches in one `.log` file, and the indexes beside it.

The active segment, the last of a log, is the only one that grows; its index is in memory. A segment
opens its file for a read or a write, and `OpenSegments` closes it when too many are open. The first
batch creates the file of an empty active segment.

Positions are byte offsets in the file. Bytes after `size_bytes`, left by a failed append, are never
read.

Damage is a run of bytes that cannot be read (`damage.py`). Recovery, an examination or a walk over
the batches finds it. Readers of its offsets get a DamagedError; other readers skip it.

A hint keeps the position where a read ended, so that the next read of the same reader needs no
search.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from fencepost.base.failures import CorruptError, DamagedError, StorageError
from fencepost.base.ids import NO_TIMESTAMP
from fencepost.base.seams import Buffer, Disk, File
from fencepost.log.names import INDEX, LOG, SEGMENT_SUFFIXES, TIME_INDEX, TXN_INDEX, file_name
from fencepost.log.segment.aborted import AbortedIndex
from fencepost.log.segment.damage import Damage
from fencepost.log.segment.index import SegmentIndex
from fencepost.log.segment.open_segments import OpenSegments
from fencepost.log.segment.survey import (
    EXAMINED_INDEX_INTERVAL_BYTES,
    SCAN_BYTES,
    Survey,
    examine,
    survey,
)
from fencepost.records.batch import (
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    BatchError,
    SealedBatch,
    read_header,
)

log = logging.getLogger(__name__)

_WALK_BYTES: Final = 8 * 1024
_VIEW_BYTES: Final = 64 * 1024
"""From this size on, a view of the page cache is cheaper than a copy."""
_MAX_HINTS: Final = 32

SMALL_LOG_BYTES: Final = 16 * 1024
"""A log of this size is closed without index files: reading it is faster than creating them, and a
broker may have to close tens of thousands of logs."""

_STEP: Final = struct.Struct(">qi11xi")
"""The fields of a header that a walk over batches needs: base offset, length, last offset delta."""
_MAGIC_AT: Final = 16
_step = _STEP.unpack_from
_STEP_BYTES: Final = _STEP.size
_MIN_LENGTH: Final = HEADER_BYTES - LOG_OVERHEAD_BYTES


class LogSlice(NamedTuple):
    """Whole batches, as they are on the disk."""

    data: Buffer
    """The first batch may begin before the requested offset."""
    next_offset: int
    """The offset after the last batch."""


class Segment:
    """See the module's docstring; offsets here are absolute."""

    __slots__ = (
        "_bytes_since_index",
        "_disk",
        "_file",
        "_hints",
        "_index",
        "_open_segments",
        "aborted",
        "base_offset",
        "created_ms",
        "damage",
        "first_timestamp",
        "folder",
        "is_active",
        "is_gone",
        "max_timestamp",
        "max_timestamp_offset",
        "next_offset",
        "size_bytes",
        "was_used",
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
        self._hints: dict[int, int] = {}
        self._bytes_since_index = 0
        self.folder = folder
        self.base_offset = base_offset
        self.aborted = AbortedIndex(disk, self.path(TXN_INDEX))
        self.next_offset = base_offset
        self.size_bytes = size_bytes
        self.created_ms = created_ms
        self.is_active = False
        self.is_gone = False
        self.was_used = False
        """Whether the file was used since `OpenSegments` last checked it."""
        self.damage: tuple[Damage, ...] = ()
        """The runs that cannot be read, in file order."""
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

    def write_indexes(self) -> None:
        """Writes the complete `.index` and `.timeindex`, without a sync.

        The last time entry is the segment's largest timestamp.
        """
        index = self.index()
        index.add_time(self.max_timestamp, self.max_timestamp_offset - self.base_offset)
        offset_index, time_index = index.encode()
        self._disk.write_file(self.path(INDEX), offset_index, sync=False)
        self._disk.write_file(self.path(TIME_INDEX), time_index, sync=False)

    def release_file(self) -> None:
        """Closes the file; the next use opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def release(self) -> None:
        """Closes the file and drops the index; the next use loads both again."""
        self.release_file()
        self._index = None
        self.aborted.release()
        self._hints.clear()

    def close(self) -> None:
        """Closes the segment for ever: the log is closed, or the segment deleted or replaced."""
        self._open_segments.forget(self)
        self.is_active = False
        self.is_gone = True
        self.release()

    def delete(self) -> None:
        """Removes all files of the segment, the log first.

        In another order a crash could leave a log without its aborted transactions.
        """
        self.close()
        for suffix in reversed(SEGMENT_SUFFIXES):
            self._disk.remove(self.path(suffix))

    # --- file and index, opened on demand ------------------------------------------------------

    def file(self) -> File:
        """The open `.log` file."""
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

    def index(self) -> SegmentIndex:
        """The index; read from its files, or rebuilt if they are missing or wrong."""
        if self._index is None:
            self._open_segments.use(self)
            if self.size_bytes == 0:
                self._index = SegmentIndex()
            else:
                self._index = self._read_index() or self._rebuild_index()
            newest, offset = self._index.newest()
            if newest > self.max_timestamp:
                self.max_timestamp = newest
                self.max_timestamp_offset = offset + self.base_offset
        return self._index

    def _read_index(self) -> SegmentIndex | None:
        try:
            index = SegmentIndex.decode(
                self._disk.read_file(self.path(INDEX)),
                self._disk.read_file(self.path(TIME_INDEX)),
                self.size_bytes,
            )
        except (FileNotFoundError, ValueError):
            return None
        return index if self._is_index_plausible(index) else None

    def _is_index_plausible(self, index: SegmentIndex) -> bool:
        """Whether the last entry points at a batch with its offset; a stale index does not."""
        if self.size_bytes and not index.times and self._has_times():
            return False
        if not index.offsets:
            return True
        header = self.file().read(index.positions[-1], _STEP_BYTES)
        if len(header) < _STEP_BYTES:
            return False
        base_offset, _, delta = _step(header)
        return bool(base_offset + delta == index.offsets[-1] + self.base_offset)

    def _has_times(self) -> bool:
        """Whether the first batch has a time; also if it cannot be read, so that it is examined."""
        try:
            first = read_header(self.file().read(0, HEADER_BYTES))
        except BatchError:
            return True
        return first.max_timestamp >= 0 and first.record_count > 0

    def first_time(self) -> int:
        """The largest timestamp of the first batch; -1 if it has none or is damaged."""
        try:
            return read_header(self.file().read(0, HEADER_BYTES)).max_timestamp
        except BatchError:
            self.examine()
            return NO_TIMESTAMP

    def _rebuild_index(self) -> SegmentIndex:
        """Rebuilds the index files of a sealed segment in one pass."""
        index = self._examine()
        if self.size_bytes > SMALL_LOG_BYTES:
            offset_index, time_index = index.encode()
            self._disk.write_file(self.path(INDEX), offset_index, sync=False)
            self._disk.write_file(self.path(TIME_INDEX), time_index, sync=False)
        return index

    def _examine(self) -> SegmentIndex:
        """Reads the whole segment, notes damage, and builds an index that skips it."""
        # While the log is being opened, the end of the segment is not known.
        end_offset = self.next_offset if self.next_offset > self.base_offset else None
        found = examine(self.file(), self.size_bytes, self.base_offset, end_offset)
        self.note_damage(found.damage)
        found.index.add_time(found.max_timestamp, found.max_timestamp_offset - self.base_offset)
        return found.index

    def examine(self) -> None:
        """Reads the whole segment and notes damage."""
        self._index = self._examine()

    def note_damage(self, found: list[Damage]) -> None:
        """Replaces the known damage, and logs each new run once."""
        for damage in found:
            if damage not in self.damage:
                log.error(
                    "%s: %s. They are kept as they are, and their readers get CORRUPT_MESSAGE; "
                    "everything else is served. Put the file back from a copy while the broker is "
                    "stopped. Without a copy, delete the records below %d (DeleteRecords), or stop "
                    "the broker and remove the damaged ones with `fencepost repair`. "
                    "`fencepost check` checks the whole directory.",
                    self.path(LOG),
                    damage,
                    damage.end_offset,
                )
        self.damage = tuple(found)
        self._hints.clear()

    def take_survey(self, found: Survey) -> None:
        """Adopts the result of a background examination; the segment may have grown since."""
        self.note_damage(found.damage)
        if not self.is_active and found.next_offset == self.next_offset:
            found.index.add_time(found.max_timestamp, found.max_timestamp_offset - self.base_offset)
            self._index = found.index
            self._open_segments.use(self)

    def refuse_damage(self, from_offset: int) -> None:
        """Raises DamagedError if damage is known at or after an offset."""
        for damage in self.damage:
            if damage.end_offset > from_offset:
                raise DamagedError(f"{self.path(LOG)}: {damage}")

    def adopt(self, found: Survey) -> None:
        """Adopts the result of a survey of the whole file."""
        self.note_damage(found.damage)
        self._index = found.index
        self._bytes_since_index = found.since_index
        self.size_bytes = found.size_bytes
        self.next_offset = found.next_offset
        self.first_timestamp = found.first_timestamp
        self.max_timestamp = found.max_timestamp
        self.max_timestamp_offset = found.max_timestamp_offset

    def load_tail(self) -> None:
        """Reads the headers after the last index entry, for next offset and largest time."""
        if self.size_bytes <= SMALL_LOG_BYTES and self._index is None and not self.damage:
            found = survey(
                self.file(), self.size_bytes, self.base_offset, EXAMINED_INDEX_INTERVAL_BYTES
            )
            if found.size_bytes == self.size_bytes:
                self.adopt(found)
                return
        index = self.index()
        self.max_timestamp, relative = index.newest()
        self.max_timestamp_offset = relative + self.base_offset
        self.next_offset = self.base_offset
        self.first_timestamp = None
        start = index.positions[-1] if index.positions else 0
        self._bytes_since_index = self.size_bytes - start
        for _, batch in self._run_of_batches(start, self.size_bytes, headers_only=True):
            self.next_offset = batch.next_offset
            if batch.record_count and batch.max_timestamp > self.max_timestamp:
                self.max_timestamp = batch.max_timestamp
                self.max_timestamp_offset = batch.last_offset

    # --- reading -------------------------------------------------------------------------------

    def read(
        self, offset: int, max_bytes: int, upper_offset: int, at_least_one: bool
    ) -> LogSlice | None:
        """Reads batches from the one with `offset` on; None when the segment ends before it."""
        start = self.find(offset)
        size, end_offset = self.size_bytes, self.next_offset
        if start is None or start >= size:
            return None
        if self.damage:
            size, end_offset = self._end_of_run(start)
        if upper_offset >= end_offset and size - start <= max_bytes:
            end, next_offset = size, end_offset
        else:
            end, next_offset = self._walk_on(start, offset, start + max_bytes, upper_offset, size)
            if end == start:
                end, next_offset = self._first_alone(start, upper_offset, at_least_one)
            if end == start:
                return LogSlice(b"", offset)
        self._remember(next_offset, end)
        count = end - start
        read = self.file().view if count >= _VIEW_BYTES else self.file().read
        return LogSlice(read(start, count), next_offset)

    def _end_of_run(self, start: int) -> tuple[int, int]:
        """Position and offset where damage or the end of the segment follows `start`."""
        for damage in self.damage:
            if damage.position > start:
                return damage.position, damage.first_offset
        return self.size_bytes, self.next_offset

    def _walk_on(
        self, start: int, offset: int, limit: int, upper_offset: int, size: int
    ) -> tuple[int, int]:
        """Position and offset of the end of the batches that fit.

        Reads only headers, from the last index entry before that end on.
        """
        end = self.index().boundary(upper_offset - self.base_offset, start, min(limit, size))
        next_offset = offset
        while end < size:
            chunk = self.file().read(end, min(_WALK_BYTES, size - end))
            place = 0
            while place + _STEP_BYTES <= len(chunk):
                base_offset, length, delta = _step(chunk, place)
                after = place + length + LOG_OVERHEAD_BYTES
                if base_offset + delta >= upper_offset or end + after > limit:
                    return end + place, max(offset, base_offset)
                if length < _MIN_LENGTH:
                    return self._stop_at_damage(start, end + place)
                place, next_offset = after, base_offset + delta + 1
            if place == 0:
                return self._stop_at_damage(start, end)
            end += place
        return end, next_offset

    def _stop_at_damage(self, start: int, position: int) -> tuple[int, int]:
        """Ends a walk that found no batch at `position` at the first damage after `start`."""
        self.examine()
        for damage in self.damage:
            if damage.position <= start < damage.end:
                raise DamagedError(f"{self.path(LOG)}: {damage}")
        end, next_offset = self._end_of_run(start)
        if end > position:
            raise self._corrupt(position)
        return end, next_offset

    def _first_alone(self, start: int, upper_offset: int, at_least_one: bool) -> tuple[int, int]:
        """The end of the first batch although it is too large, so that the reader proceeds."""
        base_offset, length, delta = _step(self.file().read(start, _STEP_BYTES))
        if length < _MIN_LENGTH or start + length + LOG_OVERHEAD_BYTES > self.size_bytes:
            return self._stop_at_damage(start, start)
        if not at_least_one or base_offset + delta >= upper_offset:
            return start, base_offset
        return start + length + LOG_OVERHEAD_BYTES, base_offset + delta + 1

    def _remember(self, next_offset: int, position: int) -> None:
        if self.damage:
            return  # Damage may begin at this position.
        hints = self._hints
        if next_offset not in hints and len(hints) >= _MAX_HINTS:
            del hints[next(iter(hints))]
        hints[next_offset] = position

    def find(self, offset: int) -> int | None:
        """The position of the first batch that reaches `offset`; None when there is none."""
        position = self._hints.get(offset)
        if position is not None:
            return position
        if offset >= self.next_offset:
            return None
        return self._walk_to(offset, self.index().position_before(offset - self.base_offset))

    def seek(self, offset: int) -> int | None:
        """The same for a reader that skips damage, be it known or found by this search."""
        while True:
            for damage in self.damage:
                if damage.first_offset <= offset < damage.end_offset:
                    offset = damage.end_offset
            known = self.damage
            try:
                return self.find(offset)
            except DamagedError:
                if self.damage == known:
                    raise

    def _walk_to(self, offset: int, position: int) -> int | None:
        if self.damage:
            return self._walk_around(offset, position)
        file = self.file()
        size = self.size_bytes
        while position < size:
            chunk = file.read(position, min(_WALK_BYTES, size - position))
            if len(chunk) < _STEP_BYTES:
                return self._find_again(offset)
            start = 0
            while start + _STEP_BYTES <= len(chunk):
                base_offset, length, delta = _step(chunk, start)
                if base_offset + delta >= offset:
                    if chunk[start + _MAGIC_AT] != MAGIC or base_offset >= self.next_offset:
                        return self._find_again(offset)
                    return position + start
                if length < _MIN_LENGTH:
                    return self._find_again(offset)
                start += length + LOG_OVERHEAD_BYTES
            position += start
        return None

    def _find_again(self, offset: int) -> int | None:
        """Examines the segment after a walk found no batch, and searches around the damage."""
        self._index = index = self._examine()
        return self._walk_around(offset, index.position_before(offset - self.base_offset))

    def _walk_around(self, offset: int, position: int) -> int | None:
        """Walks to an offset in a segment with damage, one header at a time."""
        for damage in self.damage:
            if damage.first_offset <= offset < damage.end_offset:
                raise DamagedError(f"{self.path(LOG)}: {damage}")
        while position < self.size_bytes:
            position = self._behind_damage(position)
            if position == self.size_bytes:
                break
            header = self.file().read(position, _STEP_BYTES)
            if len(header) < _STEP_BYTES:
                raise self._corrupt(position)
            base_offset, length, delta = _step(header)
            if base_offset + delta >= offset:
                return position
            if length < _MIN_LENGTH:
                raise self._corrupt(position)
            position += length + LOG_OVERHEAD_BYTES
        return None

    def _behind_damage(self, position: int) -> int:
        for damage in self.damage:
            if damage.position <= position < damage.end:
                return damage.end
        return position

    def batches(
        self, position: int = 0, *, headers_only: bool = False
    ) -> Iterator[tuple[int, SealedBatch]]:
        """Iterates over (position, batch) from `position` on; `headers_only` may omit data.

        Control batches always have their data, and it passes its check: a marker must not end a
        transaction the other way. Damage is skipped. The iteration ends early when the segment is
        removed.
        """
        if self.damage:
            position = self._behind_damage(position)
        while position < self.size_bytes and not self.is_gone:
            size = self._end_of_run(position)[0] if self.damage else self.size_bytes
            try:
                for _, batch in self._run_of_batches(position, size, headers_only):
                    if batch.is_control and not batch.is_sound:
                        raise self._corrupt(position)
                    yield position, batch
                    position += batch.size_bytes
            except CorruptError:
                self._pass_over(position)
            if self.damage:
                position = self._behind_damage(position)

    def _pass_over(self, position: int) -> None:
        """Examines the segment after a scan found no batch; raises if that explains nothing."""
        if self.is_gone:
            return
        index = self._examine()
        is_known = any(damage.position <= position < damage.end for damage in self.damage)
        if not is_known and self._end_of_run(position)[0] == self.size_bytes:
            raise self._corrupt(position)
        self._index = index

    def _run_of_batches(
        self, position: int, size: int, headers_only: bool
    ) -> Iterator[tuple[int, SealedBatch]]:
        """The batches between two positions without known damage."""
        while position < size and not self.is_gone:
            chunk = self.file().read(position, min(SCAN_BYTES, size - position))
            view = memoryview(chunk)
            start = 0
            while start + HEADER_BYTES <= len(chunk):
                batch = self._batch_at(view, start, position, size)
                if len(batch.data) < batch.size_bytes and (batch.is_control or not headers_only):
                    break
                yield position + start, batch
                start += batch.size_bytes
            if start == 0:
                batch = self._whole_batch(position, size)
                yield position, batch
                start = batch.size_bytes
            position += start

    def _batch_at(self, view: memoryview, start: int, position: int, size: int) -> SealedBatch:
        """The batch at a position in a chunk; it must end within the segment."""
        try:
            batch = read_header(view, start)
        except BatchError as problem:
            raise self._corrupt(position + start) from problem
        if position + start + batch.size_bytes > size:
            raise self._corrupt(position + start)
        return batch

    def _whole_batch(self, position: int, size: int) -> SealedBatch:
        """Reads a batch that is larger than one chunk."""
        header = memoryview(self.file().read(position, HEADER_BYTES))
        batch_size = self._batch_at(header, 0, position, size).size_bytes
        return read_header(self.file().read(position, batch_size))

    def _corrupt(self, position: int) -> CorruptError:
        return CorruptError(f"{self.path(LOG)}: no batch begins at byte {position}")
