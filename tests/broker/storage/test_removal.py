"""Folders of deleted partitions: all are removed, now or at the next start."""

from __future__ import annotations

import errno

import pytest

from fencepost.broker.storage.removal import REMOVED_AT_ONCE, Removal
from fencepost.simulation.disk import UnsyncedDisk
from tests.broker.virtual_loop import VirtualLoop

pytestmark = pytest.mark.usefixtures("quiet")


class StubbornDisk(UnsyncedDisk):
    """Removes everything but one folder."""

    stubborn = ""

    def remove_tree(self, path: str) -> None:
        if path == self.stubborn:
            raise OSError(errno.EIO, "stubborn")
        super().remove_tree(path)


def with_folders(count: int) -> tuple[StubbornDisk, list[str]]:
    disk = StubbornDisk()
    folders = [f"/data/t-{number}.1-delete" for number in range(count)]
    for folder in folders:
        disk.make_dir(folder)
    return disk, folders


def test_folders_are_removed_over_several_jobs() -> None:
    disk, folders = with_folders(3 * REMOVED_AT_ONCE + 1)
    loop = VirtualLoop()
    removal = Removal(disk)
    removal.start(loop, folders[:-1])
    removal.add(folders[-1:])
    loop.settle()
    assert disk.list_dir("/data") == []
    loop.close()


def test_a_folder_that_cannot_be_removed_does_not_block_the_others() -> None:
    disk, folders = with_folders(2 * REMOVED_AT_ONCE)
    disk.stubborn = folders[3]
    loop = VirtualLoop()
    removal = Removal(disk)
    removal.start(loop, folders)
    loop.settle()
    assert disk.list_dir("/data") == ["t-3.1-delete"]
    disk.stubborn = ""
    removal.add(folders[3:4])
    loop.settle()
    assert disk.list_dir("/data") == []
    loop.close()


def test_folders_left_by_a_stop_are_removed_by_the_next_start() -> None:
    disk, folders = with_folders(3 * REMOVED_AT_ONCE)
    loop = VirtualLoop()
    removal = Removal(disk)
    removal.start(loop, folders)
    loop.run_until_complete(removal.stop())
    left = disk.list_dir("/data")
    assert 0 < len(left) < len(folders)
    Removal(disk).start(loop, [f"/data/{name}" for name in left])
    loop.settle()
    assert disk.list_dir("/data") == []
    loop.close()
