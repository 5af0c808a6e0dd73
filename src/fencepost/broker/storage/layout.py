"""The files and folders of a data directory; most are Kafka's own.

meta.properties                     cluster id, node id, directory id, and the version of our format
.kafka_cleanshutdown                exists only after a clean stop
.fencepost-session                  two lines: the boot id of the last completed start, and `fsync`
                                    if all data was synced before it was acknowledged. The same boot
                                    id after a crash means that no write was lost: the page cache
                                    survived
recovery-point-offset-checkpoint    the offset below which each log is known to be on the disk
log-start-offset-checkpoint         the first offset of each log after DeleteRecords
cleaner-offset-checkpoint           the first offset of each log that is not compacted yet
cluster.checkpoint, broker-<id>.checkpoint   the same three offsets, while several brokers use the
                                    directory (`cluster_checkpoints.py`)
<topic>-<partition>/                a log, with its topic id in partition.metadata
<topic>-<partition>-stray           a log without a topic in the metadata: kept, never served
<topic>-<partition>.<id>-stray      a log of an older topic of the same name: kept, never served
<topic>-<partition>.<n>-delete      a deleted log whose files are still to be removed

The folder of a partition is created with its first batch. A partition that was never written to
exists only in the metadata log.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from fencepost.base.failures import ConfigError, StorageError
from fencepost.base.ids import CLUSTER_METADATA_TOPIC, ZERO_TOPIC_ID, TopicPartition
from fencepost.base.seams import Disk
from fencepost.broker.storage.cluster_checkpoints import (
    CLUSTER,
    ClusterCheckpoints,
    KnownPartition,
    broker_files,
    remove_files,
)
from fencepost.broker.storage.folders import DELETED, PARTITION_METADATA, STRAY, Folders
from fencepost.broker.storage.partition_layout import Save, SavedOffsets
from fencepost.broker.storage.session import SYNCED, UNSYNCED, read_session, write_session
from fencepost.log.durability import sync_names
from fencepost.partition.partition import Partition
from fencepost.records.broker_checkpoint import PartitionEntry
from fencepost.records.text_files import decode_offsets, encode_offsets

log = logging.getLogger(__name__)

CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"
RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"
LOG_STARTS: Final = "log-start-offset-checkpoint"
FIRST_DIRTY: Final = "cleaner-offset-checkpoint"
NEXT: Final = ".next"
"""Suffix of a checkpoint that is complete but not yet renamed into place."""
METADATA_LOG: Final = TopicPartition(CLUSTER_METADATA_TOPIC, 0)

Offsets = dict[TopicPartition, int]


@dataclass(slots=True, eq=False)
class OffsetFilesSave:
    """A write of Kafka's checkpoint files, under temporary names."""

    disk: Disk
    paths: dict[str, Offsets]
    points: Offsets
    dirty: Offsets
    forgotten: int

    def run(self) -> None:
        """Writes the files under temporary names."""
        for path, offsets in self.paths.items():
            try:
                self.disk.write_file(path + NEXT, encode_offsets(offsets), sync=True)
            except OSError as problem:
                raise StorageError(f"{path} cannot be written: {problem}") from problem


