"""Which records the ledger reader considers committed, with other writers in the partition."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace

import pytest

pytest.importorskip("pyspark", reason="the spark extra is not installed")

from fencepost.base.ids import TopicPartition
from fencepost.client.failures import RetriesExhausted
from fencepost.client.fetched import FetchedPartition, whole_batches
from fencepost.client.reading import ListedOffset
from fencepost.records.batch import BatchError, SealedBatch, read_header
from fencepost.records.builder import build_batch
from fencepost.records.compression import Codec
from fencepost.records.control import Marker, build_marker
from fencepost.records.opened import Record
from fencepost.spark.failures import SinkRefused
from fencepost.spark.ledger import reader as ledger_reader
from fencepost.spark.ledger.reader import PartitionFold, places_of, scan
from fencepost.spark.ledger.writer import append_record
from tests.spark.ledger.ledgers import LedgerCluster, embedded_ledger

PLACE = TopicPartition("fencepost-ledger", 0)
KEY = b"mine"


# One partition, batch by batch.


def data(
    offset: int, value: bytes | None, *, pid: int = 1, key: bytes = KEY, codec: int = Codec.NONE
) -> SealedBatch:
    batch = build_batch(
        [Record(key=key, value=value)],
        timestamp_ms=0,
        base_offset=offset,
        codec=codec,
        producer_id=pid,
        producer_epoch=0,
        base_sequence=0,
        transactional=pid >= 0,
    )
    return read_header(batch, 0)


def marker(offset: int, commit: bool, *, pid: int = 1, epoch: int = 0) -> SealedBatch:
    return build_marker(
        Marker(commit, 0), producer_id=pid, producer_epoch=epoch, timestamp_ms=0, base_offset=offset
    )


def fold(*batches: SealedBatch, key: bytes | None = KEY) -> PartitionFold:
    found = PartitionFold(PLACE, key)
    for batch in batches:
        found.add(batch)
    return found


def values(found: PartitionFold) -> tuple[bytes | None, bytes | None]:
    """The committed and the pending value of our key."""
    committed, pending = found.committed.get(KEY), found.pending().get(KEY)
    return (committed and committed.value, pending and pending.value)


@pytest.mark.parametrize(
    ("batches", "expected"),
    [
        ([data(0, b"a")], (None, b"a")),
        ([data(0, b"a"), marker(1, True)], (b"a", None)),
        ([data(0, b"a"), marker(1, False)], (None, None)),
        # Transaction version 2 raises the epoch in the marker.
        ([data(0, b"a"), marker(1, True, epoch=1)], (b"a", None)),
        ([data(0, b"a"), marker(1, True), data(2, b"b"), marker(3, False)], (b"a", None)),
        ([data(0, b"a"), marker(1, False), data(2, b"b"), marker(3, True)], (b"b", None)),
        # Markers of other producers do not affect ours.
        ([data(0, b"a"), marker(1, True, pid=2)], (None, b"a")),
        ([data(0, b"a"), marker(1, False, pid=2), marker(2, True)], (b"a", None)),
        # A marker without a record: its transaction wrote elsewhere, or its record was compacted
        # away.
        ([marker(0, True), data(1, b"a")], (None, b"a")),
        # A new producer id, after the epoch of the old one was exhausted.
        (
            [data(0, b"a"), marker(1, True), data(2, b"b", pid=9), marker(3, True, pid=9)],
            (b"b", None),
        ),
        (
            [data(0, b"a"), marker(1, True), data(2, b"b", pid=9), marker(3, False, pid=9)],
            (b"a", None),
        ),
        # Two markers long after their records, in another order: the commit decides, not the
        # record's offset.
        (
            [data(0, b"a"), data(1, b"b", pid=9), marker(2, False, pid=9), marker(3, True)],
            (b"a", None),
        ),
        # Written without a transaction: committed.
        ([data(0, b"a", pid=-1)], (b"a", None)),
        ([data(0, b"a", codec=Codec.LZ4), marker(1, True)], (b"a", None)),
        ([data(0, b"a", key=b"mine too"), marker(1, True)], (None, None)),
    ],
)
def test_a_record_is_decided_by_its_own_producers_marker(
    batches: list[SealedBatch], expected: tuple[bytes | None, bytes | None]
) -> None:
    assert values(fold(*batches)) == expected


def test_a_tombstone_counts_as_the_newest_record_of_its_key() -> None:
    found = fold(data(0, b"a"), marker(1, True), data(2, None), marker(3, True)).committed[KEY]
    assert (found.offset, found.value) == (2, None)


def test_keys_are_read_independently() -> None:
    found = fold(
        data(0, b"a"), data(1, b"x", key=b"other", pid=2), marker(2, True), marker(3, False, pid=2),
        key=None,
    )  # fmt: skip
    assert {key: record.value for key, record in found.committed.items()} == {KEY: b"a"}


# All partitions, on a fake broker.


class FakePartition:
    """A fake cluster with one partition, whose last batches were compacted away."""

    def __init__(
        self, home: LedgerCluster, batches: list[SealedBatch], end: int, watermark: int
    ) -> None:
        self.options = home.cluster.options
        self._batches, self._end, self._watermark = batches, end, watermark
        self.fetches = 0

    def list_offsets(self, times: dict[TopicPartition, int], **_: str) -> object:
        return {p: ListedOffset(0 if t == -2 else self._end, 0, 0) for p, t in times.items()}

    def fetch(self, offsets: dict[TopicPartition, int], **_: object) -> object:
        self.fetches += 1
        ((place, offset),) = offsets.items()
        rest = b"".join(bytes(b.data) for b in self._batches if b.base_offset >= offset)
        found = whole_batches(bytearray(rest))
        return {place: FetchedPartition(place, offset, self._watermark, 0, 0, found, [])}


def read_fake(fake: FakePartition) -> dict[TopicPartition, PartitionFold]:
    return ledger_reader._read_all(fake, [PLACE], KEY)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def home() -> Iterator[LedgerCluster]:
    with embedded_ledger() as found:
        found.create(2)
        yield found


def test_reading_ends_even_if_the_last_batches_were_compacted_away(home: LedgerCluster) -> None:
    fake = FakePartition(home, [data(0, b"a"), marker(1, True)], end=7, watermark=7)
    assert values(read_fake(fake)[PLACE]) == (b"a", None)


def test_reading_waits_for_an_end_that_the_broker_does_not_return_yet(home: LedgerCluster) -> None:
    """After a leader change the high watermark may lag, and hide our newest record."""
    fake = FakePartition(home, [data(0, b"a"), marker(1, True)], end=7, watermark=2)
    fake.options = replace(fake.options, default_api_timeout_ms=50)
    with pytest.raises(
        RetriesExhausted, match=r"reading the ledger on from offset 2 .* it ends at 7"
    ):
        read_fake(fake)


def test_a_damaged_batch_is_not_skipped(home: LedgerCluster) -> None:
    broken = bytearray(data(0, b"a").data)
    broken[-3] ^= 1
    fake = FakePartition(home, [read_header(broken, 0)], end=1, watermark=1)
    with pytest.raises(BatchError, match="CRC"):
        read_fake(fake)


def test_a_long_read_logs_its_progress(
    home: LedgerCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ledger_reader, "PROGRESS_SECONDS", 0.0)
    monkeypatch.setattr(ledger_reader, "PARTITION_FETCH_BYTES", 100)
    for batch in range(3):
        home.commit("long", batch)
    with caplog.at_level(logging.WARNING):
        assert home.batch_in("long") == 2
    assert "records to go" in caplog.text


# A real broker.


@pytest.mark.parametrize("version", [1, 2], ids=["tv1", "tv2"])
def test_the_last_committed_batch_is_found_and_an_aborted_one_is_not(
    home: LedgerCluster, version: int
) -> None:
    name = f"fates-{version}"
    for batch, commit in enumerate([True, False, True, False, False]):
        identity = home.begin(name, version)
        home.write(identity, batch)
        home.cluster.end_txn(identity, commit=commit)
    assert home.batch_in(name) == 2
    assert home.batch_in(name, fenced=False) == 2
    assert home.batch_in("nobody") is None


@pytest.mark.parametrize("version", [1, 2], ids=["tv1", "tv2"])
def test_another_ids_open_transaction_hides_nothing(home: LedgerCluster, version: int) -> None:
    name, stranger = f"patient-{version}", f"stranger-{version}"
    place = home.place_of(name)
    home.commit(name, 0)
    foreign = home.begin(stranger, version)
    home.write(foreign, 0, place=place)
    home.commit(name, 1)
    doomed = home.begin(name, version)
    home.write(doomed, 2)
    home.cluster.end_txn(doomed, commit=False)
    assert home.batch_in(name) == 1
    assert home.view(name, fenced=False).is_settled
    assert not home.view(stranger, fenced=False).is_settled
    home.cluster.end_txn(foreign, commit=False)


def test_our_own_open_record_is_undecided_until_the_fence(home: LedgerCluster) -> None:
    home.commit("open", 0)
    identity = home.begin("open")
    home.write(identity, 1)
    before = home.view("open", fenced=False)
    assert before.entry is not None
    assert (before.entry.batch_id, before.is_settled) == (0, False)
    after = home.read("open")
    assert after.entry is not None
    assert (after.entry.batch_id, after.is_settled) == (0, True)


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("version", [1, 2], ids=["tv1", "tv2"])
def test_a_new_producer_id_does_not_hide_entries(
    home: LedgerCluster, version: int, commit: bool
) -> None:
    name = f"exhausted-{version}-{commit}"
    home.commit(name, 0)
    age(home, name)
    ids = set()
    for batch in (1, 2, 3):
        identity = home.begin(name, version)
        ids.add(identity.producer_id)
        home.write(identity, batch)
        home.cluster.end_txn(identity, commit=commit or batch == 2)
    assert len(ids) == 2
    assert home.batch_in(name) == (3 if commit else 2)


def age(home: LedgerCluster, transactional_id: str) -> None:
    """As after thousands of transactions: the epoch is nearly exhausted."""

    def forward(node: object) -> None:
        for coordinator in node.transactions.coordinators():  # type: ignore[attr-defined]
            known = coordinator.state.transactions
            if transactional_id in known:
                known[transactional_id] = replace(known[transactional_id], producer_epoch=32_764)

    assert home.broker is not None
    home.broker.call(forward)


def test_a_transaction_ended_while_the_producer_id_changes_is_matched_to_its_marker(
    home: LedgerCluster,
) -> None:
    """A successor's fence ends it with a marker of the old producer id, then gets a new one."""
    home.commit("moving", 0)
    age(home, "moving")
    ids = set()
    for batch in range(1, 8):
        identity = home.begin("moving")
        ids.add(identity.producer_id)
        home.write(identity, batch)
    home.begin("moving")
    assert len(ids) >= 2
    assert home.batch_in("moving") == 0


