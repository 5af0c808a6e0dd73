"""Saves the state of a coordinator partition beside its log, so that a load reads less.

Both coordinators do this. The state is a function of the log, so the pair (end offset, state) can
be saved at any moment, and a load can begin with it. The file stands for durable records: with
`fsync` it is written once they are durable. The file itself is not synced, because nothing is lost
with it. If it is damaged, or its offset is beyond the end of the log (a power loss took both
tails), it is deleted, and the log is read from its beginning.

A save copies the state at once, without its values, which never change in place. It is encoded over
several turns of the loop, because a partition may have a hundred thousand offsets.

Compaction removes tombstones, and a checkpoint from before a tombstone needs it: otherwise an
expired id would come back with the state and epoch of the checkpoint. So the checkpoint is removed
durably before a round of compaction, and no older one is written after that. A new one is saved at
once, at an offset that the round does not reach. So fold(log) == fold(checkpoint + the log after
it) at every moment.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from fencepost.base.failures import StorageError
from fencepost.base.seams import Disk
from fencepost.broker.runtime import Runtime
from fencepost.broker.turns import Turn
from fencepost.log.durability import sync_names
from fencepost.partition.partition import Partition
from fencepost.records.coordinator_checkpoint import (
    FILE_NAME,
    Checkpoint,
    CheckpointWriter,
    SavedRecord,
    encode_checkpoint,
    open_checkpoint,
)

log = logging.getLogger(__name__)

LEAST_RECORDS: Final = 500
MOST_RECORDS: Final = 9_000
"""Records between two checkpoints: as many as there are in one, so that writing stays cheap, but
few enough that a load reads little. Of a large state a quarter."""

WORTH_SAVING_AT_CLOSE: Final = 200
"""Fewer records than this are read in a few milliseconds."""

_RECORDS_PER_LOOK: Final = 100
"""Records that are encoded between two looks at the time."""


class CheckpointKeeper:
    """Counts the records that a load would read, and saves the state when they are too many."""

    __slots__ = (
        "_is_closed",
        "_is_maybe_there",
        "_is_saving",
        "_partition",
        "_rounds",
        "_runtime",
        "_size",
        "_view",
        "unsaved",
    )

    def __init__(
        self,
        runtime: Runtime,
        partition: Partition,
        *,
        view: Callable[[], Iterator[SavedRecord]],
        size: Callable[[], int],
    ) -> None:
        """`view` returns the records of the state as it is now, whatever happens to it later.

        `size` is about their number.
        """
        self._runtime = runtime
        self._partition = partition
        self._view = view
        self._size = size
        self._is_saving = False
        self._is_closed = False
        self._rounds = 0
        """Rounds of compaction since the load; a state from before the last one is not written."""
        self._is_maybe_there = True
        """False only when not even a power loss can bring a checkpoint back."""
        self.unsaved = 0
        """Records in the log after the last checkpoint."""

    def count(self, records: int) -> None:
        """Adds records that were appended; saves the state soon if that is due."""
        self.unsaved += records
        if self.unsaved >= LEAST_RECORDS and not self._is_saving and self._is_due():
            self._is_saving = True
            # In another turn, so that no request waits for it.
            self._runtime.call_later(0, self._save)

    def _is_due(self) -> bool:
        size = self._size()
        return self.unsaved >= min(size, max(MOST_RECORDS, size // 4))

    def _save(self) -> None:
        offset = self._partition.log_end_offset
        if not self._is_ours() or offset == 0:  # A log without records has no folder yet.
            self._is_saving = False
            return
        self.unsaved = 0
        self._encode(offset, CheckpointWriter(offset), self._view(), self._rounds)

    def _encode(
        self, offset: int, writer: CheckpointWriter, records: Iterator[SavedRecord], rounds: int
    ) -> None:
        """Encodes for one turn of the loop, and goes on in the next."""
        if not self._is_ours() or self._rounds != rounds:
            self._end_save()
            return
        turn = Turn()
        for number, record in enumerate(records, start=1):
            writer.add(record)
            if number % _RECORDS_PER_LOOK == 0 and turn.is_over():
                again = partial(self._encode, offset, writer, records, rounds)
                self._runtime.call_later(0, again)
                return
        data = writer.finish()
        durable = partial(self._write_if_current, data, rounds)
        self._runtime.when_durable(self._partition, offset, durable)
        self._end_save()

    def _end_save(self) -> None:
        self._is_saving = False
        if self._is_ours():
            self.count(0)  # More may be due by now.

    def _write_if_current(self, data: bytes, rounds: int) -> None:
        if self._is_ours() and self._rounds == rounds:
            self._write(data)

    def save_durably(self) -> None:
        """Saves and syncs the state: the log is damaged, so the next load needs the checkpoint."""
        offset = self._partition.log_end_offset
        data = encode_checkpoint(offset, self._view())
        self._runtime.when_durable(self._partition, offset, partial(self._write_synced, data))

    def _write_synced(self, data: bytes) -> None:
        if self._is_ours():
            self._write(data, sync=True)

    def _is_ours(self) -> bool:
        """Whether the folder still belongs to this partition, and this keeper to the load."""
        return not self._is_closed and not self._partition.closed

    def _write(self, data: bytes, *, sync: bool = False) -> None:
        path = checkpoint_path(self._partition)
        self._is_maybe_there = True
        try:
            self._runtime.disk.write_file(path, data, sync=sync)
        except OSError as problem:
            log.warning("%s was not saved; the next start takes longer: %s", path, problem)

    def before_compaction(self) -> None:
        """Removes the checkpoint durably, so that tombstones may go.

        If that fails, it raises OSError or SyncError.
        """
        self._rounds += 1
        if self._is_maybe_there:
            self._runtime.disk.remove(checkpoint_path(self._partition))
            sync_names(self._runtime.disk, self._partition.log.folder)
            self._is_maybe_there = False
        self.unsaved = self._partition.log_end_offset - self._partition.log_start_offset
        self.count(0)

    def close(self) -> None:
        """Saves the state when the partition is given away or the node stops, if worthwhile.

        Not if the state is so large that reading the rest of the log is faster.
        """
        if (
            self.unsaved >= max(WORTH_SAVING_AT_CLOSE, self._size() // 4)
            and self._partition.high_watermark == self._partition.log_end_offset
        ):
            self._write(encode_checkpoint(self._partition.log_end_offset, self._view()))
        self._is_closed = True


def checkpoint_path(partition: Partition) -> str:
    """The path of the checkpoint, beside the segments of the log."""
    return f"{partition.log.folder}/{FILE_NAME}"


def read_checkpoint(disk: Disk, partition: Partition) -> Checkpoint:
    """The offset to read the log from, and the records before it; 0 without a usable file."""
    nothing = Checkpoint(0, 0, iter(()))
    path = checkpoint_path(partition)
    try:
        found = open_checkpoint(disk.read_file(path))
    except FileNotFoundError:
        return nothing
    except OSError as problem:
        log.warning("%s cannot be read: %s", path, problem)
        return nothing
    if found is not None and found.offset <= partition.log_end_offset:
        return found
    if found is not None and partition.log.missing:
        # The end of the log was removed. The checkpoint may be all that is left of it.
        return nothing
    log.warning("%s does not match its log and is deleted; the whole log is read", path)
    try:
        disk.remove(path)
        sync_names(disk, partition.log.folder)
    except OSError as problem:
        # It must not come back by a power loss when the log has grown beyond it.
        raise StorageError(
            f"{path} does not match its log and cannot be deleted: {problem}"
        ) from problem
    return nothing
