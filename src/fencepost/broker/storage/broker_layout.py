"""The data directory as one broker of a cluster uses it; decision 0016 says who writes what.

This broker writes the folders of the partitions that it leads, and `broker-<id>.checkpoint`. It
reads the files of the parent and of the other brokers, and never renames a folder.

When a partition is opened in leader epoch E, the entry with the highest leader epoch counts, of all
files. The file of the last leader is final by then: that broker has released the partition, or is
dead. Its mark of a clean close counts only if its epoch is E - 1, so that no broker can have led
the partition in between, and only if no power was lost since the logs were recovered: a power loss
may take back leader epochs. Otherwise the log is read from the recovery point, which costs only
time. The log start offset is the highest of all entries.

The files of others are read again at the first opening after `refresh`, once for a batch.

All saves write the one file. DeleteRecords saves on the loop; a save in a thread that began before
is then outdated and dropped, as its older log start offsets would replace the new ones.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from fencepost.base.failures import StorageError
from fencepost.base.ids import TopicPartition, topic_id_text
from fencepost.base.seams import Disk
from fencepost.broker.storage.cluster_checkpoints import CLUSTER, broker_file, read_checkpoint
from fencepost.broker.storage.folders import Folders
from fencepost.broker.storage.partition_layout import Save, SavedOffsets
from fencepost.broker.storage.session import is_same_session
from fencepost.partition.partition import Partition
from fencepost.records.broker_checkpoint import (
    BrokerCheckpoint,
    PartitionEntry,
    TopicEntries,
    encode_broker_checkpoint,
    encode_topic,
    newest,
)

log = logging.getLogger(__name__)

NEXT: Final = ".next"
"""Suffix of a checkpoint that is complete but not yet renamed into place."""

Topics = dict[bytes, TopicEntries]


class _Opened(NamedTuple):
    """A partition that this broker has opened, and what was saved about it then."""

    topic_id: bytes
    entry: PartitionEntry


class _View(NamedTuple):
    """What the other processes of the cluster have saved."""

    files: list[BrokerCheckpoint]
    lost_power: bool


@dataclass(slots=True, eq=False)
class BrokerFileSave:
    """A write of the broker's checkpoint, under a temporary name."""

    disk: Disk
    path: str
    topics: Topics
    changed: Collection[bytes]
    blocks: Mapping[bytes, bytes]
    version: int
    encoded: dict[bytes, bytes] = field(default_factory=dict)

    def encode(self) -> bytes:
        """The content of the file; topics that have not changed are not encoded again."""
        for topic_id, topic in self.topics.items():
            block = None if topic_id in self.changed else self.blocks.get(topic_id)
            self.encoded[topic_id] = block or encode_topic(topic_id, topic)
        return encode_broker_checkpoint(self.encoded.values())

    def run(self) -> None:
        """Writes the file under a temporary name."""
        try:
            self.disk.write_file(self.path + NEXT, self.encode(), sync=True)
        except OSError as problem:
            raise StorageError(f"{self.path} cannot be written: {problem}") from problem


