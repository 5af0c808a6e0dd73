"""The `.snapshot` files of a partition's folder; the partition encodes their content."""

from __future__ import annotations

from fencepost.base.seams import Disk
from fencepost.log.names import SNAPSHOT, file_name, offsets_with


def snapshot_path(folder: str, offset: int) -> str:
    """The path of the snapshot at an offset."""
    return f"{folder}/{file_name(offset, SNAPSHOT)}"


def list_snapshots(disk: Disk, folder: str) -> list[int]:
    """The offsets of all snapshots, ascending."""
    return offsets_with(disk.list_dir(folder), SNAPSHOT)


def latest_snapshot(disk: Disk, folder: str, at_or_before: int) -> tuple[int, bytes] | None:
    """The newest snapshot at or before an offset, with its offset."""
    offsets = [offset for offset in list_snapshots(disk, folder) if offset <= at_or_before]
    if not offsets:
        return None
    return offsets[-1], disk.read_file(snapshot_path(folder, offsets[-1]))


def write_snapshot(disk: Disk, folder: str, offset: int, data: bytes) -> None:
    """Writes a snapshot without a sync: the log syncs it before the recovery point reaches it.

    A loss of power before that may leave half a file (KAFKA-9892). Its CRC shows that, and an older
    snapshot is used.
    """
    disk.write_file(snapshot_path(folder, offset), data, sync=False)


def delete_snapshot(disk: Disk, folder: str, offset: int) -> None:
    """Removes one snapshot."""
    disk.remove(snapshot_path(folder, offset))


def delete_snapshots_after(disk: Disk, folder: str, offset: int) -> None:
    """Removes snapshots above an offset: a crash has cut the log below them."""
    for other in list_snapshots(disk, folder):
        if other > offset:
            delete_snapshot(disk, folder, other)


def delete_snapshots_before(disk: Disk, folder: str, offset: int) -> None:
    """Removes old snapshots, except the newest at or before `offset`."""
    older = [other for other in list_snapshots(disk, folder) if other <= offset]
    for other in older[:-1]:
        delete_snapshot(disk, folder, other)
