"""Keeps the metadata log short: every now and then the state itself takes the place of its history.

A checkpoint is written whole and synced, then the log is cut before it. The log is synced first, so
it can never end before the checkpoint that stands for its beginning. An older checkpoint goes when
a newer one is there.

With 20,000 partitions all of that takes a tenth of a second and more, so most of it happens in a
thread:

    on the loop     the log begins a new segment, where it will be cut; a copy of the state
    in a thread     sync of the log, encoding and writing the checkpoint, sync of the checkpoint
    on the loop     what lies before the new segment goes, and older checkpoints

Changes that come meanwhile are in the new segment. A crash in between leaves more than is needed,
never less.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from fencepost.base.failures import CorruptError, StorageError, WireError
from fencepost.base.ids import CLUSTER_METADATA_TOPIC
from fencepost.coordinator.metadata.apply import apply, load
from fencepost.coordinator.metadata.snapshot import frozen, snapshot
from fencepost.log.config import NEVER_MS, LogConfig
from fencepost.records.batch import BatchError
from fencepost.records.metadata_checkpoint import (
    checkpoint_name,
    checkpoint_offset,
    decode_checkpoint,
    encode_checkpoint,
)

if TYPE_CHECKING:
    from fencepost.base.seams import Disk
    from fencepost.coordinator.metadata.state import MetadataState
    from fencepost.log.durability import PendingSync
    from fencepost.partition.partition import Partition

log = logging.getLogger(__name__)

METADATA_LOG_CONFIG: Final = LogConfig(
    cleanup_policy=frozenset(), retention_ms=-1, segment_ms=NEVER_MS, max_message_bytes=2**31 - 1
)
"""Nothing is ever deleted from the metadata log but what a checkpoint stands for."""

LEAST_RECORDS: Final = 10_000
HISTORY_PER_RECORD: Final = 4
"""A log is worth a checkpoint when it has so many times the records that its state needs, and not
few."""


class Checkpoint:
    """A checkpoint that a thread may write; it touches nothing but the disk."""

    def __init__(
        self,
        disk: Disk,
        path: str,
        sync: PendingSync,
        state: MetadataState,
        now_ms: int,
        epoch: int,
    ) -> None:
        self._disk = disk
        self._path = path
        self._state = state
        self._now_ms = now_ms
        self._epoch = epoch
        self.sync: Final = sync
        """Of the log up to the checkpoint."""

    def run(self) -> None:
        """SyncError when the log could not be synced: nobody knows then what the disk holds."""
        self.sync.run()
        content = encode_checkpoint(
            snapshot(self._state), timestamp_ms=self._now_ms, epoch=self._epoch
        )
        self._disk.write_file(self._path, content, sync=True)


class MetadataCheckpoints:
    """The checkpoints of one metadata log."""

    def __init__(self, disk: Disk, data_folder: str) -> None:
        self._disk = disk
        self._folder: Final = f"{data_folder}/{CLUSTER_METADATA_TOPIC}-0"
        self._due_at = LEAST_RECORDS
        self._is_running = False

    def load(self, state: MetadataState, partition: Partition) -> None:
        """Folds the newest checkpoint and the log behind it into an empty state."""
        offset = max(self._offsets(), default=0)
        if not partition.log_start_offset <= offset <= partition.log_end_offset:
            raise CorruptError(
                f"{self._folder} has records {partition.log_start_offset} to "
                f"{partition.log_end_offset} and a checkpoint at {offset}: a part is missing."
            )
        if offset > 0:
            self._load_checkpoint(state, offset)
        load(state, (entry for entry in partition.entries(offset) if entry.offset >= offset))
        self._due_at = _next_due(state, offset)

    def _load_checkpoint(self, state: MetadataState, offset: int) -> None:
        path = f"{self._folder}/{self._name_of(offset)}"
        try:
            for record in decode_checkpoint(self._disk.read_file(path)):
                apply(state, record)
        except (BatchError, WireError) as problem:
            raise CorruptError(f"{path} cannot be read: {problem}") from problem

    def _offsets(self) -> list[int]:
        found = (checkpoint_offset(name) for name in self._disk.list_dir(self._folder))
        return [offset for offset in found if offset is not None]

    def _name_of(self, offset: int) -> str:
        names = self._disk.list_dir(self._folder)
        return max(name for name in names if checkpoint_offset(name) == offset)

    def prepare_if_due(
        self, state: MetadataState, partition: Partition, now_ms: int
    ) -> Checkpoint | None:
        """A checkpoint that is to be written, when the log has grown far beyond its state; one at a time.

        `complete` has to follow, whether it could be written or not.
        """
        offset = partition.log_end_offset
        if self._is_running or offset < self._due_at:
            return None
        self._due_at = _next_due(state, offset)
        try:
            partition.log.roll(now_ms)
        except StorageError as problem:
            _warn(problem)
            return None
        self._is_running = True
        epoch = partition.leader_epoch
        path = f"{self._folder}/{checkpoint_name(offset, epoch)}"
        sync = partition.log.prepare_sync()
        return Checkpoint(self._disk, path, sync, frozen(state), now_ms, epoch)

    def complete(
        self, checkpoint: Checkpoint, partition: Partition, problem: Exception | None
    ) -> None:
        """The checkpoint is on the disk, unless there was a problem: a full disk only delays it."""
        self._is_running = False
        try:
            if problem is not None:
                raise problem
            partition.log.complete_sync(checkpoint.sync)
            partition.log.delete_before(checkpoint.sync.end_offset)
            for each in self._offsets():
                if each < checkpoint.sync.end_offset:
                    self._disk.remove(f"{self._folder}/{self._name_of(each)}")
        except (OSError, StorageError) as refused:
            _warn(refused)


def _warn(problem: Exception) -> None:
    log.warning("the metadata log stays as long as it is: %s", problem)


def _next_due(state: MetadataState, offset: int) -> int:
    """The log end offset at which the history is long again."""
    partitions = sum(len(topic.partitions) for topic in state.topics.values())
    settings = sum(len(each) for each in state.settings.values())
    needed = len(state.brokers) + len(state.topics) + partitions + settings
    return offset + max(LEAST_RECORDS, HISTORY_PER_RECORD * needed)
