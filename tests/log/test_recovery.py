"""Opening a folder after a crash or a clean close."""

from __future__ import annotations

import pytest

from fencepost.base.failures import CorruptError
from fencepost.base.seams import Disk
from fencepost.log import Log, LogConfig
from fencepost.log.segment.segment import SMALL_LOG_BYTES
from fencepost.log.times import find_timestamp
from fencepost.records.batch import HEADER_BYTES, split_batches
from fencepost.records.index import AbortedTxn
from fencepost.simulation.disk import UnsyncedDisk, UnsyncedFile
from tests.log.audit import audit
from tests.log.batches import FOLDER, all_batches, append, open_log, retain, sealed

SMALL = LogConfig(segment_bytes=500, index_interval_bytes=100)


@pytest.fixture
def disk() -> UnsyncedDisk:
    return UnsyncedDisk()


class CountingFile(UnsyncedFile):
    """A file that reports the bytes read to its disk."""

    __slots__ = ("counter",)
    counter: list[int]

    def read(self, position: int, count: int) -> bytes:
        data = super().read(position, count)
        self.counter[0] += len(data)
        return data


class ReadCountingDisk(UnsyncedDisk):
    """Counts the bytes that are read from open files."""

    def __init__(self) -> None:
        super().__init__()
        self.read_bytes = [0]

    def open(self, path: str, *, create: bool = False) -> UnsyncedFile:
        file = super().open(path, create=create)
        counting = CountingFile(self, file._inode)
        counting.counter = self.read_bytes
        return counting


def bases(log: Log) -> list[int]:
    return [batch.base_offset for batch in all_batches(log)]


def test_a_clean_open_restores_the_whole_log(disk: Disk) -> None:
    log = open_log(disk, SMALL)
    for number in range(40):
        append(log, 2, size=50, timestamp_ms=1000 + number)
    before = [(s.base_offset, s.next_offset, s.size_bytes) for s in log.segments]
    log.close(clean=True)
    again = open_log(disk, SMALL, clean=True)
    assert [(s.base_offset, s.next_offset, s.size_bytes) for s in again.segments] == before
    assert again.log_end_offset == again.recovery_point == 80
    assert again.recovered_from is None
    assert bases(again) == list(range(0, 80, 2))
    append(again)
    assert again.log_end_offset == 81


def test_a_clean_open_reads_only_after_the_last_index_entry() -> None:
    disk = ReadCountingDisk()
    log = open_log(disk)
    log.assign_epoch(1, 0)
    for _ in range(500):
        append(log, size=1000)
    log.close(clean=True)
    disk.read_bytes[0] = 0
    assert open_log(disk, clean=True).log_end_offset == 500
    assert disk.read_bytes[0] < 10_000


def test_every_torn_tail_is_truncated_at_the_last_whole_batch(disk: UnsyncedDisk) -> None:
    log = open_log(disk)
    sizes = [append(log, count).size_bytes for count in (2, 1, 3)]
    log.close(clean=False)
    path = f"{FOLDER}/{0:020d}.log"
    whole = disk.read_file(path)
    for size in range(len(whole)):
        disk.write_file(path, whole[:size], sync=False)
        log = open_log(disk)
        kept = sum(size >= sum(sizes[: n + 1]) for n in range(3))
        assert log.log_end_offset == [0, 2, 3][kept]
        assert log.size_bytes == sum(sizes[:kept])
        append(log)
        log.close(clean=True)
        assert len(audit(disk, FOLDER)) == kept + 1


def test_zeros_after_the_last_batch_are_truncated(disk: UnsyncedDisk) -> None:
    log = open_log(disk)
    append(log)
    log.close(clean=False)
    path = f"{FOLDER}/{0:020d}.log"
    whole = disk.read_file(path)
    disk.write_file(path, whole + bytes(5000), sync=False)
    log = open_log(disk)
    assert (log.log_end_offset, log.size_bytes) == (1, len(whole))


