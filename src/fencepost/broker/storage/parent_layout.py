"""The data directory as the parent of a cluster uses it.

The parent has the metadata log as its only log, and treats it as a single broker would. Beyond that
it alone changes what all brokers share: the marks of the last stop, the names of folders, and
`cluster.checkpoint`.

    start   load, identity, the metadata log, `merge` and strays as in a single broker
            (after a power loss in `os` mode: all logs are opened, compared and closed)
            `begin_cluster`: the offsets move to `cluster.checkpoint`, then the brokers are started
            `trust_session` once every partition has been opened
    stop    the brokers close their logs and end
            `end_cluster`: the offsets move back to Kafka's checkpoints
            the metadata log is closed, and `record_stop` marks the stop as clean

A crash at any point leaves a directory that the next start, with one broker or several, reads in
full; `cluster_checkpoints.py` says which files count.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping

from fencepost.base.failures import StorageError
from fencepost.base.ids import TopicPartition
from fencepost.base.seams import Disk
from fencepost.broker.storage.cluster_checkpoints import (
    ClusterCheckpoints,
    KnownPartition,
    broker_files,
    remove_files,
    write_base,
)
from fencepost.broker.storage.identity import raise_format
from fencepost.broker.storage.layout import Layout

log = logging.getLogger(__name__)

Known = Mapping[TopicPartition, KnownPartition]


class ParentLayout(Layout):
    """One data directory that several brokers use."""

    def __init__(self, disk: Disk, folder: str) -> None:
        super().__init__(disk, folder)
        self._undeleted: list[tuple[TopicPartition, bytes]] = []
        """Deleted partitions whose folders could not be renamed."""

    def begin_cluster(self, known: Known, *, sync: bool) -> None:
        """Hands the logs over to the brokers, which may open them when this returns.

        `known` is `partitions_to_open` of the metadata. `sync` is whether the cluster runs in fsync
        mode.
        """
        assert not self.has_cluster_files, "the controller has merged them when it was loaded"
        if not self._is_in_use:
            self._use_up_mark(sync=sync)
        if self.clean:
            # Nothing was lost, and nothing has to be recovered. The brokers read it there.
            self.trust_session(sync=sync)
        else:
            self._set_aside_foreign(known)
        entries = self._merged(known)
        raise_format(self._disk, self.folder)
        # Remains of a cluster that has stopped: they would count as soon as the base exists.
        remove_files(self._disk, self.folder, broker_files(self._disk, self.folder))
        write_base(self._disk, self.folder, known, entries)
        self.is_all_closed = False
        self._drop_all_but_metadata()
        self._closed = set()
        self._forgotten += 1
        for file, offsets in self._offset_files():
            self._write_offsets(file, offsets, sync=True)

    def _set_aside_foreign(self, known: Known) -> None:
        """Sets aside folders of deleted topics whose names are in use again."""
        for name, (topic_id, _) in known.items():
            folder = self.folder_of(name)
            owner = self._folders.owner_of(folder, topic_id)
            if owner is not None and owner != topic_id:
                stray = self._folders.set_aside(folder, owner)
                log.warning("%s belongs to another topic id and is kept as %s", folder, stray)

    def end_cluster(self, known: Known) -> bool:
        """Takes the logs back after all brokers have ended; False if one was not closed cleanly.

        `known` is `known_partitions` of the metadata; if no broker has got the state, it is what
        `begin_cluster` got.
        In that case the next start reads the files of the brokers, and trusts the logs that were
        closed.
        """
        try:
            return self._end_cluster(known)
        except (OSError, StorageError) as problem:
            log.error("the checkpoints of the brokers could not be merged: %s", problem)
            return False

    def _end_cluster(self, known: Known) -> bool:
        found = ClusterCheckpoints.read(self._disk, self.folder)
        for name, (topic_id, last_epoch) in known.items():
            entry = found.entry(topic_id, name.partition)
            if entry is not None and entry.is_clean and entry.leader_epoch == last_epoch:
                continue
            if (entry is None or not any(entry[1:4])) and not self._folders.exists(name):
                continue  # It was never written to.
            log.warning("%s was not closed cleanly: the next start reads its end", name)
            return False
        self._cluster = found
        self.merge(known)
        self.is_all_closed = True
        return True

    def delete(self, name: TopicPartition, topic_id: bytes) -> list[str]:
        """Renames the folder of a deleted partition; returns what to remove in the background.

        No broker has the log open now. A folder of another topic stays, and one without a
        readable topic id is kept as a stray, so that no new topic of this name adopts it. If the
        disk fails, `delete_again` does it later: until then no broker opens a new partition of
        this name.
        """
        try:
            return self._delete(name, topic_id)
        except OSError:
            self._undeleted.append((name, topic_id))
            raise

    def delete_again(self) -> list[str]:
        """Tries again what `delete` could not do; returns what to remove in the background."""
        left, self._undeleted = self._undeleted, []
        folders: list[str] = []
        for name, topic_id in left:
            with contextlib.suppress(OSError):
                folders += self.delete(name, topic_id)
        return folders

    def _delete(self, name: TopicPartition, topic_id: bytes) -> list[str]:
        folder = self.folder_of(name)
        if not self._disk.exists(folder):
            return []  # It was never written to.
        owner = self._folders.owner_of(folder, topic_id)
        if owner == topic_id:
            return [self._folders.mark_deleted(folder)]
        if owner is None:
            stray = self._folders.set_aside(folder, None)
            log.warning("%s has no readable topic id and is kept as %s", folder, stray)
        return []
