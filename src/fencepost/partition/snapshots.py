"""The producers of a partition on the disk: one snapshot per segment, the newest, a saved point.

Recovery starts at a snapshot and reads the batches after it. Retention needs one where the log will
begin: what a producer may send next, and which transactions are open, must not depend on batches
that were removed.

After a kill recovery starts at the saved point (`log/saved_points.py`), if that is not older.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

from fencepost.base.failures import StorageError
from fencepost.log.log import Log
from fencepost.partition.open_txns import OpenTxns
from fencepost.partition.producers import Producers
from fencepost.records.batch import SealedBatch
from fencepost.records.control import read_marker
from fencepost.records.index import AbortedTxn
from fencepost.records.saved_point import SavedPoint
from fencepost.records.snapshot import decode_snapshot, encode_snapshot

_LOGGER: Final = logging.getLogger(__name__)


class ProducerSnapshots:
    """Writes and reads the snapshots of one partition."""

    __slots__ = ("_log", "_unsaved", "saved_at")

    def __init__(self, log: Log) -> None:
        self._log = log
        self._unsaved: dict[int, bytes] = {}
        """Snapshots that the disk has refused so far, by their offset."""
        self.saved_at: int | None = None
        """The offset of the last snapshot that was written or read."""

    def save(self, offset: int, producers: Producers) -> None:
        """Writes a snapshot at the base of a segment; keeps it for later if the disk fails.

        Recovery can do without it. Retention cannot, and tries again before it removes anything.
        """
        self._unsaved[offset] = encode_snapshot(producers.snapshot())
        try:
            self.save_pending()
        except StorageError as problem:
            _LOGGER.warning("%s; will be tried again", problem)

    def save_pending(self) -> None:
        """Writes the snapshots that the disk has refused so far."""
        for offset in list(self._unsaved):
            self._log.snapshots.write(offset, self._unsaved[offset])
            del self._unsaved[offset]
            self.saved_at = offset

    def save_end(self, producers: Producers) -> None:
        """Writes a snapshot at the end of the log, so that recovery reads nothing before it."""
        self.save_pending()
        end_offset = self._log.log_end_offset
        if end_offset != self.saved_at:
            self._log.snapshots.write(end_offset, encode_snapshot(producers.snapshot()))
            self.saved_at = end_offset

    def save_bases(
        self, unsaved: list[int], offset: int, saved: set[int], producers: Producers
    ) -> None:
        """Writes the snapshots at segment bases up to an offset: a crash may have removed them."""
        while unsaved and unsaved[0] <= offset:
            base = unsaved.pop(0)
            if base not in saved:
                self.save(base, producers)

    def save_start(self, offset: int, producers: Producers) -> None:
        """Makes sure of a snapshot at the base where the log will begin after retention."""
        self.save_pending()
        if offset not in self._log.snapshots.offsets():
            at_offset = self._producers_at(offset, producers)
            self._log.snapshots.write(offset, encode_snapshot(at_offset.snapshot()))

    def restore(
        self, producers: Producers, at_or_before: int, topic_id: bytes
    ) -> tuple[int, list[tuple[int, int]]]:
        """Loads the newest readable snapshot, or the saved point.

        Returns the offset from which the log must be read, and the open transactions as
        (first offset, producer id).
        """
        log = self._log
        first = log.segments[0].base_offset
        point = self._usable_point(at_or_before, topic_id)
        while found := log.snapshots.latest(at_or_before):
            offset, data = found
            if point is not None and point.segment.offset >= offset:
                break
            try:
                entries = decode_snapshot(data)
            except ValueError:
                log.snapshots.delete(offset)
                continue
            open_txns = producers.restore(entries)
            if offset < first:
                # Batches between the snapshot and the log are missing, maybe markers too. A
                # transaction that was open then has no batch in the log, or one that opens it
                # again.
                producers.forget_txns()
                open_txns = []
            self.saved_at = offset
            return max(offset, first), open_txns
        if point is not None:
            return point.segment.offset, producers.restore_saved(point.producers)
        return first, []

    def _usable_point(self, at_or_before: int, topic_id: bytes) -> SavedPoint | None:
        """The saved point, if it is one of this topic and in the log."""
        point, first = self._log.points.found, self._log.segments[0].base_offset
        if point is None or point.topic_id != topic_id:
            return None
        return point if first <= point.segment.offset <= at_or_before else None

    def prune(self) -> None:
        """Keeps the snapshots at segment bases, where recovery may start, and the newest."""
        offsets = self._log.snapshots.offsets()
        bases = {segment.base_offset for segment in self._log.segments}
        for offset in offsets[:-1]:
            if offset not in bases:
                self._log.snapshots.delete(offset)

    def _producers_at(self, offset: int, current: Producers) -> Producers:
        """Rebuilds the producers as of an offset whose snapshot was lost."""
        log = self._log
        if offset == log.log_end_offset:
            return current
        start = log.segments[0].base_offset
        producers = Producers()
        found = log.snapshots.latest(offset)
        while found is not None:
            try:
                producers.restore(decode_snapshot(found[1]))
            except ValueError:  # Damaged: an older one needs more batches and gives the same.
                found = log.snapshots.latest(found[0] - 1)
                continue
            if found[0] < start:
                producers.forget_txns()  # As in `restore`.
            start = max(start, found[0])
            break
        for batch in _of_producers(log, start, offset):
            if not batch.is_control:
                producers.apply_batch(batch)
            elif (marker := read_marker(batch)) is not None:
                producers.apply_marker(batch, marker)
        return producers

    def aborted_between(self, base_offset: int, end_offset: int) -> list[AbortedTxn]:
        """The aborted transactions whose marker is in a segment, as its batches say.

        For a transaction index that is damaged. Transactions that were open where the segment
        begins come from the snapshot there, or from the batches before it.
        """
        producers, open_txns = self._producers_at(base_offset, Producers()), OpenTxns()
        for first_offset, producer_id in producers.open_txns():
            open_txns.begin(first_offset, producer_id)
        aborted: list[AbortedTxn] = []
        for batch in _of_producers(self._log, base_offset, end_offset):
            if not batch.is_control:
                if producers.apply_batch(batch):
                    open_txns.begin(batch.base_offset, batch.producer_id)
                continue
            marker = read_marker(batch)
            completed = None if marker is None else producers.apply_marker(batch, marker)
            if completed is not None:
                if completed.aborted:
                    aborted.append(open_txns.as_aborted(completed))
                open_txns.end(completed)
        return aborted


def _of_producers(log: Log, start: int, end: int) -> Iterator[SealedBatch]:
    """The batches in a range that change the state of a producer."""
    for batch in log.scan(start, headers_only=True):
        if batch.base_offset >= end:
            return
        if batch.producer_id < 0 or batch.base_offset < start:
            continue
        if batch.is_control or batch.base_sequence >= 0 or batch.is_transactional:
            yield batch
