"""Goal: no batch shows a part of a transaction, and every record is in exactly one batch.

Method: random logs of interleaved transactions, which grow while a reader plans batches with random
limits. The log is a fake that answers fetches as a broker does: up to the last stable offset, with
the aborted transactions of the range, some batches at a time.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyspark", reason="the spark extra is not installed")
pytest.importorskip("pyarrow", reason="the spark extra is not installed")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from fencepost.base.failures import ConfigError
from fencepost.base.ids import TopicPartition
from fencepost.client.failures import OffsetOutOfRange
from fencepost.client.fetched import AbortedTransaction, FetchedPartition
from fencepost.records.batch import SealedBatch, read_header
from fencepost.records.builder import build_batch
from fencepost.records.control import Marker, build_marker
from fencepost.records.opened import Record
from fencepost.spark.offsets import PartitionOffsets, parse_offsets
from fencepost.spark.source import stream_reader as stream
from fencepost.spark.source.extents import Extents
from fencepost.spark.source.options import read_source_options
from fencepost.spark.source.positions import Subscribed
from fencepost.spark.source.stream_reader import StreamReader

A0 = TopicPartition("a", 0)


@dataclass
class Written:
    """A transaction in the log."""

    producer: int
    first: int
    offsets: list[int] = field(default_factory=list)
    marker: int | None = None
    commit: bool = False


class PartitionLog:
    """One partition: its batches, its transactions, and what a reader is shown of it."""

    def __init__(self) -> None:
        self.batches: list[SealedBatch] = []
        self.transactions: list[Written] = []
        self.plain: list[int] = []
        self.shown = 0
        """How many batches are replicated."""
        self.begin = 0
        self.batches_per_fetch = 3
        self.fetches = 0
        self._open: dict[int, Written] = {}

    @property
    def next_offset(self) -> int:
        return self.batches[-1].next_offset if self.batches else 0

    def write(self, producer: int | None, count: int) -> None:
        offset = self.next_offset
        fields: dict[str, Any] = {} if producer is None else {"producer_id": producer}
        data = build_batch(
            [Record(key=None, value=b"v")] * count,
            timestamp_ms=0,
            base_offset=offset,
            transactional=producer is not None,
            producer_epoch=-1 if producer is None else 0,
            base_sequence=-1 if producer is None else 5,
            **fields,
        )
        self.batches.append(read_header(data))
        if producer is None:
            self.plain += range(offset, offset + count)
        else:
            if producer not in self._open:
                self._open[producer] = Written(producer, offset)
                self.transactions.append(self._open[producer])
            self._open[producer].offsets += range(offset, offset + count)

    def end(self, producer: int, commit: bool) -> None:
        transaction = self._open.pop(producer, None)
        offset = self.next_offset
        if transaction is not None:
            transaction.marker, transaction.commit = offset, commit
        self.batches.append(
            build_marker(
                Marker(commit, 0),
                producer_id=producer,
                producer_epoch=0,
                timestamp_ms=0,
                base_offset=offset,
            )
        )

    def end_all(self) -> None:
        for producer in sorted(self._open):
            self.end(producer, True)

    # What a reader is shown.

    @property
    def high_watermark(self) -> int:
        return self.batches[self.shown - 1].next_offset if self.shown else 0

    @property
    def stable(self) -> int:
        highest = self.high_watermark
        undecided = [
            t.first
            for t in self.transactions
            if t.first < highest and (t.marker is None or t.marker >= highest)
        ]
        return min([highest, *undecided])

    def fetch(self, offsets: PartitionOffsets, **_: Any) -> dict[TopicPartition, FetchedPartition]:
        position, stable = offsets[A0], self.stable
        self.fetches += 1
        if position < self.begin:
            raise OffsetOutOfRange("Fetch", 1)
        shown = [b for b in self.batches if b.next_offset > position and b.last_offset < stable]
        shown = shown[: self.batches_per_fetch]
        end = shown[-1].next_offset if shown else position
        aborted = [
            AbortedTransaction(t.first, t.producer)
            for t in self.transactions
            if t.marker is not None and not t.commit and t.marker >= position and t.first < end
        ]
        fetched = FetchedPartition(
            A0, position, self.high_watermark, stable, self.begin, shown, sorted(aborted)
        )
        return {A0: fetched}

    # The part of Positions that a stream uses.

    @property
    def cluster(self) -> PartitionLog:
        return self

    def ask_existing(self, ask: Any, *known: object) -> Any:
        found = Subscribed([A0], {})
        return found, ask(found)

    def latest(self, partitions: list[TopicPartition]) -> PartitionOffsets:
        return {A0: self.stable}

    def earliest(self, partitions: list[TopicPartition]) -> PartitionOffsets:
        return {A0: self.begin}

    def starting(self, found: Subscribed) -> PartitionOffsets:
        return {A0: self.begin}

    def high_watermarks(self, partitions: list[TopicPartition]) -> PartitionOffsets:
        return dict.fromkeys(partitions, self.high_watermark)

    def visible(self) -> list[int]:
        committed = [o for t in self.transactions if t.commit for o in t.offsets]
        return sorted(committed + self.plain)


def reader(**given: str) -> StreamReader:
    common = {
        "kafka.bootstrap.servers": "localhost:9092",
        "subscribe": "a",
        "startingOffsets": "earliest",
        "wholeTransactions": "true",
    }
    return StreamReader(read_source_options(common | given, streaming=True))


class Batches:
    """The batches that a reader plans on a log, and what Spark would keep of them."""

    def __init__(self, log: PartitionLog, patch: pytest.MonkeyPatch, **given: str) -> None:
        self.log = log
        self.given = given
        patch.setattr(stream, "Positions", lambda options: log)
        patch.setattr("fencepost.spark.source.open_transaction_watch.Positions", lambda _: log)
        self.reader = reader(**given)
        self.start = self.reader.initialOffset()
        self.cuts = [parse_offsets(self.start).offsets[A0]]

    def plan(self, limit: int | None) -> bool:
        """Plans one batch; False if there is none."""
        allowed = ReadAllAvailable() if limit is None else ReadMaxRows(limit)
        end = json.loads(json.dumps(self.reader.latestOffset(self.start, allowed)))
        offset = parse_offsets(end).offsets[A0]
        is_new = offset > self.cuts[-1]
        if is_new:
            self.cuts.append(offset)
        self.start = end
        return is_new

    def restart(self) -> None:
        """A new process, with the offsets of the checkpoint."""
        self.reader = reader(**self.given)

    def check(self) -> None:
        for transaction in self.log.transactions:
            if transaction.commit:
                kept = [offset for offset in transaction.offsets if offset >= self.log.begin]
                batches = {self.batch_of(offset) for offset in kept if offset < self.cuts[-1]}
                unread = [offset for offset in kept if offset >= self.cuts[-1]]
                assert len(batches) + bool(unread) <= 1, f"{transaction} is split by {self.cuts}"

    def batch_of(self, offset: int) -> int:
        return sum(cut <= offset for cut in self.cuts)


def build(dice: Random) -> PartitionLog:
    """A log of interleaved transactions of three producers, and of records outside of them."""
    log = PartitionLog()
    log.batches_per_fetch = dice.randint(1, 5)
    for _ in range(dice.randint(0, 50)):
        if dice.random() < 0.65:
            log.write(dice.choice([None, 1, 2, 3]), dice.randint(1, 4))
        else:
            log.end(dice.choice([1, 2, 3]), dice.random() < 0.7)
    log.end_all()
    return log


def limit_of(dice: Random) -> int | None:
    return None if dice.random() < 0.4 else dice.randint(1, 12)


@settings(max_examples=400, deadline=None)
@given(st.integers(0, 2**32))
def test_no_batch_has_a_part_of_a_transaction_and_every_record_is_in_one(seed: int) -> None:
    dice = Random(seed)
    log = build(dice)
    with pytest.MonkeyPatch.context() as patch:
        batches = Batches(log, patch)
        while log.shown < len(log.batches):
            log.shown = min(log.shown + dice.randint(0, 6), len(log.batches))
            batches.plan(limit_of(dice))
            batches.check()
            if dice.random() < 0.2:
                batches.restart()
        limit = limit_of(dice)
        while batches.plan(limit):
            batches.check()
    assert batches.cuts == sorted(set(batches.cuts))
    assert batches.cuts[-1] >= max(log.visible(), default=-1) + 1, "some records are never read"


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32))
def test_retention_and_compaction_in_the_middle_of_transactions_split_nothing_that_is_left(
    seed: int,
) -> None:
    """Compaction removes data before it removes the marker that ends it."""
    dice = Random(seed)
    log = build(dice)
    with pytest.MonkeyPatch.context() as patch:
        batches = Batches(log, patch)
        last = len(log.batches) - 1
        log.batches = [
            batch
            for index, batch in enumerate(log.batches)
            if index == last or batch.is_control or dice.random() < 0.7
        ]
        log.shown = len(log.batches)
        log.begin = dice.randint(0, log.next_offset)
        kept = {o for b in log.batches for o in range(b.base_offset, b.next_offset)}
        for transaction in log.transactions:
            transaction.offsets = [o for o in transaction.offsets if o in kept]
        limit = dice.randint(1, 12)
        while batches.plan(limit):
            batches.check()
    assert batches.cuts[-1] == log.next_offset


def test_an_aborted_transaction_and_markers_may_be_cut_anywhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = PartitionLog()
    log.write(1, 8)
    log.end(1, False)
    log.write(2, 1)
    log.end(2, True)
    log.shown = 4
    batches = Batches(log, monkeypatch)
    while batches.plan(3):
        pass
    assert batches.cuts == [0, 3, 6, 9, 11]


def test_a_limit_inside_a_transaction_ends_the_batch_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = PartitionLog()
    log.write(None, 4)
    log.write(1, 4)
    log.end(1, True)
    log.shown = 3
    batches = Batches(log, monkeypatch)
    assert batches.plan(6)
    assert batches.cuts == [0, 4]


def test_a_transaction_larger_than_the_limit_makes_its_batch_larger(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = PartitionLog()
    log.write(1, 50)
    log.write(None, 2)
    log.write(1, 50)
    log.end(1, True)
    log.write(None, 10)
    log.shown = 5
    batches = Batches(log, monkeypatch)
    assert batches.plan(10)
    assert batches.cuts == [0, 102]
    assert batches.plan(3)
    assert batches.cuts == [0, 102, 105]


def test_a_committed_transaction_that_the_stable_offset_cuts_waits_for_its_rest(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Producer 2 has begun in the middle of producer 1's transaction, and is open."""
    log = PartitionLog()
    log.write(1, 1)
    log.write(2, 1)
    log.write(1, 1)
    log.end(1, True)
    log.shown = 4
    assert log.stable == 1
    batches = Batches(log, monkeypatch)
    assert not batches.plan(None)
    assert not batches.plan(None)
    assert caplog.text.count("wait until it ends") == 1
    log.end(2, False)
    log.shown = 5
    assert batches.plan(None)
    assert batches.cuts == [0, 5]


