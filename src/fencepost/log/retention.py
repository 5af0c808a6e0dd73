"""Which segments retention removes, by Kafka's rules, and the removal of the oldest segments.

Segments are removed from the oldest on, and only below the high watermark. The active segment is
selected only together with all others: it is too old, or `retention.bytes` is 0. The caller rolls
first, so that the log end offset is kept.
"""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

from fencepost.base.failures import StorageError
from fencepost.base.ids import NO_TIMESTAMP
from fencepost.log.config import DELETE
from fencepost.log.durability import Durability
from fencepost.log.epochs import LeaderEpochs
from fencepost.log.segment.segment import Segment
from fencepost.log.segment_list import SegmentList
from fencepost.log.snapshots import SnapshotFiles

if TYPE_CHECKING:
    from fencepost.log.log import Log


def expired_segments(log: Log, now_ms: int, upper_offset: int) -> list[Segment]:
    """The oldest segments that are past the log's retention and below `upper_offset`, in order."""
    count = _below_start(log)
    if DELETE in log.config.cleanup_policy:
        count = max(count, _too_old(log, now_ms), _too_many(log))
    durable = takewhile(lambda segment: segment.next_offset <= upper_offset, log.segments[:count])
    return [segment for segment in durable if not (segment.is_active and segment.size_bytes == 0)]


def _below_start(log: Log) -> int:
    """Counts the sealed segments below the log start offset (DeleteRecords)."""
    sealed = log.segments[:-1]
    return len(list(takewhile(lambda segment: segment.next_offset <= log.log_start_offset, sealed)))


def _too_old(log: Log, now_ms: int) -> int:
    """Counts segments whose newest record is too old.

    A segment without timestamps (emptied by compaction, or from a client that sends none) is
    removed together with a later one, never alone. Kafka uses the time of the file instead.
    """
    if log.config.retention_ms < 0:
        return 0
    count = 0
    for index, segment in enumerate(log.segments):
        newest = segment.newest_time()
        if newest == NO_TIMESTAMP:
            continue
        if now_ms - newest <= log.config.retention_ms:
            break
        count = index + 1
    return count


def _too_many(log: Log) -> int:
    """Counts the oldest segments above `retention.bytes`."""
    if log.config.retention_bytes < 0:
        return 0
    excess = log.size_bytes - log.config.retention_bytes
    count = 0
    for segment in log.segments:
        if excess < segment.size_bytes:
            break
        excess -= segment.size_bytes
        count += 1
    return count


class Removal:
    """Deletes the files of segments that have left the log, and what belongs to them.

    If the disk fails, the next removal tries again.
    """

    __slots__ = ("_durability", "_epochs", "_folder", "_pending", "_segments", "_snapshots")

    def __init__(
        self,
        folder: str,
        segments: SegmentList,
        epochs: LeaderEpochs,
        snapshots: SnapshotFiles,
        durability: Durability,
    ) -> None:
        self._folder = folder
        self._segments = segments
        self._epochs = epochs
        self._snapshots = snapshots
        self._durability = durability
        self._pending: list[Segment] = []

    def run(self, removed: list[Segment], log_start_offset: int) -> None:
        """Deletes these segments, and those that the disk could not delete before."""
        self._pending += removed
        if not self._pending:
            return
        self._durability.note_names()
        try:
            while self._pending:
                self._pending[0].delete()
                del self._pending[0]
            if self._epochs.cut_start(log_start_offset):
                self._durability.note_new_file(self._epochs.path)
            self._snapshots.delete_before(self._segments.base_offset)
        except OSError as problem:
            raise StorageError(f"{self._folder}: a segment was not removed: {problem}") from problem
