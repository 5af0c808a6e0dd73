"""Keeps what a load must read short: every few thousand records the state itself is written beside its log.

The state of a coordinator is a function of its log, so at any moment the pair (end of the log,
state) may be saved, and a load may begin with it. The file stands for records that are durable:
with `fsync` it is written once they are. It is not synced itself, because nothing is lost with it:
a file that is damaged, or that speaks of more than the log has (the power went, and the end of the
log with it), is deleted, and the log is read from its beginning.

Compaction removes tombstones, and a checkpoint from before a tombstone needs it: without it an id
that has expired would come back, with the state and the epoch that it had at the checkpoint. So the
checkpoint goes before a round of compaction begins, durably, and no older one is written any more.
A new one is saved at once: it is of an offset that the round does not reach. Then fold(log) ==
fold(checkpoint + what is after it) at every moment.
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
"""Records between two checkpoints: as many as there are ids, so that writing stays cheap, but never
so many that a load reads more than 10,000."""

WORTH_SAVING_AT_CLOSE: Final = 500
"""Fewer records are read again in a few milliseconds."""


class CheckpointKeeper:
    """Counts what a load would have to read, and saves the state when it is too much."""

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
        """Rounds of compaction since the load; a state from before the last one is not written any
        more."""
        self._is_maybe_there = True
        """False only when a loss of power cannot bring a checkpoint back either."""
        self.unsaved = 0
        """Records in the log after the last checkpoint."""

    def count(self, records: int) -> None:
        """So many records were appended, or read at load."""
        self.unsaved += records
        if self.unsaved >= LEAST_RECORDS and not self._scheduled and self._is_due():
            self._scheduled = True
            # In a turn of its own: no request should wait for it.
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
        """The log can no longer be read as a whole: from now on the checkpoint is needed, and must not be lost."""
        offset = self._partition.log_end_offset
        data = encode_state(offset, self._state)

        def durable() -> None:
            if self._is_ours():
                self._write(data, sync=True)

        self._runtime.when_durable(self._partition, offset, durable)

    def _is_ours(self) -> bool:
        """Whether the folder still belongs to this node."""
        return not self._partition.closed

    def _write(self, data: bytes, *, sync: bool = False) -> None:
        path = checkpoint_path(self._partition)
        self._is_maybe_there = True
        try:
            self._runtime.disk.write_file(path, data, sync=sync)
        except OSError as problem:
            log.warning("%s was not saved, and the next start takes longer: %s", path, problem)

    def before_compaction(self) -> None:
        """Removes the checkpoint, so that its log may lose tombstones; OSError when that is not certain."""
        self._rounds += 1
        if self._is_maybe_there:
            self._runtime.disk.remove(checkpoint_path(self._partition))
            self._runtime.disk.sync_dir(self._partition.log.folder)
            self._is_maybe_there = False
        self.unsaved = self._partition.log_end_offset - self._partition.log_start_offset
        self.count(0)

    def close(self) -> None:
        """The partition is given away or the node stops: whoever is next should have little to read."""
        if (
            self.unsaved >= WORTH_SAVING_AT_CLOSE
            and self._partition.high_watermark == self._partition.log_end_offset
        ):
            self._write(encode_state(self._partition.log_end_offset, self._state))


def checkpoint_path(partition: Partition) -> str:
    """Beside the segments of the log."""
    return f"{partition.log.folder}/{FILE_NAME}"


def encode_state(offset: int, state: CoordinatorState) -> bytes:
    """The state as the records that would make it."""
    return encode_checkpoint(
        offset,
        (
            (encode_key(transactional_id), encode_value(txn))
            for transactional_id, txn in state.transactions.items()
        ),
    )


def read_checkpoint(disk: Disk, partition: Partition) -> tuple[int, list[tuple[bytes, bytes]]]:
    """Where to begin reading the log, and what stands before that; (0, nothing) without a usable file."""
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
    log.warning("%s does not fit its log and is deleted; the log is read as a whole", path)
    try:
        disk.remove(path)
        disk.sync_dir(partition.log.folder)
    except OSError as problem:
        # It must not come back by a loss of power when the log has grown beyond it.
        raise StorageError(
            f"{path} does not fit its log and cannot be deleted: {problem}"
        ) from problem
    return 0, []