def test_an_available_now_run_ends_before_a_transaction_that_its_target_cuts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = PartitionLog()
    log.write(None, 3)
    log.write(1, 1)
    log.write(2, 1)
    log.write(1, 1)
    log.end(1, True)
    log.shown = 5
    batches = Batches(log, monkeypatch)
    batches.reader.prepareForTriggerAvailableNow()
    assert batches.plan(None)
    assert batches.cuts == [0, 3]
    log.end(2, True)
    log.shown = 6
    assert not batches.plan(None)
    batches.restart()
    assert batches.plan(None)
    assert batches.cuts == [0, 3, 8]


def test_a_settled_partition_is_not_walked_and_a_walk_is_not_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = PartitionLog()
    for _ in range(30):
        log.write(1, 2)
        log.end(1, True)
    log.shown = 60
    log.batches_per_fetch = 10
    batches = Batches(log, monkeypatch)
    while batches.plan(7):
        batches.check()
    assert batches.cuts[-1] == 90
    assert log.fetches <= 6
    log.write(1, 2)
    log.end(1, True)
    log.shown = 62
    before = log.fetches
    assert batches.plan(None)
    assert log.fetches == before


def test_cuts_are_outside_of_all_overlapping_extents() -> None:
    """The example of the module's docstring."""
    log = PartitionLog()
    log.write(1, 1)
    log.write(2, 1)
    log.write(1, 1)
    log.end(1, True)
    log.write(2, 1)
    log.end(2, True)
    log.write(None, 2)
    log.write(3, 1)
    log.write(3, 1)
    log.end(3, True)
    log.shown, log.batches_per_fetch = len(log.batches) - 1, 100
    extents = Extents(0)
    extents.walk(log.fetch({A0: 0})[A0])
    cuts = {extents.last_cut(most) for most in range(9)}
    assert cuts == {0, 5, 6, 7, 8}
    assert [extents.next_cut(least) for least in (0, 1, 5, 8)] == [0, 5, 5, 8]


def test_whole_transactions_need_committed_data() -> None:
    with pytest.raises(ConfigError, match=r"needs kafka\.isolation\.level=read_committed"):
        reader(**{"kafka.isolation.level": "read_uncommitted"})
