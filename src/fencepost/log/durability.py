"""What a sync has to touch, as a value that may be carried to another thread.

`Log.prepare_sync` notes on the loop which files must reach the disk for everything up to now to
survive a loss of power; `run` does the waiting and touches nothing but the disk;
`Log.complete_sync` moves the recovery point. The files are opened again by name, so that a segment
that is sealed, cleaned or deleted meanwhile does no harm: what was deleted needs no durability,
what was cleaned was synced before its swap.
"""

from __future__ import annotations

from fencepost.base.failures import StorageError, SyncError
from fencepost.base.seams import Disk
from fencepost.log.names import SEGMENT_SUFFIXES
from fencepost.log.segment import Segment


class PendingSync:
    """Everything below `end_offset` is durable once `run` has returned."""

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
        """Data first, then the names of the files.

        SyncError when the disk does not confirm: nothing is to be relied on, and nobody may try
        again. StorageError when a file could not be opened, which may be tried again.
        """
        for path in self.paths:
            self._sync_file(path)
        for folder in self.folders:
            try:
                self._disk.sync_dir(folder)
            except FileNotFoundError:
                pass  # Deleted meanwhile, with everything in it.
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
    """What of a log's folder has not reached the disk yet, besides the data of the active segment.

    Every note has a number, and a sync covers only notes that are older than itself: a file may be
    written again while it is being synced.
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
        """Whether a sealed segment has not been synced with its indexes."""
        return self._segment_noted > self._synced

    @property
    def is_pending(self) -> bool:
        """Whether there is anything that no sync has covered."""
        return bool(self._paths) or self._names_synced < self._names_noted

    def add(self, path: str) -> None:
        """A file was written."""
        self._number += 1
        self._paths[path] = self._number

    def add_segment(self, segment: Segment) -> None:
        """All files of a segment; one that is not there does no harm."""
        for suffix in SEGMENT_SUFFIXES:
            self.add(segment.path(suffix))
        self.names_changed()
        self._segment_noted = self._number

    def names_changed(self) -> None:
        """A file was created, renamed or removed."""
        self._number += 1
        self._names_noted = self._number

    def prepare(self, end_offset: int, more: list[str]) -> PendingSync:
        """A sync of everything noted so far and of `more`."""
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
        """Forgets what a sync has covered."""
        self._synced = max(self._synced, pending.number)
        self._names_synced = max(self._names_synced, pending.number)
        self._paths = {p: number for p, number in self._paths.items() if number > pending.number}