def test_after_a_tear_in_an_older_segment_the_later_ones_are_removed(disk: UnsyncedDisk) -> None:
    log = open_log(disk, SMALL)
    for _ in range(30):
        append(log, size=50)
    second = log.segments[1]
    size = second.size_bytes
    log.close(clean=False)
    disk.open(second.path(".log")).truncate(size - 1)
    log = open_log(disk, SMALL)
    assert len(log.segments) == 2
    assert bases(log) == list(range(log.log_end_offset))
    assert second.base_offset < log.log_end_offset < second.next_offset
    log.close(clean=True)
    audit(disk, FOLDER)


def test_a_segment_that_overlaps_its_predecessor_is_dropped(disk: UnsyncedDisk) -> None:
    log = open_log(disk)
    append(log, 10)
    log.close(clean=False)
    other = disk.read_file(f"{FOLDER}/{0:020d}.log")
    disk.write_file(f"{FOLDER}/{5:020d}.log", other, sync=False)
    log = open_log(disk)
    assert (len(log.segments), log.log_end_offset) == (1, 10)


def test_segments_below_the_recovery_point_are_not_read(disk: UnsyncedDisk) -> None:
    log = open_log(disk, SMALL)
    for _ in range(30):
        append(log, size=50)
    point = log.segments[2].base_offset + 1
    damaged = log.segments[0].path(".log")
    log.close(clean=False)
    data = bytearray(disk.read_file(damaged))
    data[100] ^= 1
    disk.write_file(damaged, bytes(data), sync=False)
    log = open_log(disk, SMALL, recovery_point=point)
    assert log.log_end_offset == 30
    assert log.recovered_from == log.segments[2].base_offset
    assert log.is_sound, "nothing has read the damaged segment"


def test_recovery_rebuilds_the_same_indexes_as_appends(disk: UnsyncedDisk) -> None:
    log = open_log(disk, SMALL)
    for number in range(60):
        append(log, 1 + number % 3, size=number * 3, timestamp_ms=5000 - 7 * (number % 11))
    log.close(clean=True)
    names = [name for name in disk.list_dir(FOLDER) if "index" in name]
    files = {name: disk.read_file(f"{FOLDER}/{name}") for name in names}
    for name in names:
        disk.remove(f"{FOLDER}/{name}")
    open_log(disk, SMALL).close(clean=True)
    assert {name: disk.read_file(f"{FOLDER}/{name}") for name in names} == files


@pytest.mark.parametrize("damage", [b"", b"\xff" * 7, b"\x00" * 64, b"\x7f" * 64])
def test_sealed_indexes_that_do_not_match_their_log_are_rebuilt(
    disk: UnsyncedDisk, damage: bytes
) -> None:
    config = LogConfig(segment_bytes=20_000, index_interval_bytes=4096)
    log = open_log(disk, config)
    for number in range(100):
        append(log, size=400, timestamp_ms=number)
    log.close(clean=True)
    for suffix in ("index", "timeindex"):
        path = f"{FOLDER}/{0:020d}.{suffix}"
        sound = disk.read_file(path)
        disk.write_file(path, damage, sync=False)
        log = open_log(disk, config, clean=True)
        assert bases(log) == list(range(100))
        found = find_timestamp(log, 20, 100)
        assert found is not None
        assert found.offset == 20
        log.close(clean=True)
        if damage or suffix == "timeindex":  # An empty offset index is valid.
            assert disk.read_file(path) == sound


def test_an_index_of_another_log_is_detected(disk: UnsyncedDisk) -> None:
    """The log is large enough that a clean open reads its index."""
    config = LogConfig(index_interval_bytes=100, segment_bytes=100_000)
    log = open_log(disk, config)
    for _ in range(100):
        append(log, size=150)
    log.close(clean=True)
    old = {s: disk.read_file(f"{FOLDER}/{0:020d}.{s}") for s in ("index", "timeindex")}
    for name in disk.list_dir(FOLDER):
        disk.remove(f"{FOLDER}/{name}")
    log = open_log(disk, config, clean=True)
    for number in range(200):
        append(log, 3, size=number % 20)
    assert log.size_bytes > SMALL_LOG_BYTES
    log.close(clean=True)
    for suffix, data in old.items():
        disk.write_file(f"{FOLDER}/{0:020d}.{suffix}", data, sync=False)
    log = open_log(disk, clean=True)
    assert (log.log_end_offset, bases(log)) == (600, list(range(0, 600, 3)))
    assert log.recovered_from is None, "nothing but the index was wrong"