def test_compaction_does_not_change_what_is_read() -> None:
    with embedded_ledger() as home:
        settings = {
            "internal.segment.bytes": "400",
            "min.cleanable.dirty.ratio": "0.0",
            "delete.retention.ms": "0",
        }
        home.create(1, **settings)
        for batch in range(6):
            home.commit("steady", batch)
            if batch == 1:
                home.commit("once", 0)
            doomed = home.begin("never")
            home.write(doomed, batch)
            home.cluster.end_txn(doomed, commit=False)
            # Compacted repeatedly, so that markers lose their records and are then removed too.
            for _ in range(3):
                home.compact()
            assert home.batch_in("steady") == batch
            assert home.batch_in("never") is None
        assert home.batch_in("once") == 0
        size = count_batches(home)
        assert size < 20, f"{size} of 36 batches are left: nothing was compacted"


def count_batches(home: LedgerCluster) -> int:
    place = TopicPartition(home.topic, 0)
    offset, found = 0, 0
    while batches := home.cluster.fetch(
        {place: offset}, isolation="read_uncommitted", max_wait_ms=10
    )[place].batches:
        found += len(batches)
        offset = batches[-1].next_offset
    return found


def test_the_ledger_is_read_while_an_open_transaction_blocks_compaction() -> None:
    with embedded_ledger() as home:
        home.create(1, **{"internal.segment.bytes": "400", "min.cleanable.dirty.ratio": "0.0"})
        home.commit("steady", 0)
        foreign = home.begin("stranger")
        home.write(foreign, 0)
        for batch in range(1, 20):
            home.commit("steady", batch)
            home.compact()
        assert count_batches(home) > 30
        assert home.batch_in("steady") == 19
        home.cluster.end_txn(foreign, commit=True)


