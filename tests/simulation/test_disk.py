"""The simulated disk: what it loses, what it keeps, and how it fails."""

from __future__ import annotations

import errno

import pytest

from fencepost.base.seams import Disk, Randomness
from fencepost.simulation.disk import PowerLost, UnsyncedDisk
from tests.log.batches import SeededRandomness


class FixedRandomness:
    """Always returns the same number."""

    def __init__(self, number: int) -> None:
        self._number = number

    def bytes(self, count: int) -> bytes:
        return self._number.to_bytes(count, "big")


@pytest.fixture
def disk() -> UnsyncedDisk:
    made = UnsyncedDisk()
    made.make_dir("data/a")
    made.sync_dir("data")
    return made


def write(disk: Disk, path: str, data: bytes, *, sync: bool = False) -> None:
    file = disk.open(path, create=True)
    file.append([data])
    if sync:
        file.sync()
    file.close()


def test_files_read_back_what_was_appended(disk: Disk) -> None:
    file = disk.open("data/a/f", create=True)
    assert file.append([b"ab", bytearray(b"cd"), memoryview(b"ef")]) == 6
    assert file.read(2, 3) == b"cde"
    assert file.read(4, 100) == b"ef"
    assert file.size() == 6
    file.truncate(2)
    assert disk.read_file("data/a/f") == b"ab"
    assert disk.list_dir("data/a") == ["f"]


def test_unsynced_bytes_are_lost_in_a_crash(disk: UnsyncedDisk) -> None:
    write(disk, "data/a/f", b"kept", sync=True)
    disk.sync_dir("data/a")
    write(disk, "data/a/f", b"lost")
    disk.crash()
    assert disk.read_file("data/a/f") == b"kept"


def test_an_unsynced_name_is_lost_with_its_synced_bytes(disk: UnsyncedDisk) -> None:
    write(disk, "data/a/f", b"bytes", sync=True)
    disk.crash()
    assert not disk.exists("data/a/f")


def test_a_synced_name_without_synced_bytes_is_an_empty_file(disk: UnsyncedDisk) -> None:
    write(disk, "data/a/f", b"bytes")
    disk.sync_dir("data/a")
    disk.crash()
    assert disk.read_file("data/a/f") == b""


def test_an_unsynced_folder_is_lost(disk: UnsyncedDisk) -> None:
    disk.make_dir("data/b")
    disk.crash()
    assert disk.list_dir("data") == ["a"]


def test_an_unsynced_truncation_is_undone(disk: UnsyncedDisk) -> None:
    write(disk, "data/a/f", b"12345", sync=True)
    disk.sync_dir("data/a")
    disk.open("data/a/f").truncate(2)
    disk.crash()
    assert disk.read_file("data/a/f") == b"12345"


def test_unsynced_renames_and_deletions_are_undone(disk: UnsyncedDisk) -> None:
    write(disk, "data/a/old", b"1", sync=True)
    write(disk, "data/a/gone", b"2", sync=True)
    disk.sync_dir("data/a")
    disk.rename("data/a/old", "data/a/new")
    disk.remove("data/a/gone")
    assert disk.list_dir("data/a") == ["new"]
    disk.crash()
    assert disk.list_dir("data/a") == ["gone", "old"]


def test_a_synced_rename_is_kept_and_replaces_its_target(disk: UnsyncedDisk) -> None:
    write(disk, "data/a/old", b"1", sync=True)
    write(disk, "data/a/new", b"2", sync=True)
    disk.sync_dir("data/a")
    disk.rename("data/a/old", "data/a/new")
    disk.sync_dir("data/a")
    disk.crash()
    assert disk.list_dir("data/a") == ["new"]
    assert disk.read_file("data/a/new") == b"1"


def test_a_whole_file_is_durable_only_with_sync(disk: UnsyncedDisk) -> None:
    disk.write_file("data/a/f", b"one", sync=True)
    disk.write_file("data/a/f", b"two", sync=False)
    assert disk.read_file("data/a/f") == b"two"
    disk.crash()
    assert disk.read_file("data/a/f") == b"one"


@pytest.mark.parametrize(("throw", "left"), [(0, b"ab"), (1, b"abc"), (2, b"abcd"), (3, b"ab")])
def test_with_randomness_a_prefix_of_the_unsynced_bytes_survives(
    disk: UnsyncedDisk, throw: int, left: bytes
) -> None:
    write(disk, "data/a/f", b"ab", sync=True)
    disk.sync_dir("data/a")
    write(disk, "data/a/f", b"cd")
    randomness: Randomness = FixedRandomness(throw)
    disk.crash(randomness)
    assert disk.read_file("data/a/f") == left


