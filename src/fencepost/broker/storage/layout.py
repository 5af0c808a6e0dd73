"""What lies beside the partitions in a data directory, in Kafka's own files.

meta.properties                     cluster id, node id, directory id; and the version of our format
.kafka_cleanshutdown                there only after a clean stop
.fencepost-session                  two lines. The boot of the machine in which a start last came to its end: the same one
                                    after a crash means that the page cache survived, and nothing written was lost. And
                                    the durability: `fsync` if all that lies here was synced before it was acknowledged
recovery-point-offset-checkpoint    up to where each log is known to be on the disk
log-start-offset-checkpoint         where each log begins after DeleteRecords
<topic>-<partition>/                the logs, each with the id of its topic in partition.metadata
<topic>-<partition>-stray           a log that no topic of the metadata claims: kept, never served
<topic>-<partition>.<id>-stray      a log of a topic that another one has taken the name of: the same
<topic>-<partition>.<n>-delete      a deleted log whose files are being removed, by this life or the next

The folder of a partition is made with its first batch: one that nobody has written to is known to
the metadata alone.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterable, Mapping
from typing import Final

from fencepost.base.failures import ConfigError, StorageError
from fencepost.base.ids import TopicPartition, topic_id_text
from fencepost.base.seams import Disk
from fencepost.partition.partition import Partition
from fencepost.records.checkpoint import (
    decode_offsets,
    decode_partition_metadata,
    encode_offsets,
    encode_partition_metadata,
)

log = logging.getLogger(__name__)

SESSION: Final = ".fencepost-session"
SYNCED: Final = "fsync"
UNSYNCED: Final = "os"
CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"
RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"
LOG_STARTS: Final = "log-start-offset-checkpoint"
FIRST_DIRTY: Final = "cleaner-offset-checkpoint"
NEXT: Final = ".next"
"""Behind the name of a checkpoint that is complete and not in its place yet."""
PARTITION_METADATA: Final = "partition.metadata"
MAX_NAME_BYTES: Final = 255
"""Of a file or folder, on every file system that matters; topic names are ASCII."""


Offsets = dict[TopicPartition, int]


class Save:
    """Checkpoint files on their way to the disk: `run` blocks, and touches nothing but files of its own."""

    __slots__ = ("_disk", "dirty", "forgotten", "paths", "points")

    def __init__(
        self,
        disk: Disk,
        paths: dict[str, Offsets],
        points: Offsets,
        dirty: Offsets,
        forgotten: int,
    ) -> None:
        self._disk = disk
        self.points = points
        self.dirty = dirty
        self.forgotten = forgotten
        self.paths = paths

    def run(self) -> None:
        for path, offsets in self.paths.items():
            try:
                self._disk.write_file(path + NEXT, encode_offsets(offsets), sync=True)
            except OSError as problem:
                raise StorageError(f"{path} cannot be written: {problem}") from problem


class Layout:
    """One data directory."""

    def __init__(self, disk: Disk, folder: str) -> None:
        self._disk = disk
        self.folder = folder
        self.clean = False
        self.lost_power = True
        """Whether what was written and not synced may be gone."""
        self.is_synced = False
        """Whether all of it was written in fsync mode: then a loss of power took nothing that was
        acknowledged."""
        self._session = ""
        self._is_in_use = False
        self._deleted = 0
        self._recovery_points: Offsets = {}
        self._log_starts: Offsets = {}
        self._first_dirty: Offsets = {}
        self._stale: set[TopicPartition] = set()
        self._forgotten = 0
        """How often a partition was forgotten: a save that was prepared before it still speaks of
        it."""

    def _path(self, name: str) -> str:
        return f"{self.folder}/{name}"

    def load(self) -> None:
        """Reads what a stop left behind.

        Nothing is changed yet: the directory may turn out not to be ours.
        """
        disk = self._disk
        try:
            disk.make_dir(self.folder)
            fresh = not disk.exists(self._path("meta.properties"))
            self.clean = fresh or disk.exists(self._path(CLEAN_SHUTDOWN))
            self._session, self.is_synced = self._read_session()
            self.lost_power = self._session != (disk.session() or None)
        except OSError as problem:
            raise self._unusable(problem) from problem
        self._recovery_points = self._read_offsets(RECOVERY_POINTS)
        self._log_starts = self._read_offsets(LOG_STARTS)
        self._first_dirty = self._read_offsets(FIRST_DIRTY)

    def _read_session(self) -> tuple[str, bool]:
        try:
            text = self._disk.read_file(self._path(SESSION)).decode("ascii", "replace")
        except FileNotFoundError:
            return "", False
        session, _, durability = text.partition("\n")
        return session, durability == SYNCED

    def _write_session(self, session: str, durability: str, *, sync: bool) -> None:
        data = f"{session}\n{durability}".encode("ascii", "replace")
        self._disk.write_file(self._path(SESSION), data, sync=sync)

    def _unusable(self, problem: OSError) -> ConfigError:
        return ConfigError(f"The data directory {self.folder} cannot be used: {problem.strerror}.")

    def _use_up_mark(self, *, sync: bool) -> None:
        """From now on only the end of this life can say that it was a clean one, or that all of it was synced."""
        try:
            if self.is_synced and not sync:
                self._write_session(self._session, UNSYNCED, sync=True)
            self._disk.remove(self._path(CLEAN_SHUTDOWN))
            self._disk.sync_dir(self.folder)
        except OSError as problem:
            raise self._unusable(problem) from problem
        self._is_in_use = True

    def trust_session(self, *, sync: bool) -> None:
        """All that an earlier loss of power can have left behind is settled: the next crash begins from here.

        `sync` says that all logs have been synced, and that nothing will be acknowledged before it
        is. A start that does not come so far leaves the old session in its place, and what it has
        not done is done by the next.
        """
        # Without the file the next start takes the power for lost, and all that is here for written
        # in os mode. In that mode a sync would buy nothing: after a loss of power the session is
        # another one anyway.
        with contextlib.suppress(OSError):
            durability = SYNCED if sync else UNSYNCED
            self._write_session(self._disk.session(), durability, sync=sync)

    def _read_offsets(self, name: str) -> Offsets:
        try:
            return decode_offsets(self._disk.read_file(self._path(name)))
        except FileNotFoundError:
            return {}
        except ValueError as problem:
            # Only an optimisation is lost: the logs are scanned from their beginning.
            log.warning("%s is not readable and is ignored: %s", name, problem)
            self.clean = False
            return {}

    def recovery_point(self, name: TopicPartition) -> int:
        return self._recovery_points.get(name, 0)

    def log_start_offset(self, name: TopicPartition) -> int:
        return self._log_starts.get(name, 0)

    def first_dirty_offset(self, name: TopicPartition) -> int:
        return self._first_dirty.get(name, 0)

    def is_new(self, name: TopicPartition) -> bool:
        """Whether nothing is known of a partition, and no folder has its name."""
        if name in self._recovery_points or name in self._log_starts:
            return False
        try:
            self._disk.list_dir(self._path(str(name)))  # Whoever opens it needs its names next.
        except FileNotFoundError:
            return True
        return False

    def folder_of(self, name: TopicPartition) -> str:
        return self._path(str(name))

    def claim(self, name: TopicPartition, topic_id: bytes, *, sync: bool = False) -> str:
        """The folder of a partition, made now if it is not there; a stranger in its place is moved away.

        With `sync` a loss of power cannot make us forget whose folder it is. A deleted topic's
        folder may come back by such a loss, and without its id it would be taken for that of a new
        topic of the same name.
        """
        if not self._is_in_use:
            self._use_up_mark(sync=sync)
        folder = self._path(str(name))
        marker = f"{folder}/{PARTITION_METADATA}"
        content = encode_partition_metadata(topic_id)
        found = self._owner_of(folder, topic_id, content)
        if found == topic_id:
            return folder
        if found is not None:
            stray = self._stray(folder, found)
            log.warning("%s belongs to a topic of another id; it is kept as %s", folder, stray)
            self._disk.rename(folder, stray)
            self.forget(name)
        if name in self._stale:
            self._forget_for_good()
        if sync or self._disk.exists(folder):
            self._disk.make_dir(folder)
            self._disk.write_file(marker, content, sync=sync)
        else:
            # In a new folder a half-written file is as good as none, and a rename would double the
            # cost of a first write.
            self._disk.make_dir(folder)
            file = self._disk.open(marker, create=True)
            try:
                file.append((content,))
            finally:
                file.close()
        return folder

    def _stray(self, folder: str, topic_id: bytes | None) -> str:
        """A name for a folder that is set aside; one like it may have been set aside before."""
        mark = "" if topic_id is None else f".{topic_id_text(topic_id)}"
        name, number = _beside(folder, f"{mark}-stray"), 1
        while self._disk.exists(name):
            number += 1
            name = _beside(folder, f"{mark}.{number}-stray")
        return name

    def _owner_of(self, folder: str, expected: bytes, content: bytes) -> bytes | None:
        """The id of the topic that a folder belongs to; None when it does not say.

        `content` is what it says when it belongs to whom we expect: nearly always, and then it need
        not be understood.
        """
        try:
            self._disk.list_dir(folder)  # Whoever opens the log needs its names next.
            data = self._disk.read_file(f"{folder}/{PARTITION_METADATA}")
            return expected if data == content else decode_partition_metadata(data)
        except (FileNotFoundError, ValueError):
            return None

    def deleted_folders(self) -> list[str]:
        """What earlier lives have deleted and not removed."""
        try:
            names = self._disk.list_dir(self.folder)
        except OSError as problem:
            log.warning("what was deleted earlier stays until the next start: %s", problem)
            return []
        return [self._path(name) for name in names if name.endswith("-delete")]

    def set_aside_strays(self, known: Iterable[TopicPartition]) -> None:
        """Renames folders of logs that no topic claims: nothing is served from them, nothing is lost."""
        wanted = {str(name) for name in known}
        for entry in self._disk.list_dir(self.folder):
            folder = self._path(entry)
            marker = f"{folder}/{PARTITION_METADATA}"
            if entry in wanted or entry.endswith(("-stray", "-delete")):
                continue
            if not self._disk.exists(marker):
                continue
            stray = self._stray(folder, None)
            log.warning("no topic claims %s; it is kept as %s", folder, stray)
            self._disk.rename(folder, stray)

    def delete(self, name: TopicPartition) -> list[str]:
        """Takes a partition's folder out of the way in one step; what is to be removed now, at leisure."""
        self.forget(name)
        folder = self._path(str(name))
        if not self._disk.exists(folder):
            return []  # Nobody has ever written to it.
        while True:
            self._deleted += 1
            doomed = _beside(folder, f".{self._deleted}-delete")
            if not self._disk.exists(doomed):
                break
        self._disk.rename(folder, doomed)
        return [doomed]

    def forget(self, name: TopicPartition) -> None:
        """The log is gone.

        The files still speak of it, until they are written anew or the name is used again.
        """
        for offsets in (self._recovery_points, self._log_starts, self._first_dirty):
            if offsets.pop(name, None) is not None:
                self._stale.add(name)
        self._forgotten += 1

    def _forget_for_good(self) -> None:
        """Before a new log takes a name: the offsets of the old one would cut it, or leave it unread after a crash."""
        for file, offsets in (
            (RECOVERY_POINTS, self._recovery_points),
            (LOG_STARTS, self._log_starts),
            (FIRST_DIRTY, self._first_dirty),
        ):
            if self._disk.exists(self._path(file)):
                self._write_offsets(file, offsets, sync=True)
        self._stale.clear()

    def save_log_starts(self, starts: Mapping[TopicPartition, int], *, sync: bool) -> None:
        """DeleteRecords: what was deleted does not come back after a crash, or with `sync` after a loss of power."""
        later = {n: offset for n, offset in starts.items() if offset > self.log_start_offset(n)}
        if later:
            self._save_log_starts({**self._log_starts, **later}, sync=sync)

    def _save_log_starts(self, starts: Offsets, *, sync: bool) -> None:
        if starts != self._log_starts:
            self._write_offsets(LOG_STARTS, starts, sync=sync)
            self._log_starts = starts

    def save_checkpoints(self, partitions: Iterable[Partition]) -> None:
        """Writes down what the logs know to be durable; a stale checkpoint only costs time."""
        save = self.prepare_checkpoints(partitions, sync=True)
        if save is not None:
            save.run()
            self.complete_save(save)
            self.sync_names()

    def prepare_checkpoints(self, partitions: Iterable[Partition], *, sync: bool) -> Save | None:
        """The same in steps, the long one of which may run in a thread; None when there is nothing new.

        Log start offsets are written here and now: DeleteRecords writes the same file.
        """
        partitions = list(partitions)
        # A log that could not be opened keeps what is known of it.
        points = self._recovery_points | {
            p.name: point
            for p in partitions
            if (point := p.log.saved_recovery_point) > 0 or p.name in self._recovery_points
        }
        starts = self._log_starts | {
            p.name: p.log.log_start_offset
            for p in partitions
            # A start that was lost stays noticeable.
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
        return Save(self._disk, paths, points, dirty, self._forgotten) if paths else None

    def complete_save(self, save: Save) -> bool:
        """Puts the files in their places; False when a partition was deleted meanwhile, of which they speak."""
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
        """Blocks until the names of all files are on the disk."""
        self._disk.sync_dir(self.folder)

    def _write_offsets(self, name: str, offsets: Offsets, *, sync: bool) -> None:
        try:
            self._disk.write_file(self._path(name), encode_offsets(offsets), sync=sync)
        except OSError as problem:
            raise StorageError(f"{name} cannot be written: {problem}") from problem

    def mark_clean(self) -> None:
        """The last write of a clean stop."""
        text = json.dumps({"version": 0, "brokerEpoch": -1})
        self._disk.write_file(self._path(CLEAN_SHUTDOWN), text.encode("ascii"), sync=True)


def _beside(folder: str, suffix: str) -> str:
    """The folder's name with something behind it, cut where it would be longer than a name may be."""
    parent, _, name = folder.rpartition("/")
    return f"{parent}/{name[: MAX_NAME_BYTES - len(suffix)]}{suffix}"
