"""Keeps the metadata log short: from time to time a checkpoint of the state replaces its history.

A checkpoint is written and synced, then the log is cut before it. The log is synced first, so it
never ends before the checkpoint that replaces its beginning. A new checkpoint replaces the older
one.

With 20,000 partitions this takes more than a tenth of a second, so most of it runs in a thread:

    on the loop     roll the log, which will be cut there; copy the state
    in a thread     sync the log; encode, write and sync the checkpoint
    on the loop     delete the older segments and checkpoints

Changes in the meantime go to the new segment. A crash in between leaves more than is needed, never
less.
"""

from __future__ import annotations

import logging
from typing import Final

from fencepost.base.failures import CorruptError, StorageError, WireError
from fencepost.base.ids import CLUSTER_METADATA_TOPIC
from fencepost.base.seams import Disk
from fencepost.coordinator.metadata.apply import apply, load
from fencepost.coordinator.metadata.snapshot import frozen, snapshot
from fencepost.coordinator.metadata.state import MetadataState
from fencepost.log.config import NEVER_MS, LogConfig
from fencepost.log.durability import PendingSync
from fencepost.partition.partition import Partition
from fencepost.records.batch import BatchError
from fencepost.records.metadata_checkpoint import (
    checkpoint_name,
    checkpoint_offset,
    decode_checkpoint,
    encode_checkpoint,
)

log = logging.getLogger(__name__)

METADATA_LOG_CONFIG: Final = LogConfig(
    cleanup_policy=frozenset(), retention_ms=-1, segment_ms=NEVER_MS, max_message_bytes=2**31 - 1
)
"""The metadata log has no retention; only checkpoints delete its segments."""

LEAST_RECORDS: Final = 10_000
HISTORY_PER_RECORD: Final = 4
"""A checkpoint is due when the log has this many times the records that its state needs, and at
least `LEAST_RECORDS`."""


class Checkpoint:
    """A checkpoint that a thread writes; it uses a copy of the state."""

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
        """The sync of the log up to the checkpoint."""

    def run(self) -> None:
        """Writes the checkpoint; raises SyncError if the log could not be synced."""
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
        self._due_after_success = LEAST_RECORDS
        self._is_running = False

    def load(self, state: MetadataState, partition: Partition) -> None:
        """Loads the newest checkpoint, and the log after it, into an empty state."""
        offset = max(self._offsets(), default=0)
        if not partition.log_start_offset <= offset <= partition.log_end_offset:
            raise CorruptError(
                f"{self._folder} has records {partition.log_start_offset} to "
                f"{partition.log_end_offset} and a checkpoint at {offset}: records are missing."
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

    def make_due(self) -> None:
        """Makes the next change write a checkpoint."""
        self._due_at = 0

    def prepare_if_due(
        self, state: MetadataState, partition: Partition, now_ms: int
    ) -> Checkpoint | None:
        """Prepares a checkpoint if the log has become long, and if none is being written.

        The caller has to call `complete`, even if writing it failed. Until one succeeds, every
        change tries again: after damage, the next start needs it.
        """
        offset = partition.log_end_offset
        if self._is_running or offset < self._due_at:
            return None
        try:
            partition.log.roll(now_ms)
        except StorageError as problem:
            _warn(problem)
            return None
        self._is_running = True
        self._due_after_success = _next_due(state, offset)
        epoch = partition.leader_epoch
        path = f"{self._folder}/{checkpoint_name(offset, epoch)}"
        sync = partition.log.prepare_sync()
        return Checkpoint(self._disk, path, sync, frozen(state), now_ms, epoch)

    def complete(
        self, checkpoint: Checkpoint, partition: Partition, problem: Exception | None
    ) -> None:
        """Deletes what the checkpoint replaces; after a problem, such as a full disk, nothing."""
        self._is_running = False
        try:
            if problem is not None:
                raise problem
            self._due_at = self._due_after_success
            partition.log.complete_sync(checkpoint.sync)
            partition.log.delete_before(checkpoint.sync.end_offset)
            for each in self._offsets():
                if each < checkpoint.sync.end_offset:
                    self._disk.remove(f"{self._folder}/{self._name_of(each)}")
        except (OSError, StorageError) as refused:
            _warn(refused)


def _warn(problem: Exception) -> None:
    log.warning("cannot shorten the metadata log: %s", problem)


def _next_due(state: MetadataState, offset: int) -> int:
    """The log end offset at which the next checkpoint is due."""
    partitions = sum(len(topic.partitions) for topic in state.topics.values())
    settings = sum(len(each) for each in state.settings.values())
    rules = len(state.acls.rules)
    needed = len(state.brokers) + len(state.topics) + partitions + settings + rules
    return offset + max(LEAST_RECORDS, HISTORY_PER_RECORD * needed)