def test_with_randomness_a_prefix_of_the_changed_names_survives(disk: UnsyncedDisk) -> None:
    for name in ("f", "g", "h"):
        write(disk, f"data/a/{name}", b"")
    disk.crash(FixedRandomness(2))
    assert disk.list_dir("data/a") == ["f", "g"]


def test_a_power_loss_may_leave_holes_between_unsynced_sectors(disk: UnsyncedDisk) -> None:
    """What was synced stays, and each sector is there as a whole, or not at all."""
    synced, new = b"s" * 700, b"n" * 4_000
    outcomes = set()
    for seed in range(40):
        path = f"file-{seed}"
        file = disk.open(path, create=True)
        file.append([synced])
        file.sync()
        disk.sync_dir("")
        file.append([new])
        disk.crash(SeededRandomness(seed), is_in_order=False)
        found = disk.read_file(path)
        assert found[: len(synced)] == synced
        assert len(synced) <= len(found) <= len(synced + new)
        outcomes.add(bytes(sorted(set(found[1024 : len(found) // 512 * 512]))))
        for start in range(1024, len(found) // 512 * 512, 512):
            assert found[start : start + 512] in (bytes(512), b"n" * 512)
    assert b"\0n" in outcomes, "no file had a hole before bytes that are there"


def test_a_folder_is_no_file(disk: UnsyncedDisk) -> None:
    """As on a real disk: a folder in the place of a file is not an absent file."""
    disk.make_dir("folder")
    file = disk.open("file", create=True)
    file.close()
    for attempt in (
        lambda: disk.open("folder"),
        lambda: disk.read_file("folder"),
        lambda: disk.remove("folder"),
        lambda: disk.rename("file", "folder"),
    ):
        with pytest.raises(IsADirectoryError):
            attempt()


def test_a_kill_of_the_process_keeps_everything(disk: UnsyncedDisk) -> None:
    file = disk.open("data/a/f", create=True)
    file.append([b"bytes"])
    disk.kill()
    assert disk.read_file("data/a/f") == b"bytes"
    with pytest.raises(OSError):
        file.append([b"more"])


def test_a_full_disk_writes_a_part_and_raises(disk: UnsyncedDisk) -> None:
    file = disk.open("data/a/f", create=True)
    disk.fill(free_bytes=3)
    with pytest.raises(OSError) as full:
        file.append([b"12345"])
    assert full.value.errno == errno.ENOSPC
    assert file.size() == 3
    assert disk.space("data").free_bytes == 0
    file.truncate(0)
    assert file.append([b"12"]) == 2
    disk.empty()
    assert file.append([b"345"]) == 3


def test_deleting_a_file_frees_space(disk: UnsyncedDisk) -> None:
    write(disk, "data/a/f", b"12345")
    disk.fill()
    disk.remove("data/a/f")
    assert disk.space("data").free_bytes == 5


def test_only_the_chosen_call_fails(disk: UnsyncedDisk) -> None:
    file = disk.open("data/a/f", create=True)
    disk.fail_call(2)
    file.append([b"1"])
    with pytest.raises(OSError) as failed:
        file.sync()
    assert failed.value.errno == errno.EIO
    file.sync()
    disk.crash()


def test_after_a_power_loss_every_call_fails_until_a_restart(disk: UnsyncedDisk) -> None:
    write(disk, "data/a/f", b"1", sync=True)
    disk.sync_dir("data/a")
    file = disk.open("data/a/f")
    disk.lose_power_at(1)
    with pytest.raises(PowerLost):
        file.append([b"2"])
    with pytest.raises(PowerLost):
        disk.exists("data/a/f")
    disk.crash()
    assert disk.read_file("data/a/f") == b"1"


def test_missing_files_are_not_found(disk: UnsyncedDisk) -> None:
    with pytest.raises(FileNotFoundError):
        disk.open("data/a/f")
    with pytest.raises(FileNotFoundError):
        disk.list_dir("data/b")
    with pytest.raises(FileNotFoundError):
        disk.rename("data/a/f", "data/a/g")
    assert not disk.exists("data/b/f")
    disk.remove("data/a/f")
    disk.remove_tree("data/b")


def test_a_tree_is_removed_as_a_whole(disk: UnsyncedDisk) -> None:
    write(disk, "data/a/f", b"123")
    disk.remove_tree("data/a")
    assert disk.list_dir("data") == []
