"""Finds the newest committed record of a transactional id in the ledger topic.

Theory of operation. A `read_committed` reader stops at the last stable offset, so one open
transaction of any query would keep all others from starting. This reader goes to the high
watermark, and uses the markers of a record's own producer: a transactional record is pending until
a later marker of the same producer id in the same partition commits or aborts it. The epoch does
not matter (transaction version 2 raises it in the marker), and a new producer id after an exhausted
epoch is simply another producer.

A record without a marker either belongs to an open transaction, or was committed and its marker
compacted away: a cleaner removes the records of an aborted transaction before its marker. After the
fence, none of our own transactions can be open, so the record counts as committed (`fenced`) if the
id is still ours; otherwise a successor that has fenced us may have written it. Before the fence it
is undecided.

All partitions are read, because a record stays where it was first written when partitions are
added. Only the records of the requested ids are kept, so a large topic costs time but no memory.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from fencepost.base.ids import TopicPartition
from fencepost.client.failures import Refused, RetriesExhausted, UnknownTopicOrPartition
from fencepost.client.reading import EARLIEST, LATEST
from fencepost.records.batch import seal_check
from fencepost.records.compression import Codec
from fencepost.records.control import read_marker
from fencepost.records.opened import iterate_records
from fencepost.spark.failures import EntryUnreadable, SinkRefused
from fencepost.spark.ledger.entry import LedgerEntry, LedgerView, decode_entry, key_of
from fencepost.spark.ledger.topic import LEDGER_TOPIC, refusal_of

if TYPE_CHECKING:
    from fencepost.client.admin import TopicView
    from fencepost.client.blocking import Cluster
    from fencepost.client.fetched import FetchedPartition
    from fencepost.records.batch import SealedBatch
    from fencepost.records.opened import Record

log = logging.getLogger(__name__)

FETCH_BYTES: Final = 4 * 1024 * 1024
PARTITION_FETCH_BYTES: Final = 1024 * 1024
PROGRESS_SECONDS: Final = 5.0
"""How often a long read logs its progress."""

_END_IS_EMPTY: Final = 3
"""How many empty answers in a row prove that no batch is left before the high watermark."""


class FoundRecord(NamedTuple):
    """A record in the ledger topic."""

    place: TopicPartition
    offset: int
    timestamp_ms: int
    key: bytes
    value: bytes | None
    """None for a tombstone."""


class PartitionFold:
    """Folds the batches of one partition: committed records by key, and pending ones. Pure."""

    def __init__(self, place: TopicPartition, key: bytes | None) -> None:
        self._place = place
        self._key = key
        self._pending: dict[int, dict[bytes, FoundRecord]] = {}
        self.committed: dict[bytes, FoundRecord] = {}

    def add(self, batch: SealedBatch) -> None:
        """Adds the next batch of the partition."""
        if batch.is_control:
            self._add_marker(batch)
            return
        for record in self._wanted(batch):
            assert record.key is not None
            found = FoundRecord(
                self._place, record.offset, record.timestamp_ms, record.key, record.value
            )
            if batch.is_transactional:
                self._pending.setdefault(batch.producer_id, {})[record.key] = found
            else:
                self.committed[record.key] = found

    def _add_marker(self, batch: SealedBatch) -> None:
        if batch.producer_id not in self._pending:
            return
        marker = read_marker(batch)
        if marker is None:
            return
        ended = self._pending.pop(batch.producer_id)
        if marker.commit:
            self.committed.update(ended)

    def _wanted(self, batch: SealedBatch) -> Iterable[Record]:
        key = self._key
        # Most batches belong to other queries: searching for the key's bytes is much faster than
        # opening them.
        if key is not None and batch.codec == Codec.NONE and key not in bytes(batch.data):
            return []
        return [
            record
            for record in iterate_records(batch)
            if record.key is not None and (key is None or record.key == key)
        ]

    def pending(self) -> dict[bytes, FoundRecord]:
        """The newest record of each key that has no marker."""
        undecided: dict[bytes, FoundRecord] = {}
        for records in self._pending.values():
            for key, found in records.items():
                if key not in undecided or undecided[key].offset < found.offset:
                    undecided[key] = found
        return undecided


class ScanResult(NamedTuple):
    """The records found in all partitions."""

    committed: list[FoundRecord]
    """The newest committed record of each key in each partition."""
    undecided: list[FoundRecord]
    """Those without a marker, which count as committed after a fence."""


def places_of(view: TopicView) -> list[TopicPartition]:
    """All partitions of a topic."""
    return [TopicPartition(view.name, partition.index) for partition in view.partitions]


def scan(
    cluster: Cluster, places: list[TopicPartition], key: bytes | None, *, fenced: bool = False
) -> ScanResult:
    """Reads partitions to their high watermark, for one key or for all.

    `fenced`: no transaction that wrote this key is open, so a record without a marker is committed.
    """
    folds = _read_all(cluster, places, key)
    committed: list[FoundRecord] = []
    undecided: list[FoundRecord] = []
    for fold in folds.values():
        newest = dict(fold.committed)
        for each, found in fold.pending().items():
            undecided.append(found)
            if fenced and (each not in newest or newest[each].offset < found.offset):
                newest[each] = found
        committed.extend(newest.values())
    return ScanResult(committed, undecided)


def _read_all(
    cluster: Cluster, places: list[TopicPartition], key: bytes | None
) -> dict[TopicPartition, PartitionFold]:
    folds = {place: PartitionFold(place, key) for place in places}
    starts = cluster.list_offsets(dict.fromkeys(places, EARLIEST))
    listed = cluster.list_offsets(dict.fromkeys(places, LATEST), isolation="read_uncommitted")
    ends = {place: listed[place].offset for place in places}
    positions = {p: starts[p].offset for p in places if starts[p].offset < ends[p]}
    progress = _Progress(positions, ends)
    while positions:
        fetched = cluster.fetch(
            positions if progress.is_moving else dict([min(positions.items())]),
            isolation="read_uncommitted",
            min_bytes=1,
            max_bytes=FETCH_BYTES,
            partition_max_bytes=PARTITION_FETCH_BYTES,
        )
        for place, answer in fetched.items():
            for batch in answer.batches:
                if batch.base_offset < ends[place]:
                    seal_check(batch)
                    folds[place].add(batch)
            positions[place] = answer.next_offset
            if answer.next_offset >= ends[place] or progress.is_at_end(answer, ends[place]):
                del positions[place]
        progress.update(positions, cluster.options.default_api_timeout_ms)
    return folds


class _Progress:
    """Detects a read that makes no progress, and logs the progress of a long one."""

    def __init__(
        self, positions: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> None:
        self._last = dict(positions)
        self._ends = ends
        self._empty_answers = 0
        self._logged = self._moved = time.monotonic()
        self.is_moving = True

    def update(self, positions: Mapping[TopicPartition, int], timeout_ms: int) -> None:
        """Call after every fetch; RetriesExhausted if nothing came for `timeout_ms`."""
        now = time.monotonic()
        self.is_moving = dict(positions) != self._last
        self._last = dict(positions)
        if self.is_moving:
            self._moved, self._empty_answers = now, 0
        if not positions:
            return
        place, offset = min(positions.items())
        if now - self._moved >= timeout_ms / 1_000:
            what = f"reading the ledger on from offset {offset} of {place}"
            raise RetriesExhausted(what, timeout_ms, f"nothing, and it ends at {self._ends[place]}")
        if now - self._logged >= PROGRESS_SECONDS:
            self._logged = now
            left = sum(self._ends[each] - position for each, position in positions.items())
            log.warning("reading the ledger in %r: at most %d records to go", place.topic, left)

    def is_at_end(self, answer: FetchedPartition, end: int) -> bool:
        """Whether no batch is left before the end, as after a compaction.

        A broker returns at least one batch of the first partition that has any. So a partition that
        was fetched alone and returned none, with its high watermark at the end, has none.
        """
        if self.is_moving or answer.batches or answer.high_watermark < end:
            return False
        self._empty_answers += 1
        return self._empty_answers >= _END_IS_EMPTY


# The ledger of one id.


def read_ledger_view(
    cluster: Cluster, transactional_id: str, topic: str = LEDGER_TOPIC, *, fenced: bool = False
) -> LedgerView:
    """The ledger of an id, for tools. A missing topic has no record."""
    try:
        view = cluster.find_topic(topic)
        if view is None:
            return LedgerView()
        return read_view(cluster, transactional_id, places_of(view), fenced=fenced)
    except UnknownTopicOrPartition:
        return LedgerView()
    except Refused as problem:
        raise refusal_of(topic, problem) from problem


def read_view(
    cluster: Cluster,
    transactional_id: str,
    places: list[TopicPartition],
    *,
    fenced: bool,
) -> LedgerView:
    """The ledger of an id in these partitions. `fenced`: see `scan`."""
    found = scan(cluster, places, key_of(transactional_id), fenced=fenced)
    undecided = tuple(None if each.value is None else _decode(each) for each in found.undecided)
    newest = newest_of(found.committed)
    if newest is None:
        return LedgerView(undecided=undecided)
    return LedgerView(newest[0].place, newest[1], undecided)


def newest_of(records: Iterable[FoundRecord]) -> tuple[FoundRecord, LedgerEntry] | None:
    """The newest record of one key, without tombstones; SinkRefused if it cannot be read."""
    entries = [(found, _decode(found)) for found in records if found.value is not None]
    return max(entries, key=lambda pair: pair[1].serial, default=None)


def _decode(found: FoundRecord) -> LedgerEntry:
    assert found.value is not None
    try:
        return decode_entry(found.value)
    except EntryUnreadable as problem:
        raise SinkRefused(
            f"the ledger record of {found.key.decode('utf-8', 'replace')!r} at offset "
            f"{found.offset} of {found.place} cannot be read: {problem}. `fencepost ledger show "
            f"--topic {found.place.topic}` shows it. Use the fencepost that has written it; or "
            "find the last batch in the topics, and `fencepost ledger adopt` records it. Nothing "
            "was written"
        ) from problem
