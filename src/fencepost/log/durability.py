"""Syncs: which part of a log is on the disk, and a sync that another thread may run.

Every sync of a log is made by `PendingSync.run` or one of the three functions below it. If the disk
does not confirm it, they raise SyncError, and `LocalPartitions.sync_failed` ends the process. Only
new files that nothing relies on yet are an exception: they are dropped (`is_temporary`).

`Durability` keeps track of what must reach the disk. Its `prepare_sync` lists the files,
`PendingSync.run` waits for the disk and touches nothing else, and `complete` moves the recovery
point. Files are opened again by name, so a segment may be sealed, compacted or deleted in between:
a deleted file needs no sync, and a compacted one was synced before its swap.
"""

from __future__ import annotations

import contextlib

from fencepost.base.failures import StorageError, SyncError
from fencepost.base.seams import Disk, File
from fencepost.log.names import LOG, SEGMENT_SUFFIXES
from fencepost.log.segment.segment import Segment
from fencepost.log.segment_list import SegmentList


class PendingSync:
    """A prepared sync: everything below `end_offset` is durable after `run`."""

    __slots__ = ("_disk", "_is_temporary", "end_offset", "folders", "number", "paths")

    def __init__(
        self,
        disk: Disk,
        *,
        end_offset: int,
        number: int,
        paths: list[str],
        folders: list[str],
        is_temporary: bool = False,
    ) -> None:
        """`is_temporary`: new files that the caller drops if the disk does not confirm them."""
        self._disk = disk
        self._is_temporary = is_temporary
        self.end_offset = end_offset
        self.number = number
        self.paths = paths
        self.folders = folders

    def run(self) -> None:
        """Syncs the files, then the folders with their names.

        Raises SyncError if the disk does not confirm: do not rely on any of it, and do not retry.
        Raises StorageError if a file cannot be opened: retry later.
        """
        try:
            for path in self.paths:
                self._sync(path)
            for folder in self.folders:
                with contextlib.suppress(FileNotFoundError):  # Deleted in between.
                    sync_names(self._disk, folder)
        except SyncError as problem:
            if self._is_temporary:
                raise StorageError(str(problem)) from problem
            raise

    def _sync(self, path: str) -> None:
        try:
            file = self._disk.open(path)
        except FileNotFoundError:
            return
        except OSError as problem:
            raise StorageError(f"{path} cannot be opened to be synced: {problem}") from problem
        try:
            sync_file(file, path)
        finally:
            file.close()


def sync_file(file: File, path: str) -> None:
    """Syncs a file of a log; SyncError if the disk does not confirm."""
    try:
        file.sync()
    except OSError as problem:
        raise _not_confirmed(path, problem) from problem


def sync_names(disk: Disk, folder: str) -> None:
    """Syncs the names in a folder; SyncError if the disk does not confirm."""
    try:
        disk.sync_dir(folder)
    except FileNotFoundError:
        raise
    except OSError as problem:
        raise _not_confirmed(folder, problem) from problem


def sync_volume(disk: Disk, folder: str) -> bool:
    """Syncs all that was written to the volume of a folder; False if the system cannot do that."""
    try:
        return disk.sync_all(folder)
    except OSError as problem:
        raise _not_confirmed(folder, problem) from problem


def _not_confirmed(path: str, problem: OSError) -> SyncError:
    return SyncError(f"the disk did not confirm a sync of {path}: {problem}")


class Durability:
    """What must reach the disk: the recovery point, and the files that no sync has covered.

    Every change of a file has a number, and a sync covers only changes before it: a file may be
    written again during its sync. The data of the active segment has no number: everything from the
    recovery point on needs a sync.
    """

    __slots__ = (
        "_disk",
        "_folder",
        "_lost_end",
        "_names_noted",
        "_names_synced",
        "_number",
        "_paths",
        "_segment_noted",
        "_segments",
        "_synced",
        "recovery_point",
    )

    def __init__(
        self,
        disk: Disk,
        folder: str,
        segments: SegmentList,
        *,
        recovery_point: int,
        is_known_durable: bool,
    ) -> None:
        self._disk = disk
        self._folder = folder
        self._segments = segments
        end_offset = segments.active.next_offset
        self.recovery_point = min(recovery_point, end_offset)
        """Everything below it was synced."""
        self._lost_end = recovery_point if recovery_point > end_offset else 0
        """The recovery point at the start, if the log ended below it."""
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
        """Whether a sync would have anything to do."""
        return (
            self._segments.active.next_offset > self.recovery_point
            or bool(self._paths)
            or self._names_synced < self._names_noted
        )

    @property
    def saved_recovery_point(self) -> int:
        """The recovery point for the checkpoint file.

        The indexes of a segment that was sealed after the sync are not synced, even if the segment
        ends at the recovery point. So a point inside the active segment is written down as one
        less, which is never the end of that segment.
        """
        active = self._segments.active
        if active.next_offset < self._lost_end:
            return self._lost_end  # The next start must report the loss too.
        if self.recovery_point == active.base_offset and not self.has_segments:
            return self.recovery_point
        return max(0, self.recovery_point - 1)

    # --- changes -------------------------------------------------------------------------------

    def note_file(self, path: str) -> None:
        """Notes that a file was written."""
        self._number += 1
        self._paths[path] = self._number

    def note_new_file(self, path: str) -> None:
        """Notes that a file was created, or replaced as a whole."""
        self.note_file(path)
        self.note_names()

    def note_segment(self, segment: Segment) -> None:
        """Notes all files of a segment; a missing one is skipped by the sync."""
        for suffix in SEGMENT_SUFFIXES:
            self.note_file(segment.path(suffix))
        self.note_names()
        self._segment_noted = self._number

    def note_names(self) -> None:
        """Notes that a file was created, renamed or removed."""
        self._number += 1
        self._names_noted = self._number

    # --- syncs ---------------------------------------------------------------------------------

    def prepare_sync(self) -> PendingSync:
        """The sync that makes everything appended so far durable."""
        active = self._segments.active
        if active.next_offset > self.recovery_point:
            return self._prepare(active.next_offset, [active.path(LOG)])
        return self._prepare(active.next_offset, [])

    def prepare_flush(self) -> PendingSync:
        """The sync that makes the sealed segments durable, without the active one."""
        return self._prepare(self._segments.active.base_offset, [])

    def _prepare(self, end_offset: int, more: list[str]) -> PendingSync:
        aborted = self._segments.active.aborted
        if aborted.is_behind:
            # If this fails, recovery rebuilds the index from the active segment.
            with contextlib.suppress(OSError, StorageError):
                aborted.write_behind()
                self.note_new_file(aborted.path)
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
        """Moves the recovery point after a sync, and forgets the changes that it has covered."""
        self.recovery_point = max(self.recovery_point, pending.end_offset)
        self._synced = max(self._synced, pending.number)
        self._names_synced = max(self._names_synced, pending.number)
        self._paths = {p: number for p, number in self._paths.items() if number > pending.number}
