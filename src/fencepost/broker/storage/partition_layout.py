"""What opening, saving and closing partitions needs from a data directory.

`Layout` is the directory of a single broker, which owns all of it, and of the parent of a cluster.
`BrokerLayout` is the same directory as one broker of a cluster uses it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple, Protocol

from fencepost.base.ids import TopicPartition
from fencepost.partition.partition import Partition


class SavedOffsets(NamedTuple):
    """What was saved about a log before it is opened."""

    recovery_point: int
    log_start_offset: int
    first_dirty_offset: int
    is_clean: bool
    """Whether its last leader closed it cleanly, and no broker has led it since."""


class Save(Protocol):
    """A prepared write of checkpoint files."""

    def run(self) -> None:
        """Writes the files under temporary names; blocks, and touches nothing else."""
        ...


class PartitionLayout(Protocol):
    """A data directory, as `PartitionStore`, `Flusher` and DeleteRecords use it."""

    folder: str
    is_shared: bool
    """Whether other processes lead partitions of this directory, too."""

    @property
    def lost_power(self) -> bool:
        """Whether unsynced writes may have been lost since the logs were last recovered."""
        ...

    def refresh(self) -> None:
        """Call before a batch of openings: what other brokers have saved is read again."""
        ...

    def is_new(self, name: TopicPartition, topic_id: bytes) -> bool:
        """Whether a partition has neither saved offsets nor a folder."""
        ...

    def folder_of(self, name: TopicPartition) -> str:
        """The path of a partition's folder."""
        ...

    def claim(self, name: TopicPartition, topic_id: bytes, *, sync: bool = False) -> str:
        """Creates the folder of a partition if needed, and makes sure that it is this topic's."""
        ...

    def saved(self, name: TopicPartition, topic_id: bytes, leader_epoch: int) -> SavedOffsets:
        """The saved offsets of a partition that is about to be opened in a leader epoch."""
        ...

    def save_log_starts(self, starts: Mapping[TopicPartition, int], *, sync: bool) -> None:
        """Saves the effect of DeleteRecords; StorageError if it is not saved."""
        ...

    def prepare_checkpoints(
        self, partitions: Iterable[Partition], *, sync: bool, closed: Collection[Partition] = ()
    ) -> Save | None:
        """The first of three steps of a save; `Save.run` may run in a thread. None if unchanged.

        `closed` are partitions that were closed cleanly and are led elsewhere from now on.
        """
        ...

    def complete_save(self, save: Save) -> bool:
        """Renames the files into place; False if they are outdated, so a new save is needed."""
        ...

    def sync_names(self) -> None:
        """Syncs the data directory, so that renames survive a power loss."""
        ...

    def save_checkpoints(
        self, partitions: Iterable[Partition], *, closed: Collection[Partition] = ()
    ) -> None:
        """The three steps at once, synced."""
        ...

    def delete(self, name: TopicPartition, topic_id: bytes) -> list[str]:
        """Forgets a deleted partition; returns the folders to remove in the background."""
        ...

    def record_stop(self, partitions: Collection[Partition], *, settled: bool) -> None:
        """Saves that these partitions, all that were open, were closed cleanly.

        `settled` is whether this start has settled what the last stop left.
        """
        ...
