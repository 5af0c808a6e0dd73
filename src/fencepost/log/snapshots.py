"""The `.snapshot` files of a partition's folder; what is in them is the partition's business."""

from __future__ import annotations

from fencepost.base.seams import Disk
from fencepost.log.names import SNAPSHOT, file_name, offsets_with


def snapshot_path(folder: str, offset: int) -> str:
    return f"{folder}/{file_name(offset, SNAPSHOT)}"


def list_snapshots(disk: Disk, folder: str) -> list[int]:
    """The offsets of all snapshots, ascending."""
    return offsets_with(disk.list_dir(folder), SNAPSHOT)


def latest_snapshot(disk: Disk, folder: str, at_or_before: int) -> tuple[int, bytes] | None:
    """The newest snapshot that does not lie beyond an offset."""
    offsets = [offset for offset in list_snapshots(disk, folder) if offset <= at_or_before]
    if not offsets:
        return None
    return offsets[-1], disk.read_file(snapshot_path(folder, offsets[-1]))


def write_snapshot(disk: Disk, folder: str, offset: int, data: bytes) -> None:
    """Not synced here: the log does it before its recovery point reaches the offset.

    A loss of power before that may leave half of it (KAFKA-9892); it carries a CRC, and an older
    one is used.
    """
    disk.write_file(snapshot_path(folder, offset), data, sync=False)


def delete_snapshot(disk: Disk, folder: str, offset: int) -> None:
    """One that was damaged or is no longer needed."""
    disk.remove(snapshot_path(folder, offset))


def delete_snapshots_after(disk: Disk, folder: str, offset: int) -> None:
    """Snapshots of a future that a truncation or a crash took away."""
    for other in list_snapshots(disk, folder):
        if other > offset:
            delete_snapshot(disk, folder, other)


def delete_snapshots_before(disk: Disk, folder: str, offset: int) -> None:
    """Old snapshots, all but the newest that lies at or before `offset`."""
    older = [other for other in list_snapshots(disk, folder) if other <= offset]
    for other in older[:-1]:
        delete_snapshot(disk, folder, other)
