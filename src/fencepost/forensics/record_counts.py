"""Counts the records that a group has still to read, from the headers of batches.

Theory of operation. Offsets overstate lag: markers have offsets, aborted records are never
delivered to a read_committed consumer, and compaction leaves gaps. A batch's header has the number
of its records, so no record is decoded. There are two ranges:

    committed position ... last stable offset ... high watermark
    |------- behind ------|------- hidden -------|

- Behind the last stable offset every transaction has ended. A read_committed fetch names those that
  were aborted, so a batch is judged by its fetch alone.
- Beyond it, a transaction that has ended has its marker in the range, too: it began after the last
  stable offset. `records.fates` follows them. What is not aborted there is hidden from
  read_committed consumers: it is in an open transaction, or behind one.

A read_uncommitted consumer gets all of it but the markers.

A scan stops when it has read enough bytes. What it has not read is estimated by the share of
records among the offsets that it has; without any, every offset counts.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fencepost.client.fetched import visible_batches
from fencepost.forensics.figures import Figure, estimated, exact
from fencepost.records.fates import WHOLE_LOG, Transaction, TransactionFollower
from fencepost.records.opened import iterate_records

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fencepost.client.fetched import FetchedPartition
    from fencepost.records.batch import SealedBatch

SCAN = "Fetch: record counts of batches, without markers and aborted records"
SAMPLE = "Fetch: the share of records among the offsets that were read, for all offsets"
OFFSETS = "ListOffsets: difference of offsets, markers and aborted records included"


def records_from(batch: SealedBatch, start: int) -> int:
    """Returns how many records of a batch have at least this offset."""
    if start <= batch.base_offset:
        return batch.record_count
    if batch.record_count == batch.last_offset_delta + 1:
        return max(0, batch.next_offset - start)
    # A compacted batch does not say which of its offsets are left: it is opened.
    return sum(record.offset >= start for record in iterate_records(batch, name_errors="replace"))


@dataclass(slots=True)
class RangeScan:
    """The progress of a scan of [start, end), and the bytes that it may still read."""

    start: int
    end: int
    budget_bytes: int
    position: int = field(init=False)
    read_bytes: int = 0

    def __post_init__(self) -> None:
        self.position = min(self.start, self.end)

    @property
    def is_complete(self) -> bool:
        """Whether everything was read."""
        return self.position >= self.end

    @property
    def goes_on(self) -> bool:
        """Whether there is something left to read, and leave to read it."""
        return not self.is_complete and self.read_bytes < self.budget_bytes

    def advance(self, batches: Iterable[SealedBatch]) -> list[SealedBatch]:
        """Moves on; returns the batches of the range that are new."""
        taken = []
        for batch in batches:
            if batch.base_offset >= self.end:
                # Compaction may leave nothing up to the end of the range.
                self.position = self.end
                break
            if batch.next_offset > self.position:
                taken.append(batch)
                self.position = batch.next_offset
                self.read_bytes += batch.size_bytes
        return taken

    def finish(self) -> None:
        """Notes that the range has nothing more."""
        self.position = self.end

    def figure(self, counted: int) -> Figure:
        """Returns a count of what was read as a figure for the whole range."""
        if self.is_complete:
            return exact(counted, SCAN)
        read = self.position - self.start
        left = self.end - self.position
        if read <= 0:
            return estimated(left, OFFSETS)
        return estimated(counted + round(left * counted / read), SAMPLE)


class BehindCount:
    """Counts from a position to the last stable offset, by read_committed fetches."""

    def __init__(self, scan: RangeScan) -> None:
        self.scan = scan
        self._visible = 0
        self._all = 0

    def count(self, fetched: FetchedPartition) -> None:
        """Counts the batches of one fetch."""
        taken = self.scan.advance(fetched.batches)
        start = self.scan.start
        self._all += sum(records_from(batch, start) for batch in taken if not batch.is_control)
        for batch in visible_batches(taken, fetched.aborted):
            self._visible += records_from(batch, start)

    @property
    def visible(self) -> Figure:
        """What a read_committed consumer can read now."""
        return self.scan.figure(self._visible)

    @property
    def all(self) -> Figure:
        """The same with aborted records, which a read_uncommitted consumer gets."""
        return self.scan.figure(self._all)


class HiddenCount:
    """Counts from the last stable offset to the high watermark, by read_uncommitted fetches.

    A read_uncommitted consumer may be beyond the last stable offset. Its records are counted from
    there, but transactions are followed from the last stable offset on.
    """

    def __init__(self, scan: RangeScan, count_from: int) -> None:
        self.scan = scan
        self._count_from = count_from
        self._follower = TransactionFollower(WHOLE_LOG)
        self._plain = 0
        self._of: Counter[Transaction] = Counter()

    def count(self, fetched: FetchedPartition) -> None:
        """Counts the batches of one fetch."""
        for batch in self.scan.advance(fetched.batches):
            transaction = self._follower.follow(batch)
            if batch.is_control:
                continue
            count = records_from(batch, self._count_from)
            if transaction is None:
                self._plain += count
            else:
                self._of[transaction] += count

    @property
    def hidden(self) -> Figure:
        """What read_committed consumers wait for; aborted records are left out."""
        kept = sum(n for txn, n in self._of.items() if txn.end is None or txn.end.commit)
        return self.scan.figure(self._plain + kept)

    @property
    def all(self) -> Figure:
        """The same with aborted records."""
        return self.scan.figure(self._plain + self._of.total())


def add(*figures: Figure) -> Figure:
    """Returns the sum: as uncertain as the most uncertain part; unknown parts are left out."""
    known = [each for each in figures if each.value is not None]
    if not known and figures:
        return figures[0]
    total = sum(each.value for each in known)
    sources = "; ".join(dict.fromkeys(each.source for each in figures)) or SCAN
    is_exact = all(each.certainty.value == "exact" for each in figures)
    return exact(total, sources) if is_exact else estimated(total, sources)
