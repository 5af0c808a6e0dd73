"""Reads all logs through, slowly, and reports what has rotted before a reader meets it.

Theory of operation ------------------- A start reads only what lies above the recovery points: what
is below was on the disk, and reading all of it would take as long as the disk is large. But disks
rot, and files are meddled with, with or without a crash. So after every start, and then once a
week, each segment is read through as `fencepost check` does it: headers, CRCs, offsets; no batch is
opened. Segments that recovery has just read are left out of the first pass.

- One segment at a time, in one thread, at `BYTES_PER_SECOND`, in pieces of `PIECE_BYTES` with a
  pause after each. A piece of the smallest batches holds the interpreter for about a millisecond,
  and the pause after it is nine times as long: the loop hardly notices.
- The thread opens a file of its own and touches nothing else. The loop says which file and how far
  to read, and takes the result up if the segment is still part of its log. What was rolled
  meanwhile is read to where it ended then.
- Damage is noted in its segment, which logs it once and from then on answers its readers with
  CORRUPT_MESSAGE (`Segment.note_damage`). A file that cannot be read is reported, and the pass goes
  on.
- A transaction coordinator that is being served knows what the damaged records said. It saves its
  state at once (`CheckpointKeeper.save_durably`), so that the next start does not need them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from fencepost.base.ids import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from fencepost.log.names import LOG
from fencepost.log.survey import examine

if TYPE_CHECKING:
    from collections.abc import Callable

    from fencepost.base.seams import Disk, File
    from fencepost.broker.node import Node
    from fencepost.broker.runtime import TimerHandle
    from fencepost.log.segment import Segment
    from fencepost.log.survey import Survey
    from fencepost.partition.partition import Partition

log = logging.getLogger(__name__)

START_DELAY_MS: Final = 10_000
"""After a start clients come back and want the disk for themselves."""
INTERVAL_MS: Final = 7 * 24 * 60 * 60 * 1000
PAUSE_MS: Final = 2
"""Between two segments; most are small."""
BYTES_PER_SECOND: Final = 16 * 1024 * 1024
PIECE_BYTES: Final = 32 * 1024
PAUSES_PER_WORK: Final = 9
"""The thread works for a tenth of its time at most. Small batches cost more time than their bytes
tell."""
PROGRESS_MS: Final = 5 * 60 * 1000
SKIPPED_PER_TURN: Final = 500
"""Segments that need not be read, passed over in one turn of the loop."""


class _StoppedError(Exception):
    """The broker stops."""


class _PacedFile:
    """A file that is read no faster than it should be."""

    def __init__(self, file: File, scrub: Scrub) -> None:
        self._file = file
        self._scrub = scrub
        self._read_bytes = 0
        self._worked_until = time.thread_time()

    def read(self, position: int, count: int) -> bytes:
        """Pauses for what was read and done before, and reads."""
        worked = time.thread_time() - self._worked_until
        self._scrub.pause(max(self._read_bytes / BYTES_PER_SECOND, worked * PAUSES_PER_WORK))
        if self._scrub.is_stopped:
            raise _StoppedError
        self._worked_until = time.thread_time()
        data = self._file.read(position, count)
        self._read_bytes = len(data)
        return data


class Reading:
    """One segment, as far as it goes now; `run` belongs into a thread."""

    def __init__(self, disk: Disk, segment: Segment, scrub: Scrub) -> None:
        self._disk = disk
        self._scrub = scrub
        self._path = segment.path(LOG)
        self._base = segment.base_offset
        self._end_offset = segment.next_offset
        self.size_bytes = segment.size_bytes
        self.found: Survey | None = None
        self.problem: OSError | None = None

    def run(self) -> None:
        try:
            file = self._disk.open(self._path)
            try:
                self.found = examine(
                    _PacedFile(file, self._scrub),
                    self.size_bytes,
                    self._base,
                    self._end_offset,
                    piece_bytes=PIECE_BYTES,
                )
            finally:
                file.close()
        except OSError as problem:
            self.problem = problem
        except _StoppedError:
            pass


class Scrub:
    """The passes of one node."""

    def __init__(self, node: Node, pause: Callable[[float], None] = time.sleep) -> None:
        self._node = node
        self.pause = pause
        self.is_stopped = False
        self._timer: TimerHandle | None = None
        self._work: Iterator[tuple[Partition, Segment] | None] = iter(())
        self._is_first = True
        self._began_ms = 0
        self._told_ms = 0
        self._segments = 0
        self._bytes = 0
        self._damaged = 0
        self._unreadable = 0

    def start(self) -> None:
        self._timer = self._node.call_later(START_DELAY_MS, self._begin)

    def stop(self) -> None:
        """Nothing more is begun; the thread ends with its next piece."""
        self.is_stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _begin(self) -> None:
        self._began_ms = self._told_ms = self._node.clock.now_ms()
        self._segments = self._bytes = self._damaged = self._unreadable = 0
        self._work = self._segments_to_read()
        self._next()

    def _segments_to_read(self) -> Iterator[tuple[Partition, Segment] | None]:
        """Every segment when its turn comes; None where the loop should have a turn."""
        partitions = self._node.partitions.by_name
        passed = 0
        for name in list(partitions):
            partition = partitions.get(name)
            if partition is None or partition.log.is_unborn:
                passed += 1
            else:
                recovered = partition.log.recovered_from if self._is_first else None
                for segment in list(partition.log.segments):
                    is_read = recovered is not None and segment.base_offset >= recovered
                    if is_read or segment.size_bytes == 0:
                        passed += 1
                    elif _is_there(partition, segment):
                        yield partition, segment
            if passed >= SKIPPED_PER_TURN:
                passed = 0
                yield None

    def _next(self) -> None:
        if self.is_stopped:
            return
        self._tell_progress()
        try:
            found = next(self._work)
        except StopIteration:
            self._finish()
            return
        if found is None:
            self._go_on()
            return
        partition, segment = found
        reading = Reading(self._node.disk, segment, self)
        self._node.background.run(reading.run, partial(self._read, partition, segment, reading))

    def _go_on(self) -> None:
        self._timer = self._node.call_later(PAUSE_MS, self._next)

    def _read(
        self, partition: Partition, segment: Segment, reading: Reading, _: Exception | None
    ) -> None:
        if self.is_stopped:
            return
        self._segments += 1
        self._bytes += reading.size_bytes
        if _is_there(
            partition, segment
        ):  # Else it was deleted or compacted, and is another file now.
            if reading.problem is not None:
                self._unreadable += 1
                log.error(
                    "%s cannot be read: %s. Its readers get KAFKA_STORAGE_ERROR as long as that "
                    "is so; everything else is "
                    "served. Look after the disk, and put the file back from a copy while the "
                    "broker is stopped",
                    segment.path(LOG),
                    reading.problem,
                )
            elif reading.found is not None and reading.found.damage:
                self._damaged += 1
                segment.take_survey(reading.found)
                self._tell_coordinator(partition)
        self._go_on()

    def _tell_coordinator(self, partition: Partition) -> None:
        topic, index = partition.name
        if topic == TRANSACTION_STATE_TOPIC:
            self._node.transactions.on_damage(partition)
        elif topic == CONSUMER_OFFSETS_TOPIC and self._node.groups.is_loaded(index):
            log.error(
                "%s: its consumer groups are served from memory, and will not be after the next "
                "start unless the file is "
                "put back from a copy or the loss is accepted with `fencepost repair`",
                partition.name,
            )

    # -- what is told
    # -------------------------------------------------------------------------------------

    def _tell_progress(self) -> None:
        now_ms = self._node.clock.now_ms()
        if now_ms - self._told_ms >= PROGRESS_MS:
            self._told_ms = now_ms
            log.info("scrub: %d segments, %d bytes read so far", self._segments, self._bytes)

    def _finish(self) -> None:
        level = logging.ERROR if self._damaged or self._unreadable else logging.INFO
        log.log(
            level,
            "scrub: %d segments (%d bytes) read in %d s: %d damaged, %d unreadable",
            self._segments,
            self._bytes,
            (self._node.clock.now_ms() - self._began_ms) // 1000,
            self._damaged,
            self._unreadable,
        )
        self._is_first = False
        self._timer = self._node.call_later(INTERVAL_MS, self._begin)


def _is_there(partition: Partition, segment: Segment) -> bool:
    return not partition.closed and not segment.is_gone and segment in partition.log.segments