class BrokerLayout:
    """One data directory, for one broker of several."""

    def __init__(self, disk: Disk, folder: str, broker_id: int, broker_ids: Iterable[int]) -> None:
        """`broker_ids` are the ids of all brokers of the cluster."""
        self._disk = disk
        self.folder = folder
        self.is_shared = True
        self._folders = Folders(disk, folder)
        self._path: Final = f"{folder}/{broker_file(broker_id)}"
        self._others: Final = [broker_file(each) for each in broker_ids if each != broker_id]
        self._view: _View | None = None
        self._topics: Topics = {}
        """What the file of this broker says, if it is not damaged."""
        self._blocks: dict[bytes, bytes] = {}
        self._opened: dict[TopicPartition, _Opened] = {}
        self._version = 0
        """Rises when the file is written or a partition forgotten: a save that was prepared before
        is outdated."""

    def load(self) -> None:
        """Reads what an earlier process of this broker has saved."""
        name = self._path.rpartition("/")[2]
        try:
            found = read_checkpoint(self._disk, self.folder, name)
        except OSError as problem:
            raise StorageError(f"{self._path} cannot be read: {problem}") from problem
        self._topics = dict(found.topics())
        self._view = None

    def keep_only(self, topic_ids: Collection[bytes]) -> None:
        """Forgets topics that were deleted while this broker was down."""
        if gone := self._topics.keys() - topic_ids:
            self._topics = {each: t for each, t in self._topics.items() if each not in gone}
            self._version += 1

    # -- open -------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Call before a batch of openings: what other brokers have saved is read again."""
        self._view = None

    def _current_view(self) -> _View:
        if self._view is None:
            try:
                names = [CLUSTER, *self._others]
                files = [read_checkpoint(self._disk, self.folder, name) for name in names]
                lost_power = not is_same_session(self._disk, self.folder)
            except OSError as problem:
                # Not to be taken for an absent file: deleted records would come back.
                raise StorageError(
                    f"the checkpoints of the other brokers in {self.folder} cannot be read: "
                    f"{problem}"
                ) from problem
            self._view = _View(files, lost_power)
        return self._view

    @property
    def lost_power(self) -> bool:
        """Whether unsynced writes may have been lost since the logs were last recovered."""
        return self._current_view().lost_power

    def _newest(self, name: TopicPartition, topic_id: bytes) -> PartitionEntry | None:
        index = name.partition
        own = self._topics.get(topic_id)
        found = [file.entry(topic_id, index) for file in self._current_view().files]
        if own is not None:
            found.append(own.partitions.get(index))
        return newest(found)

    def is_new(self, name: TopicPartition, topic_id: bytes) -> bool:
        """Whether a partition has neither saved offsets nor a folder."""
        entry = self._newest(name, topic_id)
        if entry is not None and (entry.recovery_point or entry.log_start_offset):
            return False
        if self._folders.exists(name):
            return False
        self._note_opened(name, topic_id, entry, -1)
        return True

    def folder_of(self, name: TopicPartition) -> str:
        """The path of a partition's folder."""
        return self._folders.path(name)

    def claim(self, name: TopicPartition, topic_id: bytes, *, sync: bool = False) -> str:
        """Creates the folder of a partition if needed; StorageError if it is another topic's."""
        folder = self._folders.path(name)
        owner = self._folders.owner_of(folder, topic_id)
        if owner is None:
            self._folders.create(folder, topic_id, sync=sync)
        elif owner != topic_id:
            # Only the parent renames folders, and it does so before it lets anyone open the new
            # topic. So its rename has failed, and it tries again.
            raise StorageError(
                f"{folder} still belongs to the deleted topic {topic_id_text(owner)}; the parent "
                "tries to remove it"
            )
        return folder

    def saved(self, name: TopicPartition, topic_id: bytes, leader_epoch: int) -> SavedOffsets:
        """The saved offsets of a partition that is about to be opened in a leader epoch."""
        entry = self._newest(name, topic_id)
        self._note_opened(name, topic_id, entry, leader_epoch)
        if entry is None:
            return SavedOffsets(0, 0, 0, is_clean=False)
        return SavedOffsets(
            entry.recovery_point,
            entry.log_start_offset,
            entry.first_dirty_offset,
            entry.is_clean and entry.leader_epoch == leader_epoch - 1 and not self.lost_power,
        )

    def _note_opened(
        self, name: TopicPartition, topic_id: bytes, entry: PartitionEntry | None, epoch: int
    ) -> None:
        found = entry or PartitionEntry(-1, 0, 0, 0, is_clean=False)
        epoch = max(epoch, found.leader_epoch)
        self._opened[name] = _Opened(topic_id, found._replace(leader_epoch=epoch, is_clean=False))

    def delete(self, name: TopicPartition, topic_id: bytes) -> list[str]:
        """Forgets a deleted partition, with its topic; the parent renames its folder."""
        self._opened.pop(name, None)
        if topic_id in self._topics:
            self._topics = {each: t for each, t in self._topics.items() if each != topic_id}
            self._version += 1
        return []

    # -- save -------------------------------------------------------------------------------------

    def _before(self, name: TopicPartition) -> PartitionEntry:
        """What is saved about a partition that is open here."""
        opened = self._opened[name]
        own = self._topics.get(opened.topic_id)
        found = None if own is None else own.partitions.get(name.partition)
        if found is None:
            return opened.entry
        start = max(found.log_start_offset, opened.entry.log_start_offset)
        newer = found if found.leader_epoch >= opened.entry.leader_epoch else opened.entry
        return newer._replace(log_start_offset=start)

    def save_log_starts(self, starts: Mapping[TopicPartition, int], *, sync: bool) -> None:
        """Saves the effect of DeleteRecords, against a crash or, with `sync`, a power loss."""
        changes: dict[TopicPartition, tuple[bytes, PartitionEntry]] = {}
        for name, offset in starts.items():
            before = self._before(name)
            if offset > before.log_start_offset:
                entry = before._replace(log_start_offset=offset, is_clean=False)
                changes[name] = self._opened[name].topic_id, entry
        if not changes:
            return
        save = self._prepare(changes)
        try:
            self._disk.write_file(self._path, save.encode(), sync=sync)
        except OSError as problem:
            raise StorageError(f"{self._path} cannot be written: {problem}") from problem
        self._adopt(save)

    def save_checkpoints(
        self, partitions: Iterable[Partition], *, closed: Collection[Partition] = ()
    ) -> None:
        """Saves the offsets of the logs, and which of them were closed cleanly."""
        save = self.prepare_checkpoints(partitions, sync=True, closed=closed)
        if save is not None:
            save.run()
            self.complete_save(save)
            self.sync_names()

    def record_stop(self, partitions: Collection[Partition], *, settled: bool) -> None:
        """Saves that all partitions of this broker were closed cleanly."""
        self.save_checkpoints((), closed=partitions)

    def prepare_checkpoints(
        self, partitions: Iterable[Partition], *, sync: bool, closed: Collection[Partition] = ()
    ) -> Save | None:
        """The first of three steps of a save; `Save.run` may run in a thread. None if unchanged."""
        changes: dict[TopicPartition, tuple[bytes, PartitionEntry]] = {}
        for is_clean, group in ((False, partitions), (True, closed)):
            for each in group:
                own = self._topics.get(each.topic_id)
                found = None if own is None else own.partitions.get(each.name.partition)
                if found is None and each.log.is_unborn:
                    continue
                entry = self._entry_of(each, found, is_clean=is_clean)
                if entry != found:
                    changes[each.name] = each.topic_id, entry
        return self._prepare(changes) if changes else None

    def _entry_of(
        self, partition: Partition, found: PartitionEntry | None, *, is_clean: bool
    ) -> PartitionEntry:
        if found is None or found.leader_epoch != partition.leader_epoch:
            found = self._before(partition.name)
        opened, start, dirty = partition.log, found.log_start_offset, found.first_dirty_offset
        if not opened.is_start_lost:  # A lost beginning must still be noticed at the next opening.
            start = max(start, opened.log_start_offset)
        if opened.config.is_compacted and opened.first_dirty_offset > 0:
            dirty = opened.first_dirty_offset
        return PartitionEntry(
            partition.leader_epoch, opened.saved_recovery_point, start, dirty, is_clean
        )

    def _prepare(
        self, changes: Mapping[TopicPartition, tuple[bytes, PartitionEntry]]
    ) -> BrokerFileSave:
        changed: dict[bytes, tuple[str, dict[int, PartitionEntry]]] = {}
        for name, (topic_id, entry) in changes.items():
            if topic_id not in changed:
                own = self._topics.get(topic_id)
                changed[topic_id] = name.topic, {} if own is None else dict(own.partitions)
            changed[topic_id][1][name.partition] = entry
        topics = self._topics | {each: TopicEntries(*topic) for each, topic in changed.items()}
        return BrokerFileSave(
            self._disk, self._path, topics, changed.keys(), self._blocks, self._version
        )

    def complete_save(self, save: Save) -> bool:
        """Renames the file into place; False if another save or a deletion came in between."""
        assert isinstance(save, BrokerFileSave), "a layout completes its own saves"
        if save.version != self._version:
            return False
        try:
            self._disk.rename(self._path + NEXT, self._path)
        except OSError as problem:
            raise StorageError(f"{self._path} cannot be replaced: {problem}") from problem
        self._adopt(save)
        return True

    def _adopt(self, save: BrokerFileSave) -> None:
        self._topics, self._blocks = save.topics, save.encoded
        self._version += 1

    def sync_names(self) -> None:
        """Syncs the data directory, so that renames survive a power loss."""
        self._disk.sync_dir(self.folder)
