"""Saves the state of a coordinator partition beside its log, so that a load reads less.

The state is a function of the log, so the pair (end offset, state) can be saved at any moment, and
a load can begin with it. The file stands for durable records: with `fsync` it is written once they
are durable. The file itself is not synced, because nothing is lost with it. If it is damaged, or
its offset is beyond the end of the log (a loss of power took both tails), it is deleted, and the
log is read from its beginning.

Compaction removes tombstones, and a checkpoint from before a tombstone needs it: otherwise an
expired id would come back with the state and epoch of the checkpoint. So the checkpoint is removed
durably before a round of compaction, and no older one is written after that. A new one is saved at
once, at an offset that the round does not reach. So fold(log) == fold(checkpoint + the log after
it) at every moment.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from fencepost.base.failures import StorageError
from fencepost.records.coordinator_checkpoint import (
    FILE_NAME,
    decode_checkpoint,
    encode_checkpoint,
)
from fencepost.records.transaction_log import encode_key, encode_value

if TYPE_CHECKING:
    from fencepost.base.seams import Disk
    from fencepost.broker.runtime import Runtime
    from fencepost.coordinator.txn.apply import CoordinatorState
    from fencepost.partition.partition import Partition

log = logging.getLogger(__name__)

LEAST_RECORDS: Final = 5_000
MOST_RECORDS: Final = 9_000
"""Records between two checkpoints: as many as there are ids, so that writing stays cheap, but few
enough that a load reads at most 10,000."""

WORTH_SAVING_AT_CLOSE: Final = 500
"""Fewer records than this are read in a few milliseconds."""


class CheckpointKeeper:
    """Counts the records that a load would read, and saves the state when they are too many."""

    __slots__ = (
        "_is_maybe_there",
        "_partition",
        "_rounds",
        "_runtime",
        "_scheduled",
        "_state",
        "unsaved",
    )

    def __init__(self, runtime: Runtime, partition: Partition, state: CoordinatorState) -> None:
        self._runtime = runtime
        self._partition = partition
        self._state = state
        self._scheduled = False
        self._rounds = 0
        """Rounds of compaction since the load; a state from before the last one is not written."""
        self._is_maybe_there = True
        """False only when not even a loss of power can bring a checkpoint back."""
        self.unsaved = 0
        """Records in the log after the last checkpoint."""

    def count(self, records: int) -> None:
        """Adds records that were appended; saves the state soon if that is due."""
        self.unsaved += records
        if self.unsaved >= LEAST_RECORDS and not self._scheduled and self._is_due():
            self._scheduled = True
            # In another turn, so that no request waits for it.
            self._runtime.call_later(0, self._save)

    def _is_due(self) -> bool:
        return self.unsaved >= min(len(self._state.transactions), MOST_RECORDS)

    def _save(self) -> None:
        self._scheduled = False
        offset = self._partition.log_end_offset
        if not self._is_ours() or offset == 0:  # A log without records has no folder yet.
            return
        data = encode_state(offset, self._state)
        rounds = self._rounds
        self.unsaved = 0

        def durable() -> None:
            if self._is_ours() and self._rounds == rounds:
                self._write(data)

        self._runtime.when_durable(self._partition, offset, durable)

    def save_durably(self) -> None:
        """Saves and syncs the state: the log is damaged, so the next load needs the checkpoint."""
        offset = self._partition.log_end_offset
        data = encode_state(offset, self._state)

        def durable() -> None:
            if self._is_ours():
                self._write(data, sync=True)

        self._runtime.when_durable(self._partition, offset, durable)

    def _is_ours(self) -> bool:
        """Whether the folder still belongs to this partition."""
        return not self._partition.closed

    def _write(self, data: bytes, *, sync: bool = False) -> None:
        path = checkpoint_path(self._partition)
        self._is_maybe_there = True
        try:
            self._runtime.disk.write_file(path, data, sync=sync)
        except OSError as problem:
            log.warning("%s was not saved; the next start takes longer: %s", path, problem)

    def before_compaction(self) -> None:
        """Removes the checkpoint durably, so that tombstones may go; OSError if that fails."""
        self._rounds += 1
        if self._is_maybe_there:
            self._runtime.disk.remove(checkpoint_path(self._partition))
            self._runtime.disk.sync_dir(self._partition.log.folder)
            self._is_maybe_there = False
        self.unsaved = self._partition.log_end_offset - self._partition.log_start_offset
        self.count(0)

    def close(self) -> None:
        """Saves the state when the partition is given away or the node stops, if worthwhile."""
        if (
            self.unsaved >= WORTH_SAVING_AT_CLOSE
            and self._partition.high_watermark == self._partition.log_end_offset
        ):
            self._write(encode_state(self._partition.log_end_offset, self._state))


def checkpoint_path(partition: Partition) -> str:
    """The path of the checkpoint, beside the segments of the log."""
    return f"{partition.log.folder}/{FILE_NAME}"


def encode_state(offset: int, state: CoordinatorState) -> bytes:
    """The checkpoint of a state: the last record of every id."""
    return encode_checkpoint(
        offset,
        (
            (encode_key(transactional_id), encode_value(txn))
            for transactional_id, txn in state.transactions.items()
        ),
    )


def read_checkpoint(disk: Disk, partition: Partition) -> tuple[int, list[tuple[bytes, bytes]]]:
    """The offset to read the log from, and the records before it; (0, []) without a usable file."""
    path = checkpoint_path(partition)
    if not disk.exists(path):
        return 0, []
    try:
        found = decode_checkpoint(disk.read_file(path))
    except OSError as problem:
        log.warning("%s cannot be read: %s", path, problem)
        return 0, []
    if found is not None and found[0] <= partition.log_end_offset:
        return found
    if found is not None and partition.log.missing:
        # The end of the log was removed. The checkpoint may be all that is left of it.
        return 0, []
    log.warning("%s does not match its log and is deleted; the whole log is read", path)
    try:
        disk.remove(path)
        disk.sync_dir(partition.log.folder)
    except OSError as problem:
        # It must not come back by a loss of power when the log has grown beyond it.
        raise StorageError(
            f"{path} does not match its log and cannot be deleted: {problem}"
        ) from problem
    return 0, []