class Layout:
    """One data directory."""

    def __init__(self, disk: Disk, folder: str) -> None:
        self._disk = disk
        self.folder = folder
        self.is_shared = False
        self.clean = False
        self.lost_power = True
        """Whether unsynced writes may have been lost."""
        self.is_synced = False
        """Whether all data was written in fsync mode: then a power loss lost no acknowledged
        record."""
        self.is_all_closed = True
        """False while other processes have logs open here."""
        self._session = ""
        self._is_in_use = False
        self._folders = Folders(disk, folder)
        self._recovery_points: Offsets = {}
        self._log_starts: Offsets = {}
        self._first_dirty: Offsets = {}
        self._cluster = ClusterCheckpoints()
        """What several brokers have saved, until it is merged."""
        self._closed: set[TopicPartition] = set()
        """Logs that the brokers of a cluster closed cleanly before one of them was killed."""
        self._stale: set[TopicPartition] = set()
        self._forgotten = 0
        """Rises when offsets are dropped or merged: a save that was prepared before is outdated."""

    @property
    def may_disagree(self) -> bool:
        """Whether each log may have lost a different tail, so that a start has to compare them."""
        return self.lost_power and not self.is_synced and not self.clean

    def _path(self, name: str) -> str:
        return f"{self.folder}/{name}"

    def load(self) -> None:
        """Reads the state of the last stop; changes nothing, as the directory may not be ours."""
        disk = self._disk
        try:
            disk.make_dir(self.folder)
            fresh = not disk.exists(self._path("meta.properties"))
            self.clean = fresh or disk.exists(self._path(CLEAN_SHUTDOWN))
            self._session, self.is_synced = read_session(disk, self.folder)
            self.lost_power = self._session != (disk.session() or None)
            self._cluster = ClusterCheckpoints.read(disk, self.folder)
        except OSError as problem:
            raise self._unusable(problem) from problem
        self._recovery_points = self._read_offsets(RECOVERY_POINTS)
        self._log_starts = self._read_offsets(LOG_STARTS)
        self._first_dirty = self._read_offsets(FIRST_DIRTY)
        if self._cluster.has_base:
            self._drop_all_but_metadata()

    def _drop_all_but_metadata(self) -> None:
        """Kafka's checkpoints may name older topics: they count again once they are written."""
        for _, offsets in self._offset_files():
            for name in [each for each in offsets if each != METADATA_LOG]:
                del offsets[name]

    def _unusable(self, problem: OSError) -> ConfigError:
        return ConfigError(f"The data directory {self.folder} cannot be used: {problem.strerror}.")

    def _use_up_mark(self, *, sync: bool) -> None:
        """Removes the marks of a clean stop and of fsync mode; this process may set them again."""
        try:
            if self.is_synced and not sync:
                write_session(self._disk, self.folder, self._session, UNSYNCED, sync=True)
            self._disk.remove(self._path(CLEAN_SHUTDOWN))
            sync_names(self._disk, self.folder)
        except OSError as problem:
            raise self._unusable(problem) from problem
        self._is_in_use = True

    def trust_session(self, *, sync: bool) -> None:
        """Records that recovery is complete: a later start compares its boot id with this one.

        `sync` means that all logs are synced, and that later records are synced before they are
        acknowledged. A start that fails earlier leaves the old session, and the next start repeats
        its work.
        """
        # Without the file, the next start assumes a power loss in os mode. In os mode a sync of the
        # file would gain nothing: after a power loss the boot id differs anyway.
        with contextlib.suppress(OSError):
            durability = SYNCED if sync else UNSYNCED
            boot_id = self._disk.session()
            write_session(self._disk, self.folder, boot_id, durability, sync=sync)

    def _read_offsets(self, name: str) -> Offsets:
        try:
            return decode_offsets(self._disk.read_file(self._path(name)))
        except FileNotFoundError:
            return {}
        except ValueError as problem:
            # Only time is lost: recovery reads the logs from their beginning.
            log.warning("%s cannot be decoded and is ignored: %s", name, problem)
            self.clean = False
            return {}

    def recovery_point(self, name: TopicPartition) -> int:
        """The saved recovery point of a partition."""
        return self._recovery_points.get(name, 0)

    def log_start_offset(self, name: TopicPartition) -> int:
        """The saved log start offset of a partition."""
        return self._log_starts.get(name, 0)

    def first_dirty_offset(self, name: TopicPartition) -> int:
        """The saved first offset that is not compacted yet."""
        return self._first_dirty.get(name, 0)

    def saved(self, name: TopicPartition, topic_id: bytes, leader_epoch: int) -> SavedOffsets:
        """The saved offsets of a partition that is about to be opened in a leader epoch."""
        if self._cluster.exists and (entry := self._cluster.entry(topic_id, name.partition)):
            is_clean = self.clean or self._counts(entry, leader_epoch - 1)
            return SavedOffsets(*entry[1:4], is_clean)
        return SavedOffsets(
            self.recovery_point(name),
            self.log_start_offset(name),
            self.first_dirty_offset(name),
            self.clean or name in self._closed,
        )

    def saved_of_folder(self, name: TopicPartition) -> SavedOffsets:
        """The saved offsets of the log in a partition's folder, for tools: it is not opened."""
        owner = self._folders.owner_of(self.folder_of(name))
        return self.saved(name, owner or ZERO_TOPIC_ID, -1)

    def _counts(self, entry: PartitionEntry, last_epoch: int) -> bool:
        """Whether a log was closed cleanly in the last epoch in which it had a leader.

        Not after a power loss, which may have taken back leader epochs.
        """
        return entry.is_clean and entry.leader_epoch == last_epoch and not self.lost_power

    @property
    def has_cluster_files(self) -> bool:
        """Whether several brokers used the directory last, and their checkpoints are not merged."""
        return self._cluster.exists

    def merge(self, known: Mapping[TopicPartition, KnownPartition]) -> None:
        """Moves what several brokers have saved into Kafka's checkpoints, for these partitions.

        A clean close counts if it was in the last epoch of a partition: before epochs are raised.
        A crash on the way leaves the files of the brokers or Kafka's, each complete.
        """
        if not self._cluster.exists:
            return
        entries = self._merged(known)
        self._fill(entries)
        for file, offsets in self._offset_files():
            self._write_offsets(file, offsets, sync=True)
        remove_files(self._disk, self.folder, [CLUSTER])  # From here on Kafka's count.
        remove_files(self._disk, self.folder, broker_files(self._disk, self.folder))
        self._cluster = ClusterCheckpoints()
        self._forgotten += 1
        self._closed = {name for name, entry in entries.items() if entry.is_clean}

    def _merged(
        self, known: Mapping[TopicPartition, KnownPartition]
    ) -> dict[TopicPartition, PartitionEntry]:
        """The newest offsets of every partition, as of its last epoch."""
        merged: dict[TopicPartition, PartitionEntry] = {}
        for name, (topic_id, last_epoch) in known.items():
            saved = self.saved(name, topic_id, last_epoch + 1)
            if any(saved):
                merged[name] = PartitionEntry(last_epoch, *saved)
        return merged

    def _fill(self, entries: Mapping[TopicPartition, PartitionEntry]) -> None:
        """Adds offsets, which are written with the next save at the latest."""
        for name, (_, point, start, dirty, _) in entries.items():
            for offsets, offset in (
                (self._recovery_points, point),
                (self._log_starts, start),
                (self._first_dirty, dirty),
            ):
                if offset > 0:
                    offsets[name] = offset

    def _offset_files(self) -> tuple[tuple[str, Offsets], ...]:
        return (
            (RECOVERY_POINTS, self._recovery_points),
            (LOG_STARTS, self._log_starts),
            (FIRST_DIRTY, self._first_dirty),
        )

    def refresh(self) -> None:
        """Nothing to read again: no other broker writes here."""

    def is_new(self, name: TopicPartition, topic_id: bytes) -> bool:
        """Whether a partition has no checkpoint entry and no folder."""
        if name in self._stale:
            # A new topic of an old name gets its folder later, but the next start finds it now.
            self._write_without_stale()
        if name in self._recovery_points or name in self._log_starts:
            return False
        return not self._folders.exists(name)

    def folder_of(self, name: TopicPartition) -> str:
        """The path of a partition's folder."""
        return self._folders.path(name)

    def claim(self, name: TopicPartition, topic_id: bytes, *, sync: bool = False) -> str:
        """Creates the folder of a partition if needed; the folder of another topic is set aside.

        With `sync` the topic id survives a power loss. Such a loss can bring back the folder of
        a deleted topic, and without its id a new topic of the same name would adopt it.
        """
        if not self._is_in_use:
            self._use_up_mark(sync=sync)
        folder = self._folders.path(name)
        found = self._folders.owner_of(folder, topic_id)
        if found == topic_id:
            return folder
        if found is not None:
            stray = self._folders.set_aside(folder, found)
            log.warning("%s belongs to another topic id and is kept as %s", folder, stray)
            self.forget(name)
        if name in self._stale:
            self._write_without_stale()
        self._folders.create(folder, topic_id, sync=sync)
        return folder

    def deleted_folders(self) -> list[str]:
        """Folders of deleted partitions that earlier processes did not remove."""
        try:
            names = self._disk.list_dir(self.folder)
        except OSError as problem:
            log.warning("folders of deleted partitions stay until the next start: %s", problem)
            return []
        return [self._path(name) for name in names if name.endswith(DELETED)]

    def set_aside_strays(self, known: Iterable[TopicPartition]) -> None:
        """Renames the folders of logs without a topic: they are kept and never served."""
        wanted = {str(name) for name in known}
        for entry in self._disk.list_dir(self.folder):
            folder = self._path(entry)
            marker = f"{folder}/{PARTITION_METADATA}"
            if entry in wanted or entry.endswith((STRAY, DELETED)):
                continue
            if not self._disk.exists(marker):
                continue
            stray = self._folders.set_aside(folder, None)
            log.warning("%s belongs to no topic and is kept as %s", folder, stray)

    def delete(self, name: TopicPartition, topic_id: bytes) -> list[str]:
        """Renames a partition's folder; returns the folders to remove in the background."""
        self.forget(name)
        folder = self._path(str(name))
        if not self._disk.exists(folder):
            return []  # It was never written to.
        return [self._folders.mark_deleted(folder)]

    def forget(self, name: TopicPartition) -> None:
        """Drops a deleted log's offsets; the files keep them until they are written again."""
        for _, offsets in self._offset_files():
            if offsets.pop(name, None) is not None:
                self._stale.add(name)
        self._closed.discard(name)
        self._forgotten += 1

    def forget_others(self, known: Iterable[TopicPartition]) -> None:
        """Drops the offsets of logs without a topic: an earlier process has deleted them.

        A new topic of such a name would count what it has not synced as synced.
        """
        kept = {METADATA_LOG, *known}
        names = {name for _, offsets in self._offset_files() for name in offsets}
        for name in names - kept:
            self.forget(name)

    def _write_without_stale(self) -> None:
        """Rewrites the files before a name is reused: old offsets would truncate the new log."""
        for file, offsets in self._offset_files():
            if self._disk.exists(self._path(file)):
                self._write_offsets(file, offsets, sync=True)
        self._stale.clear()

    def save_log_starts(self, starts: Mapping[TopicPartition, int], *, sync: bool) -> None:
        """Saves the effect of DeleteRecords, against a crash or, with `sync`, a power loss."""
        later = {n: offset for n, offset in starts.items() if offset > self.log_start_offset(n)}
        if later:
            self._save_log_starts({**self._log_starts, **later}, sync=sync)

    def _save_log_starts(self, starts: Offsets, *, sync: bool) -> None:
        if starts != self._log_starts:
            self._write_offsets(LOG_STARTS, starts, sync=sync)
            self._log_starts = starts

    def save_checkpoints(
        self, partitions: Iterable[Partition], *, closed: Collection[Partition] = ()
    ) -> None:
        """Saves the offsets of the logs; an outdated checkpoint only costs time at a start."""
        save = self.prepare_checkpoints(partitions, sync=True, closed=closed)
        if save is not None:
            save.run()
            self.complete_save(save)
            self.sync_names()

    def prepare_checkpoints(
        self, partitions: Iterable[Partition], *, sync: bool, closed: Collection[Partition] = ()
    ) -> Save | None:
        """The first of three steps of a save; `Save.run` may run in a thread. None if unchanged.

        Log start offsets are written at once: DeleteRecords writes the same file.
        """
        partitions = [*partitions, *closed]
        # A log that could not be opened keeps its saved offsets.
        points = self._recovery_points | {
            p.name: point
            for p in partitions
            if (point := p.log.saved_recovery_point) > 0 or p.name in self._recovery_points
        }
        starts = self._log_starts | {
            p.name: p.log.log_start_offset
            for p in partitions
            # A lost beginning must still be noticed at the next start.
            if p.log.log_start_offset > 0 and not p.log.is_start_lost
        }
        dirty = self._first_dirty | {
            p.name: p.log.first_dirty_offset
            for p in partitions
            if p.log.config.is_compacted and p.log.first_dirty_offset > 0
        }
        self._save_log_starts(starts, sync=sync)
        paths: dict[str, Offsets] = {}
        if points != self._recovery_points:
            paths[self._path(RECOVERY_POINTS)] = points
        if dirty != self._first_dirty:
            paths[self._path(FIRST_DIRTY)] = dirty
        return OffsetFilesSave(self._disk, paths, points, dirty, self._forgotten) if paths else None

    def complete_save(self, save: Save) -> bool:
        """Renames the files into place; False if they name a partition deleted in the meantime."""
        assert isinstance(save, OffsetFilesSave), "a layout completes its own saves"
        if save.forgotten != self._forgotten:
            return False
        try:
            for path in save.paths:
                self._disk.rename(path + NEXT, path)
        except OSError as problem:
            raise StorageError(f"{RECOVERY_POINTS} cannot be replaced: {problem}") from problem
        self._recovery_points, self._first_dirty = save.points, save.dirty
        return True

    def sync_names(self) -> None:
        """Syncs the data directory, so that renames survive a power loss."""
        self._disk.sync_dir(self.folder)

    def _write_offsets(self, name: str, offsets: Offsets, *, sync: bool) -> None:
        try:
            self._disk.write_file(self._path(name), encode_offsets(offsets), sync=sync)
        except OSError as problem:
            raise StorageError(f"{name} cannot be written: {problem}") from problem

    def record_stop(self, partitions: Collection[Partition], *, settled: bool) -> None:
        """Saves the offsets of all logs, and marks the stop as clean.

        If the last stop is not settled, and the logs may disagree, there is no mark: the next start
        has to compare them.
        """
        self.save_checkpoints(partitions)
        if not settled and self.may_disagree:
            log.warning("the stop is not recorded as clean: the next start compares the logs")
        elif self.is_all_closed:
            self.mark_clean()

    def mark_clean(self) -> None:
        """Writes the mark of a clean stop, as the last write."""
        text = json.dumps({"version": 0, "brokerEpoch": -1})
        try:
            self._disk.write_file(self._path(CLEAN_SHUTDOWN), text.encode("ascii"), sync=True)
        except OSError:
            with contextlib.suppress(OSError):
                self._disk.remove(self._path(CLEAN_SHUTDOWN))  # Its name may be there, unsynced.
            raise
