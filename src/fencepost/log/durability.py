"""A sync as a value that another thread may run.

`Log.prepare_sync` lists the files that must reach the disk. `PendingSync.run` waits for the disk
and touches nothing else. `Log.complete_sync` moves the recovery point. Files are opened again by
name, so a segment may be sealed, compacted or deleted meanwhile: a deleted file needs no sync, and
a compacted one was synced before its swap.
"""

from __future__ import annotations

from fencepost.base.failures import StorageError, SyncError
from fencepost.base.seams import Disk
from fencepost.log.names import SEGMENT_SUFFIXES
from fencepost.log.segment.segment import Segment


class PendingSync:
    """A prepared sync: everything below `end_offset` is durable after `run`."""

    __slots__ = ("_disk", "end_offset", "folders", "number", "paths")

    def __init__(
        self,
        disk: Disk,
        *,
        end_offset: int,
        number: int,
        paths: list[str],
        folders: list[str],
    ) -> None:
        self._disk = disk
        self.end_offset = end_offset
        self.number = number
        self.paths = paths
        self.folders = folders

    def run(self) -> None:
        """Syncs the files, then the folders with their names.

        Raises SyncError if the disk does not confirm: do not rely on any of it, and do not retry.
        Raises StorageError if a file cannot be opened: retry later.
        """
        for path in self.paths:
            self._sync_file(path)
        for folder in self.folders:
            try:
                self._disk.sync_dir(folder)
            except FileNotFoundError:
                pass  # Deleted meanwhile.
            except OSError as problem:
                raise _not_confirmed(folder, problem) from problem

    def _sync_file(self, path: str) -> None:
        try:
            file = self._disk.open(path)
        except FileNotFoundError:
            return
        except OSError as problem:
            raise StorageError(f"{path} cannot be opened to be synced: {problem}") from problem
        try:
            file.sync()
        except OSError as problem:
            raise _not_confirmed(path, problem) from problem
        finally:
            file.close()


def _not_confirmed(path: str, problem: OSError) -> SyncError:
    return SyncError(f"the disk did not confirm a sync of {path}: {problem}")


class Unsynced:
    """The files of a log's folder that were not synced, besides the active segment's data.

    Every change has a number, and a sync covers only changes before it: a file may be written again
    during its sync.
    """

    __slots__ = (
        "_disk",
        "_folder",
        "_names_noted",
        "_names_synced",
        "_number",
        "_paths",
        "_segment_noted",
        "_synced",
    )

    def __init__(self, disk: Disk, folder: str, *, is_known_durable: bool) -> None:
        self._disk = disk
        self._folder = folder
        self._paths: dict[str, int] = {}
        self._number = 1
        self._names_noted = 1
        self._names_synced = 1 if is_known_durable else 0
        self._segment_noted = 0
        self._synced = 0

    @property
    def has_segments(self) -> bool:
        """Whether a sealed segment and its indexes were not synced yet."""
        return self._segment_noted > self._synced

    @property
    def is_pending(self) -> bool:
        """Whether there are changes that no sync has covered."""
        return bool(self._paths) or self._names_synced < self._names_noted

    def add(self, path: str) -> None:
        """Notes that a file was written."""
        self._number += 1
        self._paths[path] = self._number

    def add_segment(self, segment: Segment) -> None:
        """Notes all files of a segment; a missing one is skipped by the sync."""
        for suffix in SEGMENT_SUFFIXES:
            self.add(segment.path(suffix))
        self.names_changed()
        self._segment_noted = self._number

    def names_changed(self) -> None:
        """Notes that a file was created, renamed or removed."""
        self._number += 1
        self._names_noted = self._number

    def prepare(self, end_offset: int, more: list[str]) -> PendingSync:
        """Prepares a sync of all noted changes and of `more`."""
        folders: list[str] = []
        if self._names_synced < self._names_noted:
            folders.append(self._folder)
            parent = self._folder.rpartition("/")[0]
            if self._names_synced == 0 and parent:
                folders.append(parent)  # The folder itself may be new.
        return PendingSync(
            self._disk,
            end_offset=end_offset,
            number=self._number,
            paths=[*self._paths, *more],
            folders=folders,
        )

    def complete(self, pending: PendingSync) -> None:
        """Forgets the changes that a sync has covered."""
        self._synced = max(self._synced, pending.number)
        self._names_synced = max(self._names_synced, pending.number)
        self._paths = {p: number for p, number in self._paths.items() if number > pending.number}
