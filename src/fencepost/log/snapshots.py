"""The `.snapshot` files of a partition's folder; the partition encodes their content.

A snapshot is written without a sync: the log syncs it before the recovery point reaches it. A power
loss before that may leave half a file (KAFKA-9892). Its CRC shows that, and an older snapshot is
used.
"""

from __future__ import annotations

from fencepost.base.failures import StorageError
from fencepost.base.seams import Disk
from fencepost.log.durability import Durability
from fencepost.log.names import SNAPSHOT, file_name, offsets_with


class SnapshotFiles:
    """The snapshots of one log, by their offset."""

    __slots__ = ("_disk", "_durability", "_folder")

    def __init__(self, disk: Disk, folder: str, durability: Durability) -> None:
        self._disk = disk
        self._folder = folder
        self._durability = durability

    def _path(self, offset: int) -> str:
        return f"{self._folder}/{file_name(offset, SNAPSHOT)}"

    def offsets(self) -> list[int]:
        """The offsets of all snapshots, ascending."""
        return offsets_with(self._disk.list_dir(self._folder), SNAPSHOT)

    def latest(self, at_or_before: int) -> tuple[int, bytes] | None:
        """The newest snapshot at or before an offset, with its offset."""
        offsets = [offset for offset in self.offsets() if offset <= at_or_before]
        if not offsets:
            return None
        return offsets[-1], self._disk.read_file(self._path(offsets[-1]))

    def write(self, offset: int, data: bytes) -> None:
        """Writes a snapshot, and notes that it must be synced."""
        try:
            self._disk.write_file(self._path(offset), data, sync=False)
        except OSError as problem:
            raise StorageError(
                f"{self._folder}: the snapshot was not written: {problem}"
            ) from problem
        self._durability.note_new_file(self._path(offset))

    def note_from(self, offset: int) -> None:
        """Notes that the snapshots from an offset on must be synced."""
        for other in self.offsets():
            if other >= offset:
                self._durability.note_new_file(self._path(other))

    def delete(self, offset: int) -> None:
        """Removes one snapshot."""
        self._disk.remove(self._path(offset))

    def delete_after(self, offset: int) -> None:
        """Removes snapshots above an offset: a crash has cut the log below them."""
        for other in self.offsets():
            if other > offset:
                self.delete(other)

    def delete_before(self, offset: int) -> None:
        """Removes old snapshots, except the newest at or before `offset`."""
        older = [other for other in self.offsets() if other <= offset]
        for other in older[:-1]:
            self.delete(other)