def test_adding_partitions_does_not_hide_entries(home: LedgerCluster) -> None:
    with embedded_ledger() as other:
        other.create(1)
        names = [f"id-{n}" for n in range(10)]
        for name in names:
            other.commit(name, 3)
        other.add_partitions(7)
        assert [other.batch_in(name) for name in names] == [3] * 10
        # If there is a record in the new partition too, the newer one counts.
        for name in names:
            other.commit(name, 4)
        assert [other.batch_in(name) for name in names] == [4] * 10
        places = {other.view(name).place for name in names}
        assert len(places) > 1


def test_a_forgotten_id_has_no_entry(home: LedgerCluster) -> None:
    home.commit("forgotten", 3)
    identity = home.begin("forgotten")
    append_record(home.cluster, identity, home.place_of("forgotten"), None)
    home.cluster.end_txn(identity, commit=True)
    assert home.batch_in("forgotten") is None
    home.commit("forgotten", 0)
    assert home.batch_in("forgotten") == 0


def test_an_unreadable_record_is_refused_and_named(home: LedgerCluster) -> None:
    identity = home.begin("future")
    append_record(home.cluster, identity, home.place_of("future"), b'{"v":99}')
    home.cluster.end_txn(identity, commit=True)
    with pytest.raises(
        SinkRefused, match=r"'future' at offset .* a newer fencepost has written it"
    ):
        home.view("future")


def test_a_missing_topic_has_no_entry() -> None:
    with embedded_ledger() as home:
        assert home.view("id").entry is None


def test_many_records_are_read_in_pieces(
    home: LedgerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_reader, "FETCH_BYTES", 1000)
    monkeypatch.setattr(ledger_reader, "PARTITION_FETCH_BYTES", 500)
    for n in range(30):
        home.commit(f"many-{n}", n)
    assert [home.batch_in(f"many-{n}") for n in (0, 17, 29)] == [0, 17, 29]
    view = home.cluster.metadata([home.topic]).topics[home.topic]
    found = {record.key for record in scan(home.cluster, places_of(view), None).committed}
    assert {f"many-{n}".encode() for n in range(30)} <= found
