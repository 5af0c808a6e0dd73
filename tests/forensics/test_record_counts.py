"""Counts of records from the headers of batches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fencepost.base.ids import TopicPartition
from fencepost.client.fetched import AbortedTransaction, FetchedPartition
from fencepost.forensics.figures import Certainty, estimated
from fencepost.forensics.record_counts import BehindCount, HiddenCount, RangeScan, records_from
from fencepost.records.batch import SealedBatch, read_header
from fencepost.records.builder import build_batch, rebuild_batch
from fencepost.records.control import Marker, build_marker
from fencepost.records.opened import Record, open_batch

PLACE = TopicPartition("t", 0)


MUCH = 1 << 40


@dataclass
class Log:
    """A partition's batches, and what became of every record."""

    batches: list[SealedBatch] = field(default_factory=list)
    fates: dict[int, str] = field(default_factory=dict)
    aborted: dict[int, AbortedTransaction] = field(default_factory=dict)
    """By the offset of the marker."""
    open: dict[int, list[int]] = field(default_factory=dict)

    @property
    def end(self) -> int:
        return self.batches[-1].next_offset if self.batches else 0

    @property
    def stable(self) -> int:
        return min((offsets[0] for offsets in self.open.values()), default=self.end)

    def write(self, count: int, producer_id: int | None = None) -> None:
        start = self.end
        batch = build_batch(
            [Record(value=b"v")] * count,
            timestamp_ms=0,
            base_offset=start,
            transactional=producer_id is not None,
            producer_id=-1 if producer_id is None else producer_id,
            producer_epoch=0,
            base_sequence=0,
        )
        self.batches.append(read_header(batch))
        offsets = range(start, start + count)
        self.fates |= dict.fromkeys(offsets, "plain" if producer_id is None else "open")
        if producer_id is not None:
            self.open.setdefault(producer_id, []).extend(offsets)

    def finish(self, producer_id: int, *, commit: bool) -> None:
        marker = build_marker(
            producer_id=producer_id,
            producer_epoch=0,
            marker=Marker(commit, 0),
            timestamp_ms=0,
            base_offset=self.end,
        )
        at = self.end
        self.batches.append(marker)
        offsets = self.open.pop(producer_id, [])
        self.fates |= dict.fromkeys(offsets, "committed" if commit else "aborted")
        if offsets and not commit:
            self.aborted[at] = AbortedTransaction(offsets[0], producer_id)

    def fetch(self, position: int, until: int, how_many: int = 2) -> FetchedPartition:
        found = [b for b in self.batches if b.next_offset > position and b.base_offset < until]
        # As a broker does, only those that reach into the fetched range.
        aborted = sorted(each for marker, each in self.aborted.items() if marker >= position)
        return FetchedPartition(
            PLACE, position, self.end, self.stable, 0, found[:how_many], aborted
        )

    def count(self, *fates: str, start: int = 0, end: int | None = None) -> int:
        last = self.end if end is None else end
        return sum(fate in fates and start <= at < last for at, fate in self.fates.items())


def scan(log: Log, start: int, budget: int = MUCH) -> tuple[BehindCount, HiddenCount]:
    behind = BehindCount(RangeScan(start, max(start, log.stable), budget))
    while behind.scan.goes_on:
        behind.count(log.fetch(behind.scan.position, log.stable))
    hidden = HiddenCount(RangeScan(log.stable, log.end, budget), start)
    while hidden.scan.goes_on:
        hidden.count(log.fetch(hidden.scan.position, log.end))
    return behind, hidden


steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(1, 4), st.sampled_from([None, 1, 2])),
        st.tuples(st.just("finish"), st.sampled_from([1, 2]), st.booleans()),
    ),
    max_size=30,
)


@given(steps, st.data())
def test_counts_are_those_of_each_records_fate(history: list[Any], data: st.DataObject) -> None:
    log = Log()
    for step in history:
        if step[0] == "write":
            log.write(step[1], step[2])
        else:
            log.finish(step[1], commit=step[2])
    start = data.draw(st.integers(0, log.end))
    behind, hidden = scan(log, start)
    stable = log.stable
    assert behind.visible.value == log.count("plain", "committed", start=start, end=stable)
    assert behind.all.value == log.count("plain", "committed", "aborted", start=start, end=stable)
    beyond = max(start, stable)
    assert hidden.hidden.value == log.count("plain", "committed", "open", start=beyond)
    everything = ("plain", "committed", "open", "aborted")
    assert hidden.all.value == log.count(*everything, start=beyond)
    assert behind.visible.certainty is hidden.hidden.certainty is Certainty.EXACT


def test_what_was_not_read_is_estimated_by_the_share_of_records_that_was() -> None:
    log = Log()
    for _ in range(50):
        log.write(3, 1)
        log.finish(1, commit=True)
    budget = sum(batch.size_bytes for batch in log.batches[:20])
    behind, _ = scan(log, 0, budget)
    assert behind.visible.certainty is Certainty.ESTIMATED
    assert behind.visible.value == 150
    assert behind.scan.read_bytes <= budget + log.batches[0].size_bytes


def test_without_reading_offsets_are_counted() -> None:
    log = Log()
    log.write(3, 1)
    log.finish(1, commit=True)
    behind, _ = scan(log, 1, budget=0)
    assert behind.visible == estimated(3, behind.visible.source)
    assert "markers" in behind.visible.source


def test_a_compacted_batch_counts_the_records_that_are_left() -> None:
    whole = read_header(build_batch([Record(value=b"v")] * 10, timestamp_ms=0, base_offset=100))
    left = [record for record in open_batch(whole) if record.offset in (101, 105, 109)]
    batch = read_header(rebuild_batch(whole, left, delete_horizon_ms=None))
    assert records_from(batch, 0) == 3
    assert records_from(batch, 102) == 2
    assert records_from(batch, 110) == 0
    assert records_from(whole, 107) == 3
