"""What a sync has to touch, as a value that may be carried to another thread.

`Log.prepare_sync` notes on the loop which files must reach the disk for everything up to now to survive a
loss of power; `run` does the waiting and touches nothing but the disk; `Log.complete_sync` moves the
recovery point. The files are opened again by name, so that a segment that is sealed, cleaned or deleted
meanwhile does no harm: what was deleted needs no durability, what was cleaned was synced before its swap.
"""

from __future__ import annotations

from fencepost.base.failures import StorageError
from fencepost.base.seams import Disk


class PendingSync:
    """Everything below `end_offset` is durable once `run` has returned."""

    __slots__ = ("_disk", "end_offset", "folders", "generation", "names_version", "paths")

    def __init__(
        self,
        disk: Disk,
        *,
        end_offset: int,
        generation: int,
        names_version: int,
        paths: list[str],
        folders: list[str],
    ) -> None:
        self._disk = disk
        self.end_offset = end_offset
        self.generation = generation
        self.names_version = names_version
        self.paths = paths
        self.folders = folders

    def run(self) -> None:
        """Data first, then the names of the files; StorageError leaves nothing to be relied on."""
        try:
            for path in self.paths:
                self._sync_file(path)
            for folder in self.folders:
                self._disk.sync_dir(folder)
        except OSError as problem:
            raise StorageError(f"the disk did not confirm a sync: {problem}") from problem

    def _sync_file(self, path: str) -> None:
        try:
            file = self._disk.open(path)
        except FileNotFoundError:
            return
        try:
            file.sync()
        finally:
            file.close()
