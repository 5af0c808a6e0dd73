"""A partition with its log: appends, reads, crashes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.base.failures import StorageError
from fencepost.base.refusal import Refusal
from fencepost.partition.partition import Appended, Partition
from fencepost.partition.verification import Guard
from fencepost.records.batch import SealedBatch, read_header, split_batches
from fencepost.records.builder import build_batch
from fencepost.records.compression import Codec
from fencepost.records.opened import Record, open_batch
from tests.partition.batches import client_batch
from tests.partition.conftest import PartitionStage, retain

NewWorld = Callable[..., PartitionStage]
NOW = 2_000
PID = 7


def txn_batch(sequence: int, *values: bytes, epoch: int = 0, producer_id: int = PID) -> SealedBatch:
    return client_batch(
        *values, producer_id=producer_id, epoch=epoch, sequence=sequence, transactional=True
    )


def append(partition: Partition, batch: SealedBatch, guard: Guard | None = None) -> Appended:
    """Appends a batch that must be accepted."""
    appended = partition.append_from_client(batch, NOW, guard)
    assert isinstance(appended, Appended)
    return appended


def refused(partition: Partition, batch: SealedBatch, guard: Guard | None = None) -> Refusal:
    """Appends a batch that must be refused."""
    refusal = partition.append_from_client(batch, NOW, guard)
    assert isinstance(refusal, Refusal)
    return refusal


def write(partition: Partition, batch: SealedBatch, *, tv2: bool = False) -> Appended:
    """Appends as the broker does: the first write of a transaction takes a guard first."""
    if not batch.is_transactional:
        return append(partition, batch)
    guard = partition.begin_verification(batch, NOW, starts_at_zero=tv2)
    assert not isinstance(guard, Refusal)
    return append(partition, batch, guard)


def end(
    partition: Partition,
    *,
    commit: bool,
    epoch: int = 0,
    producer_id: int = PID,
    coordinator_epoch: int = 0,
    version: int = 0,
) -> ErrorCode:
    ended = partition.append_marker(
        producer_id,
        epoch,
        commit=commit,
        coordinator_epoch=coordinator_epoch,
        transaction_version=version,
        now_ms=NOW,
    )
    return ended.error if isinstance(ended, Refusal) else ErrorCode.NONE


def read(partition: Partition, offset: int = 0, *, committed: bool = True) -> list[bytes | None]:
    """The values that a client passes to its application."""
    fetched = partition.fetch(offset, 1 << 20, read_committed=committed)
    assert fetched.error is ErrorCode.NONE
    aborted = sorted(fetched.aborted or (), key=lambda txn: txn[1])
    dropping: set[int] = set()
    values: list[bytes | None] = []
    for batch in split_batches(fetched.data):
        while aborted and aborted[0][1] <= batch.last_offset:
            dropping.add(aborted.pop(0)[0])
        if batch.is_control:
            dropping.discard(batch.producer_id)
        elif batch.producer_id not in dropping:
            values += [record.value for record in open_batch(batch)]
    return values


def test_batches_get_consecutive_offsets_and_are_read_back(new_world: NewWorld) -> None:
    partition = new_world().partition
    first = append(partition, client_batch(b"a", b"b"))
    second = append(partition, client_batch(b"c"))
    assert (first.base_offset, second.base_offset) == (0, 2)
    assert read(partition) == [b"a", b"b", b"c"]
    assert partition.high_watermark == partition.last_stable_offset == 3


def test_a_repeated_batch_gets_its_first_offset_again(new_world: NewWorld) -> None:
    partition = new_world().partition
    for sequence in range(3):
        write(partition, client_batch(b"v", producer_id=PID, epoch=0, sequence=sequence))
    again = write(partition, client_batch(b"v", producer_id=PID, epoch=0, sequence=1))
    assert again.base_offset == 1
    assert partition.log_end_offset == 3


def test_nothing_above_the_high_watermark_is_read(new_world: NewWorld) -> None:
    partition = new_world(durable_at_append=False).partition
    append(partition, client_batch(b"a"))
    assert read(partition, committed=False) == []
    partition.advance_high_watermark(1)
    assert read(partition, committed=False) == [b"a"]


@pytest.mark.parametrize("offset", [-1, 2])
def test_an_offset_outside_the_log_is_out_of_range(new_world: NewWorld, offset: int) -> None:
    partition = new_world().partition
    append(partition, client_batch(b"a"))
    fetched = partition.fetch(offset, 100, read_committed=False)
    assert fetched.error is ErrorCode.OFFSET_OUT_OF_RANGE


def test_case_75_read_committed_stops_at_the_first_open_transaction(new_world: NewWorld) -> None:
    partition = new_world().partition
    append(partition, client_batch(b"x"))
    write(partition, txn_batch(0, b"open"))
    append(partition, client_batch(b"later"))
    assert read(partition) == [b"x"]
    assert partition.last_stable_offset == 1
    assert read(partition, committed=False) == [b"x", b"open", b"later"]


def test_case_77_aborted_records_are_kept_and_never_shown(new_world: NewWorld) -> None:
    partition = new_world().partition
    write(partition, txn_batch(0, b"a", b"b"))
    end(partition, commit=False)
    write(partition, txn_batch(2, b"c", b"d"))
    end(partition, commit=True)
    assert read(partition) == [b"c", b"d"]
    assert read(partition, committed=False) == [b"a", b"b", b"c", b"d"]


def test_case_69_a_commit_is_stable_only_when_its_marker_is_durable(new_world: NewWorld) -> None:
    partition = new_world(durable_at_append=False).partition
    write(partition, txn_batch(0, b"a"))
    end(partition, commit=True)
    partition.advance_high_watermark(1)
    assert partition.last_stable_offset == 0
    partition.advance_high_watermark(2)
    assert partition.last_stable_offset == 2


def test_case_70_the_aborted_index_is_right_for_interleaved_transactions(
    new_world: NewWorld,
) -> None:
    partition = new_world().partition
    one, two, three = 1, 2, 3
    write(partition, txn_batch(0, *[b"v"] * 8, producer_id=one))
    write(partition, txn_batch(0, *[b"v"] * 20, producer_id=two))
    end(partition, commit=False, producer_id=one)
    write(partition, txn_batch(0, b"v", producer_id=three))
    end(partition, commit=False, producer_id=two)
    index = partition.log.aborted_between(0, partition.log_end_offset)
    assert [tuple(txn) for txn in index] == [(one, 0, 28, 8), (two, 8, 30, 29)]


def test_case_71_a_marker_without_data_has_no_index_entry_and_leaves_nothing_unstable(
    new_world: NewWorld,
) -> None:
    partition = new_world().partition
    assert end(partition, commit=True) is ErrorCode.NONE
    assert end(partition, commit=False) is ErrorCode.NONE
    assert partition.log.aborted_between(0, 10) == []
    assert partition.last_stable_offset == partition.log_end_offset == 2


def test_case_72_an_aborted_transaction_over_two_segments_is_listed_from_its_start(
    new_world: NewWorld,
) -> None:
    partition = new_world(segment_bytes=200).partition
    for sequence in range(6):
        write(partition, txn_batch(sequence, b"v" * 50))
    end(partition, commit=False)
    assert len(partition.log.segments) > 1
    fetched = partition.fetch(0, 1 << 20, read_committed=True)
    assert fetched.aborted == [(PID, 0)]


@pytest.mark.parametrize("segment_bytes", [200, 1_000_000], ids=["several segments", "one segment"])
@pytest.mark.parametrize("offset", range(1, 13))
def test_case_73_the_last_stable_offset_is_never_below_the_log_start(
    new_world: NewWorld, offset: int, segment_bytes: int
) -> None:
    """Also in the middle of a batch; each has two records."""
    partition = new_world(segment_bytes=segment_bytes).partition
    for sequence in range(0, 12, 2):
        write(partition, txn_batch(sequence, b"v" * 50, b"w"))
    assert partition.last_stable_offset == 0
    segments = len(partition.log.segments)
    assert partition.delete_before(offset) is ErrorCode.NONE
    retain(partition, NOW)
    assert (len(partition.log.segments) < segments) == (segment_bytes == 200 and offset > 1)
    assert partition.log_start_offset == partition.last_stable_offset == offset
    end(partition, commit=False)
    assert partition.last_stable_offset == partition.log_end_offset == 13
    assert read(partition, offset) == []


@pytest.mark.parametrize("call", [2, 3, 4])
@pytest.mark.parametrize("clean", [False, True])
def test_case_74_an_index_that_cannot_be_written_delays_nothing_and_is_written_later(
    new_world: NewWorld, call: int, clean: bool
) -> None:
    world = new_world()
    partition = world.partition
    write(partition, txn_batch(0, b"a"))
    world.disk.fail_call(call)
    assert end(partition, commit=False) is ErrorCode.NONE
    assert partition.last_stable_offset == 2
    assert append(partition, client_batch(b"b")).base_offset == 2
    assert read(partition) == [b"b"]
    restarted = world.restart() if clean else world.kill()
    assert len(restarted.log.aborted_between(0, 10)) == 1
    assert read(restarted) == [b"b"]


def test_case_58_a_higher_sequence_waits_for_the_verification_of_the_lowest(
    new_world: NewWorld,
) -> None:
    partition = new_world().partition
    first, second = txn_batch(0, b"a"), txn_batch(1, b"b")
    assert isinstance(partition.begin_verification(first, NOW, starts_at_zero=False), Guard)
    guard = partition.begin_verification(second, NOW, starts_at_zero=False)
    assert isinstance(guard, Guard)
    refusal = refused(partition, second, guard)
    assert refusal.error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.mark.parametrize("order", list(permutations((3, 4, 5))))
def test_case_58_the_lowest_sequence_comes_first_in_any_order_of_verification(
    new_world: NewWorld, order: tuple[int, ...]
) -> None:
    partition = new_world().partition
    batches = {sequence: txn_batch(sequence, b"v") for sequence in order}
    guards = {
        sequence: partition.begin_verification(batches[sequence], NOW, starts_at_zero=False)
        for sequence in order
    }
    for sequence in (5, 4):
        guard = guards[sequence]
        assert isinstance(guard, Guard)
        refusal = refused(partition, batches[sequence], guard)
        assert refusal.error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    for sequence in (3, 4, 5):
        guard = guards[sequence]
        assert isinstance(guard, Guard)
        append(partition, batches[sequence], guard)


def test_case_58_a_batch_outside_the_transaction_does_not_overtake_either(
    new_world: NewWorld,
) -> None:
    partition = new_world().partition
    partition.begin_verification(txn_batch(0, b"a"), NOW, starts_at_zero=False)
    second = client_batch(b"b", producer_id=PID, epoch=0, sequence=1)
    refusal = refused(partition, second)
    assert refusal.error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_duplicate_after_the_end_is_verified_like_a_first_write(new_world: NewWorld) -> None:
    """Otherwise a producer that was fenced in between would get a success."""
    partition = new_world().partition
    write(partition, txn_batch(0, b"a"))
    again = txn_batch(0, b"a")
    assert partition.begin_verification(again, NOW, starts_at_zero=False) is None
    end(partition, commit=True)
    guard = partition.begin_verification(again, NOW, starts_at_zero=False)
    assert isinstance(guard, Guard)
    assert append(partition, again, guard).base_offset == 0
    assert partition.log_end_offset == 2


def test_case_59_an_append_is_refused_after_a_marker_during_verification(
    new_world: NewWorld,
) -> None:
    partition = new_world().partition
    batch = txn_batch(0, b"late")
    guard = partition.begin_verification(batch, NOW, starts_at_zero=False)
    assert isinstance(guard, Guard)
    end(partition, commit=False)
    assert refused(partition, batch, guard).error is ErrorCode.INVALID_TXN_STATE


def test_case_59_a_tv2_marker_keeps_the_guard_of_the_next_transaction(new_world: NewWorld) -> None:
    partition = new_world().partition
    write(partition, txn_batch(0, b"a", epoch=0), tv2=True)
    following = txn_batch(0, b"b", epoch=1)
    guard = partition.begin_verification(following, NOW, starts_at_zero=True)
    assert isinstance(guard, Guard)
    assert end(partition, commit=True, epoch=1, version=2) is ErrorCode.NONE
    append(partition, following, guard)


def test_a_transactional_batch_without_a_guard_is_refused(new_world: NewWorld) -> None:
    partition = new_world().partition
    refusal = refused(partition, txn_batch(0, b"a"))
    assert refusal.error is ErrorCode.INVALID_TXN_STATE
    assert partition.log_end_offset == 0


def test_case_61_a_stale_epoch_is_reported_before_a_missing_guard(new_world: NewWorld) -> None:
    """So the coordinator is not asked (KAFKA-18042)."""
    partition = new_world().partition
    write(partition, txn_batch(0, b"a"))
    end(partition, commit=False, epoch=1)
    refusal = refused(partition, txn_batch(1, b"late", epoch=0))
    assert refusal.error is ErrorCode.INVALID_PRODUCER_EPOCH
    assert "0" in refusal.message
    assert "1" in refusal.message


@pytest.mark.parametrize("how", ["kill", "restart"])
def test_open_transactions_aborts_and_fences_survive(new_world: NewWorld, how: str) -> None:
    world = new_world(segment_bytes=300)
    partition = world.partition
    write(partition, txn_batch(0, b"aborted"))
    end(partition, commit=False, coordinator_epoch=3)
    for sequence in range(1, 6):
        write(partition, txn_batch(sequence, b"committed-%d" % sequence))
    end(partition, commit=True, coordinator_epoch=3)
    write(partition, txn_batch(0, b"open", producer_id=99))
    before = (partition.last_stable_offset, read(partition), read(partition, committed=False))
    reopened = getattr(world, how)()
    after = (reopened.last_stable_offset, read(reopened), read(reopened, committed=False))
    assert after == before
    assert reopened.in_txn(99, 0)
    assert end(reopened, commit=True, coordinator_epoch=2) is (
        ErrorCode.TRANSACTION_COORDINATOR_FENCED
    )


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: b"broken",
        lambda data: data[:-1],
        lambda data: data[:-46],
        lambda data: data[:20] + bytes([data[20] ^ 1]) + data[21:],
    ],
    ids=["empty", "nonsense", "truncated", "without an entry", "bit flipped"],
)
def test_case_67_a_damaged_snapshot_is_ignored_and_an_older_one_is_used(
    new_world: NewWorld, damage: Callable[[bytes], bytes]
) -> None:
    """The log before the older one was deleted, so only a snapshot has its producers."""
    world = new_world(segment_bytes=200)
    partition = world.partition
    write(partition, client_batch(b"v" * 50, producer_id=99, epoch=3, sequence=0))
    for sequence in range(4):
        write(partition, txn_batch(sequence, b"v" * 50))
    assert partition.delete_before(1) is ErrorCode.NONE
    assert retain(partition, NOW) == 1
    offsets = partition.log.snapshots.offsets()
    partition.close(clean=True)
    newest = f"/data/t-0/{max(partition.log.snapshots.offsets()):020d}.snapshot"
    world.disk.write_file(newest, damage(world.disk.read_file(newest)), sync=True)
    reopened = world.partition = world._open(clean=True)
    assert reopened.log.snapshots.offsets(), "an older snapshot is left"
    assert set(reopened.log.snapshots.offsets()) <= set(offsets)
    assert reopened.in_txn(PID, 0)
    assert reopened.last_stable_offset == 1
    fenced = refused(reopened, client_batch(b"v", producer_id=99, epoch=2, sequence=1))
    assert fenced.error is ErrorCode.INVALID_PRODUCER_EPOCH
    again = write(reopened, txn_batch(3, b"v" * 50))
    assert again.base_offset == 4


@pytest.mark.parametrize("position", [65, 69], ids=["the length of its key", "its type"])
def test_a_damaged_marker_is_skipped_and_never_ends_its_transaction_the_other_way(
    new_world: NewWorld, position: int
) -> None:
    """It is below the recovery point: recovery reads it because the snapshots are damaged too."""
    world = new_world(segment_bytes=200)
    write(world.partition, txn_batch(0, b"committed"))
    data_bytes = world.partition.log.size_bytes
    end(world.partition, commit=True)
    for _ in range(3):
        write(world.partition, client_batch(b"v" * 50))
    segment = world.partition.log.segments[0]
    assert segment.size_bytes > data_bytes
    assert not segment.is_active
    path = segment.path(".log")
    world.partition.close(clean=True)
    data = bytearray(world.disk.read_file(path))
    data[data_bytes + position] ^= 1
    world.disk.write_file(path, bytes(data), sync=True)
    for offset in world.partition.log.snapshots.offsets():
        world.disk.write_file(f"/data/t-0/{offset:020d}.snapshot", b"broken", sync=True)
    reopened = world._open(clean=True)
    assert reopened.log.aborted_between(0, 9) == []
    assert reopened.in_txn(PID, 0)
    assert [damage.first_offset for damage in reopened.log.segments[0].damage] == [1]


def test_on_a_full_disk_an_append_fails_and_no_offset_is_used_twice(new_world: NewWorld) -> None:
    world = new_world()
    partition = world.partition
    append(partition, client_batch(b"a"))
    world.disk.fill()
    with pytest.raises(StorageError):
        append(partition, client_batch(b"b"))
    assert partition.log_end_offset == partition.high_watermark == 1
    world.disk.empty()
    assert append(partition, client_batch(b"c")).base_offset == 1
    assert read(world.kill()) == [b"a", b"c"]


def test_a_failed_append_does_not_change_the_state_of_its_producer(new_world: NewWorld) -> None:
    world = new_world()
    partition = world.partition
    write(partition, client_batch(b"a", producer_id=PID, epoch=0, sequence=0))
    world.disk.fill()
    with pytest.raises(StorageError):
        write(partition, client_batch(b"b", producer_id=PID, epoch=0, sequence=1))
    world.disk.empty()
    retried = write(partition, client_batch(b"b", producer_id=PID, epoch=0, sequence=1))
    assert retried.base_offset == 1


def test_a_compacted_topic_refuses_records_without_a_key_and_lists_them(
    new_world: NewWorld,
) -> None:
    partition = new_world(cleanup_policy=frozenset({"compact"})).partition
    refusal = refused(partition, client_batch(b"a", b"b", key=None))
    assert refusal.error is ErrorCode.INVALID_RECORD
    assert [index for index, _ in refusal.record_errors] == [0, 1]


def test_log_append_time_stamps_the_batch_with_the_brokers_clock(new_world: NewWorld) -> None:
    partition = new_world(message_timestamp_type="LogAppendTime").partition
    appended = append(partition, client_batch(b"a", timestamp_ms=5))
    assert appended.append_time_ms == NOW
    [batch] = split_batches(partition.fetch(0, 1000, read_committed=False).data)
    assert [record.timestamp_ms for record in open_batch(batch)] == [NOW]


def test_records_with_an_invalid_timestamp_are_listed(new_world: NewWorld) -> None:
    partition = new_world(message_timestamp_after_max_ms=10).partition
    records = [Record(timestamp_ms=time_ms, value=b"v") for time_ms in (NOW, NOW + 11, NOW + 5)]
    batch = read_header(build_batch(records, timestamp_ms=NOW))
    refusal = refused(partition, batch)
    assert refusal.error is ErrorCode.INVALID_TIMESTAMP
    assert [index for index, _ in refusal.record_errors] == [1]


def test_a_timestamp_too_far_ahead_is_refused(new_world: NewWorld) -> None:
    partition = new_world(message_timestamp_after_max_ms=10).partition
    refusal = refused(partition, client_batch(b"a", timestamp_ms=NOW + 11))
    assert refusal.error is ErrorCode.INVALID_TIMESTAMP


def test_producers_survive_the_deletion_of_their_segments(new_world: NewWorld) -> None:
    world = new_world(segment_bytes=200)
    partition = world.partition
    for sequence in range(6):
        write(partition, client_batch(b"v" * 50, producer_id=PID, epoch=0, sequence=sequence))
    assert partition.delete_before(partition.log_end_offset) is ErrorCode.NONE
    assert retain(partition, NOW) == 5
    reopened = world.kill()
    following = write(reopened, client_batch(b"w", producer_id=PID, epoch=0, sequence=6))
    gap = refused(reopened, client_batch(b"w", producer_id=PID, epoch=0, sequence=9))
    assert following.base_offset == 6
    assert gap.error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_retention_continues_with_lost_and_damaged_snapshots(new_world: NewWorld) -> None:
    world = new_world(segment_bytes=200)
    partition = world.partition
    for sequence in range(6):
        write(partition, client_batch(b"v" * 50, producer_id=PID, epoch=0, sequence=sequence))
    *damaged, lost, _ = partition.log.snapshots.offsets()
    partition.log.snapshots.delete(lost)
    for offset in damaged:
        world.disk.write_file(f"/data/t-0/{offset:020d}.snapshot", b"broken", sync=True)
    assert partition.delete_before(lost) is ErrorCode.NONE
    assert retain(partition, NOW) == lost
    reopened = world.kill()
    following = write(reopened, client_batch(b"w", producer_id=PID, epoch=0, sequence=6))
    assert following.base_offset == 6


def test_the_end_offset_of_every_leader_epoch_is_known(new_world: NewWorld) -> None:
    partition = new_world().partition
    append(partition, client_batch(b"a"))
    partition.bump_leader_epoch(4)
    append(partition, client_batch(b"b"))
    assert partition.end_offset_for_epoch(0) == (0, 1)
    assert partition.end_offset_for_epoch(4) == (4, 2)
    data = partition.fetch(0, 1000, read_committed=False).data
    assert [batch.leader_epoch for batch in split_batches(data)] == [0, 4]


@pytest.mark.parametrize("wanted", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_a_topics_compression_type_changes_the_codec_and_nothing_else(
    new_world: NewWorld, wanted: str
) -> None:
    partition = new_world(compression_type=wanted).partition
    sent = client_batch(b"a" * 100, b"b", producer_id=PID, epoch=0, sequence=0, codec=Codec.GZIP)
    before = open_batch(sent)
    write(partition, sent)
    [kept] = split_batches(partition.fetch(0, 10_000, read_committed=False).data)
    assert kept.codec == (0 if wanted == "uncompressed" else Codec[wanted.upper()])
    assert (kept.producer_id, kept.producer_epoch, kept.base_sequence) == (PID, 0, 0)
    assert open_batch(kept) == before
    assert (
        write(
            partition,
            client_batch(b"a" * 100, b"b", producer_id=PID, epoch=0, sequence=0, codec=Codec.GZIP),
        ).base_offset
        == 0
    )


@pytest.mark.parametrize(("written", "sent"), [(1, 2), (3, 2), (2, 3)])
def test_a_batch_that_only_begins_like_a_known_one_is_not_a_duplicate(
    new_world: NewWorld, written: int, sent: int
) -> None:
    """If it were answered as a duplicate, its other records would be lost."""
    partition = new_world().partition
    first = client_batch(*[b"v"] * written, producer_id=PID, epoch=0, sequence=0)
    append(partition, first)
    other = client_batch(*[b"v"] * sent, producer_id=PID, epoch=0, sequence=0)
    assert refused(partition, other).error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_batch_of_an_earlier_epoch_is_fenced_even_if_its_sequences_are_known(
    new_world: NewWorld,
) -> None:
    partition = new_world().partition
    for epoch in (0, 1):
        batch = client_batch(b"v", producer_id=PID, epoch=epoch, sequence=0)
        append(partition, batch)
    late = client_batch(b"v", producer_id=PID, epoch=0, sequence=0)
    assert refused(partition, late).error is ErrorCode.INVALID_PRODUCER_EPOCH