def test_a_torn_tail_is_detected_even_after_a_clean_close(disk: UnsyncedDisk) -> None:
    log = open_log(disk)
    append(log)
    append(log)
    log.close(clean=True)
    disk.open(f"{FOLDER}/{0:020d}.log").truncate(log.segments[0].size_bytes - 5)
    log = open_log(disk, clean=True)
    assert log.log_end_offset == 1
    assert log.recovered_from == 0


def test_segments_below_the_log_start_offset_stay_until_retention(disk: UnsyncedDisk) -> None:
    log = open_log(disk, SMALL)
    for _ in range(30):
        append(log, size=50)
    third = log.segments[2].base_offset
    log.close(clean=True)
    log = open_log(disk, SMALL, clean=True, log_start_offset=third + 1)
    assert log.log_start_offset == third + 1
    assert len(retain(log, 0, upper_offset=30)) == 2
    assert log.segments[0].base_offset == third
    log.close(clean=True)
    audit(disk, FOLDER)


def test_a_log_that_lost_all_its_records_begins_at_its_start_offset(disk: UnsyncedDisk) -> None:
    log = open_log(disk)
    append(log, 5)
    log.close(clean=True)
    log = open_log(disk, log_start_offset=100)
    assert (log.log_start_offset, log.log_end_offset) == (100, 100)
    append(log)
    assert bases(log) == [100]


def test_orphaned_and_temporary_files_are_removed(disk: UnsyncedDisk) -> None:
    log = open_log(disk)
    append(log)
    log.close(clean=True)
    litter = [
        f"{7:020d}.index",
        f"{7:020d}.timeindex",
        f"{7:020d}.txnindex",
        f"{0:020d}.log.deleted",
        f"{0:020d}.log.cleaned",
        f"{0:020d}.index.swap",
        f"{0:020d}.index.tmp",
    ]
    for name in litter:
        disk.write_file(f"{FOLDER}/{name}", b"litter", sync=False)
    log = open_log(disk, clean=True)
    assert not set(litter) & set(disk.list_dir(FOLDER))
    assert bases(log) == [0]


def test_a_prepared_swap_with_a_damaged_header_is_a_storage_error_and_removes_nothing(
    disk: UnsyncedDisk,
) -> None:
    log = open_log(disk, LogConfig(segment_bytes=100))
    for _ in range(3):
        append(log)
    log.close(clean=True)
    swapped = bytearray(disk.read_file(f"{FOLDER}/{0:020d}.log"))
    swapped[16] ^= 0x40
    disk.write_file(f"{FOLDER}/{0:020d}.log.swap", bytes(swapped), sync=True)
    before = disk.list_dir(FOLDER)
    with pytest.raises(CorruptError):
        open_log(disk, clean=True)
    assert disk.list_dir(FOLDER) == before


def test_other_files_in_the_folder_are_kept(disk: UnsyncedDisk) -> None:
    open_log(disk).close(clean=True)
    disk.write_file(f"{FOLDER}/partition.metadata", b"version: 0", sync=False)
    open_log(disk).close(clean=True)
    assert disk.read_file(f"{FOLDER}/partition.metadata") == b"version: 0"


def test_recovery_drops_aborted_transactions_and_snapshots_above_the_recovery_point(
    disk: UnsyncedDisk,
) -> None:
    log = open_log(disk, SMALL)
    for _ in range(10):
        append(log, size=50)
    base = log.segments[-1].base_offset
    log.append_aborted(AbortedTxn(1, 0, 2, 3))
    for offset in (0, base, 10):
        log.snapshots.write(offset, b"%d" % offset)
    log.append_aborted(AbortedTxn(1, 4, 9, 10))
    log.close(clean=False)
    log = open_log(disk, SMALL, recovery_point=base + 1)
    assert log.recovered_from == base
    assert log.aborted_between(0, 100) == [AbortedTxn(1, 0, 2, 3)]
    assert log.snapshots.offsets() == [0, base]
    log.close(clean=True)


