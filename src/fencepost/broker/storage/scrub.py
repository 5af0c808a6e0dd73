"""Reads all logs slowly in the background, to find damage before a consumer does.

Theory of operation. A start reads only the records above the recovery points; reading everything
would take as long as the disk is large. But disks fail silently, and files get changed by mistake.
So after every start, and then once a week, the scrub reads each segment as `fencepost check` does:
headers, CRCs, offsets and records. No pass skips what recovery has just read: recovery does not
check records.

- One segment at a time, in one thread, at `BYTES_PER_SECOND`, in pieces of `PIECE_BYTES` with a
  pause after each. A piece of the smallest batches holds the interpreter for about a millisecond,
  and the pause after it is nine times as long, so the loop is hardly delayed.
- The thread opens its own file and touches nothing else. The loop decides which file to read and
  how far, and uses the result if the segment still belongs to its log. The active segment is read
  up to its end at that time.
- The segment notes its damage, logs it once, and answers its readers with CORRUPT_MESSAGE
  (`Segment.note_damage`). A file that cannot be read is logged, and the pass continues. So are
  batches whose records cannot be read (`log/segment/record_check.py`): they are served as they are.
- A running transaction coordinator holds in memory what the damaged records said. It saves its
  state at once (`CheckpointKeeper.save_durably`), so that the next start does not need them. The
  controller does the same for the metadata log, without which the next start would be refused.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from fencepost.base.ids import (
    CLUSTER_METADATA_TOPIC,
    CONSUMER_OFFSETS_TOPIC,
    TRANSACTION_STATE_TOPIC,
)
from fencepost.log.names import LOG
from fencepost.log.segment.record_check import LISTED, RecordCheck, Unreadable
from fencepost.log.segment.survey import Survey, examine
from fencepost.records.batch import BatchError, SealedBatch
from fencepost.records.control import read_marker

if TYPE_CHECKING:
    from fencepost.base.seams import Disk, File
    from fencepost.broker.groups.coordinator import GroupCoordinator
    from fencepost.broker.partitions.local_partitions import LocalPartitions
    from fencepost.broker.runtime import Runtime, TimerHandle
    from fencepost.broker.storage.background import Background
    from fencepost.broker.transactions.coordinator import TransactionCoordinator
    from fencepost.log.segment.segment import Segment
    from fencepost.partition.partition import Partition

log = logging.getLogger(__name__)

START_DELAY_MS: Final = 10_000
"""After a start, reconnecting clients need the disk."""
INTERVAL_MS: Final = 7 * 24 * 60 * 60 * 1000
PAUSE_MS: Final = 2
"""Between two segments; most are small."""
BYTES_PER_SECOND: Final = 16 * 1024 * 1024
PIECE_BYTES: Final = 32 * 1024
PAUSES_PER_WORK: Final = 9
"""The thread works at most a tenth of the time. Small batches cost more time than their size
suggests."""
PROGRESS_MS: Final = 5 * 60 * 1000
SKIPPED_PER_TURN: Final = 500
"""Segments to skip in one turn of the loop."""


class _StoppedError(Exception):
    """The broker is stopping."""


class _PacedFile:
    """A file whose reads are throttled."""

    def __init__(self, file: File, scrub: Scrub) -> None:
        self._file = file
        self._scrub = scrub
        self._read_bytes = 0
        self._worked_until = time.thread_time()

    def read(self, position: int, count: int) -> bytes:
        """Pauses in proportion to the last piece and its processing, then reads."""
        worked = time.thread_time() - self._worked_until
        self._scrub.pause(max(self._read_bytes / BYTES_PER_SECOND, worked * PAUSES_PER_WORK))
        if self._scrub.is_stopped:
            raise _StoppedError
        self._worked_until = time.thread_time()
        data = self._file.read(position, count)
        self._read_bytes = len(data)
        return data

    def rest(self) -> None:
        """Pauses in proportion to the work since the last read or pause."""
        worked = time.thread_time() - self._worked_until
        self._scrub.pause(worked * PAUSES_PER_WORK)
        if self._scrub.is_stopped:
            raise _StoppedError
        self._worked_until = time.thread_time()


class SegmentRead:
    """The read of one segment up to its present end; `run` belongs in a thread."""

    def __init__(self, disk: Disk, segment: Segment, scrub: Scrub) -> None:
        self._disk = disk
        self._scrub = scrub
        self._path = segment.path(LOG)
        self._base = segment.base_offset
        self._end_offset = segment.next_offset
        self.size_bytes = segment.size_bytes
        self.found: Survey | None = None
        self.unreadable: list[Unreadable] = []
        self.aborts: list[tuple[int, int]] = []
        """The offsets of ABORT markers, and their producer ids."""
        self.problem: OSError | None = None

    def run(self) -> None:
        """Reads the segment; sets `found`, or `problem` if the disk fails."""
        try:
            file = self._disk.open(self._path)
            try:
                paced = _PacedFile(file, self._scrub)
                records = RecordCheck(paced.rest)

                def look(batch: SealedBatch, position: int) -> None:
                    records.look(batch, position)
                    self._note_abort(batch)

                self.found = examine(
                    paced,
                    self.size_bytes,
                    self._base,
                    self._end_offset,
                    look,
                    piece_bytes=PIECE_BYTES,
                )
                self.unreadable = records.found(self.found.damage)
            finally:
                file.close()
        except OSError as problem:
            self.problem = problem
        except _StoppedError:
            pass

    def _note_abort(self, batch: SealedBatch) -> None:
        if batch.is_control:
            with contextlib.suppress(BatchError):  # `RecordCheck` reports it.
                marker = read_marker(batch)
                if marker is not None and not marker.commit:
                    self.aborts.append((batch.base_offset, batch.producer_id))


class Scrub:
    """The scrub of one broker."""

    def __init__(
        self,
        runtime: Runtime,
        partitions: LocalPartitions,
        background: Background,
        on_metadata_damage: Callable[[], None],
        groups: GroupCoordinator,
        transactions: TransactionCoordinator,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._runtime = runtime
        self._partitions = partitions
        self._background = background
        self._on_metadata_damage = on_metadata_damage
        self._groups = groups
        self._transactions = transactions
        self.pause = pause
        self.is_stopped = False
        self._timer: TimerHandle | None = None
        self._work: Iterator[tuple[Partition, Segment] | None] = iter(())
        self._began_ms = 0
        self._logged_ms = 0
        self._segments = 0
        self._bytes = 0
        self._damaged = 0
        self._unreadable = 0
        self._invalid = 0
        self._reported: set[tuple[str, int]] = set()
        """Paths and first offsets of the unreadable batches that were logged."""

    def start(self) -> None:
        """Schedules the first pass."""
        self._timer = self._runtime.call_later(START_DELAY_MS, self._begin)

    def stop(self) -> None:
        """Begins nothing more; the thread ends at its next piece."""
        self.is_stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _begin(self) -> None:
        self._began_ms = self._logged_ms = self._runtime.clock.now_ms()
        self._segments = self._bytes = self._damaged = self._unreadable = self._invalid = 0
        self._work = self._segments_to_read()
        self._next()

    def _segments_to_read(self) -> Iterator[tuple[Partition, Segment] | None]:
        """The segments of one pass; None where the loop should get a turn."""
        partitions = self._partitions.by_name
        passed = 0
        for name in list(partitions):
            partition = partitions.get(name)
            if partition is None or partition.log.is_unborn:
                passed += 1
            else:
                for segment in list(partition.log.segments):
                    if segment.next_offset == segment.base_offset:
                        passed += 1
                    elif _is_current(partition, segment):
                        yield partition, segment
            if passed >= SKIPPED_PER_TURN:
                passed = 0
                yield None

    def _next(self) -> None:
        if self.is_stopped:
            return
        self._log_progress()
        try:
            found = next(self._work)
        except StopIteration:
            self._finish()
            return
        if found is None:
            self._go_on()
            return
        partition, segment = found
        reading = SegmentRead(self._runtime.disk, segment, self)
        self._background.run(reading.run, partial(self._read, partition, segment, reading))

    def _go_on(self) -> None:
        self._timer = self._runtime.call_later(PAUSE_MS, self._next)

    def _read(
        self, partition: Partition, segment: Segment, reading: SegmentRead, _: Exception | None
    ) -> None:
        if self.is_stopped:
            return
        self._segments += 1
        self._bytes += reading.size_bytes
        if _is_current(partition, segment):  # Otherwise it was deleted or compacted.
            if reading.problem is not None:
                self._unreadable += 1
                log.error(
                    "%s cannot be read: %s. Its readers get KAFKA_STORAGE_ERROR until it can be "
                    "read again; everything else is served. Check the disk, stop the broker and "
                    "restore the file from a copy",
                    segment.path(LOG),
                    reading.problem,
                )
            elif reading.found is not None:
                partition.log.check_epochs(segment, reading.found.epochs)
                if reading.found.damage:
                    self._damaged += 1
                    segment.adopt_examination(reading.found)
                else:
                    partition.log.check_aborted(segment, reading.aborts)
                if reading.unreadable:
                    self._invalid += 1
                    self._report_unreadable(segment, reading.unreadable)
                if reading.found.damage or reading.unreadable:
                    self._notify_coordinator(partition)
        self._go_on()

    def _report_unreadable(self, segment: Segment, found: list[Unreadable]) -> None:
        path = segment.path(LOG)
        new = [each for each in found if (path, each.place.first_offset) not in self._reported]
        self._reported.update((path, each.place.first_offset) for each in new)
        for each in new[:LISTED]:
            log.error(
                "%s: %s. They are served as they are, and readers may stop there. Move such "
                "groups to offset %d (`fencepost group reset`), or stop the broker and remove the "
                "records with `fencepost repair`",
                path,
                each,
                each.place.end_offset,
            )
        if len(new) > LISTED:
            log.error(
                "%s: %d more batches have records that cannot be read", path, len(new) - LISTED
            )

    def _notify_coordinator(self, partition: Partition) -> None:
        topic, index = partition.name
        if topic == CLUSTER_METADATA_TOPIC:
            log.error(
                "%s: a checkpoint replaces the damaged log, and nothing is lost. Check the disk",
                partition.name,
            )
            self._on_metadata_damage()
        elif topic == TRANSACTION_STATE_TOPIC:
            self._transactions.on_damage(partition)
        elif topic == CONSUMER_OFFSETS_TOPIC and self._groups.is_loaded(index):
            log.error(
                "%s: its consumer groups are served from memory until the next start. Before "
                "that, restore the file from a copy or accept the loss with `fencepost repair`",
                partition.name,
            )

    # -- log messages
    # -------------------------------------------------------------------------------------

    def _log_progress(self) -> None:
        now_ms = self._runtime.clock.now_ms()
        if now_ms - self._logged_ms >= PROGRESS_MS:
            self._logged_ms = now_ms
            log.info("scrub: %d segments, %d bytes read so far", self._segments, self._bytes)

    def _finish(self) -> None:
        is_bad = self._damaged or self._unreadable or self._invalid
        log.log(
            logging.ERROR if is_bad else logging.INFO,
            "scrub: %d segments (%d bytes) read in %d s: %d damaged, %d unreadable, %d with "
            "unreadable records",
            self._segments,
            self._bytes,
            (self._runtime.clock.now_ms() - self._began_ms) // 1000,
            self._damaged,
            self._unreadable,
            self._invalid,
        )
        self._timer = self._runtime.call_later(INTERVAL_MS, self._begin)


def _is_current(partition: Partition, segment: Segment) -> bool:
    return not partition.closed and not segment.is_gone and segment in partition.log.segments