def test_the_segment_that_ends_at_the_recovery_point_is_not_read_again(disk: UnsyncedDisk) -> None:
    log = open_log(disk, SMALL)
    for _ in range(10):
        append(log, size=50)
    last = log.segments[-1].base_offset
    log.close(clean=False)
    assert open_log(disk, SMALL, recovery_point=last).recovered_from == last


def test_a_segment_sealed_after_the_last_sync_is_read_again(disk: UnsyncedDisk) -> None:
    """Its indexes were never synced, although its data was."""
    log = open_log(disk)
    append(log, 5)
    assert log.sync() == 5
    saved = [log.saved_recovery_point]
    log.roll(0)
    saved.append(log.saved_recovery_point)
    append(log)
    saved.append(log.saved_recovery_point)
    log.close(clean=False)
    for point in saved:
        assert open_log(disk, recovery_point=point).recovered_from == 0


def test_a_flush_moves_the_recovery_point_to_the_active_segment(disk: UnsyncedDisk) -> None:
    log = open_log(disk, SMALL)
    for _ in range(10):
        append(log, size=50)
    assert log.needs_flush
    pending = log.prepare_flush()
    pending.run()
    base = log.segments[-1].base_offset
    assert log.complete_sync(pending) == log.saved_recovery_point == base
    assert log.prepare_flush().paths == []
    disk.crash()
    log = open_log(disk, SMALL, recovery_point=base)
    assert (log.recovered_from, log.log_end_offset) == (base, base)


def test_a_clean_open_keeps_aborted_transactions_and_snapshots(disk: UnsyncedDisk) -> None:
    log = open_log(disk)
    append(log, 5)
    log.append_aborted(AbortedTxn(1, 0, 4, 5))
    log.snapshots.write(5, b"five")
    log.snapshots.write(6, b"beyond the end")
    log.close(clean=True)
    log = open_log(disk, clean=True)
    assert log.aborted_between(0, 100) == [AbortedTxn(1, 0, 4, 5)]
    assert log.snapshots.latest(100) == (5, b"five")


def test_gaps_between_offsets_are_not_damage(disk: UnsyncedDisk) -> None:
    log = open_log(disk)
    append(log)
    log.log_end_offset = 10
    append(log)
    log.close(clean=False)
    log = open_log(disk)
    assert (bases(log), log.log_end_offset) == ([0, 10], 11)
    [after_the_gap] = split_batches(bytes(log.read(5, 1000, upper_offset=11).data))
    assert after_the_gap.base_offset == 10


def test_a_batch_larger_than_one_read_is_recovered(disk: UnsyncedDisk) -> None:
    log = open_log(disk)
    append(log, size=3_000_000)
    append(log)
    size = log.size_bytes
    log.close(clean=False)
    assert open_log(disk).size_bytes == size
    disk.open(f"{FOLDER}/{0:020d}.log").truncate(2_000_000)
    assert open_log(disk).size_bytes == 0


def test_a_folder_can_be_opened_repeatedly(disk: UnsyncedDisk) -> None:
    for number in range(5):
        log = open_log(disk, clean=number % 2 == 1)
        batch = sealed(log, [(b"k", b"v")])
        log.append(batch)
        log.close(clean=number % 2 == 0)
    log = open_log(disk)
    assert bases(log) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("place", [HEADER_BYTES, -1])
def test_a_last_batch_with_one_wrong_bit_after_its_header_is_truncated(place: int) -> None:
    """Its length and its header are right: only the CRC shows it."""
    disk = UnsyncedDisk()
    disk.make_dir("data")
    log = open_log(disk)
    append(log, 3)
    log.sync()
    last = append(log, 2)
    path = log.segments[-1].path(".log")
    content = bytearray(disk.read_file(path))
    start = len(content) - last.size_bytes
    content[start + place if place >= 0 else place] ^= 1
    disk.write_file(path, bytes(content), sync=True)
    disk.kill()
    again = open_log(disk, recovery_point=0)
    assert again.log_end_offset == 3
