"""Taking a coordinator partition over: read its log, and finish what the log says is unfinished.

The last checkpoint is read first, then what the log has after it. A short log is read at once. A
long one is read over several turns of the loop, so that the node goes on serving; whoever asks for
one of its ids meanwhile is told COORDINATOR_LOAD_IN_PROGRESS. A load that is cancelled, because the
partition was given away or a newer load has begun, stops and leaves nothing behind.

A log that cannot be read as a whole is not served. Behind a missing record an id would come back
with an older epoch, and a producer that was fenced could write again; or a commit that was decided
would be forgotten. So its ids are answered COORDINATOR_NOT_AVAILABLE (`Transactions.refused`),
which clients retry until their own timeout: none of them draws a wrong conclusion. What lies before
the checkpoint is not needed, and may be damaged. A disk that fails to read is tried again.

What is found otherwise:

- prepared: the outcome is fixed, so its markers are written (again, perhaps) and it is completed;
- open: goes on until its timeout, so that a producer never sees that its coordinator has moved.
  With `transaction.recovery.ongoing=abort` it is aborted as if its time were over;
- expired: tombstoned.
"""

from __future__ import annotations

import logging
from itertools import chain
from typing import TYPE_CHECKING, Final

from fencepost.base.errors import ErrorCode
from fencepost.base.failures import StorageError
from fencepost.base.ids import TRANSACTION_STATE_TOPIC
from fencepost.broker.transactions.checkpoint import read_checkpoint
from fencepost.broker.transactions.ending import Ending
from fencepost.coordinator.txn.apply import apply, read_entry
from fencepost.coordinator.txn.events import Reply
from fencepost.coordinator.txn.prepare import PREPARED_STATES, markers_of
from fencepost.records.batch import BatchError
from fencepost.records.entry import Entry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fencepost.broker.node import Node
    from fencepost.broker.transactions.partition import CoordinatorPartition
    from fencepost.partition.partition import Partition

log = logging.getLogger(__name__)

ENTRIES_PER_TURN: Final = 2_000
"""Log entries folded before the loop gets a turn: some 20 ms."""

RETRY_LOAD_MS: Final = 5_000
"""Pause before a log is read again that the disk failed to read."""


class Loading:
    """A log that is being read."""

    __slots__ = (
        "_cancelled",
        "_entries",
        "_failed",
        "_loaded",
        "_node",
        "_read",
        "_saved",
        "_skipped",
        "coordinator",
    )

    def __init__(
        self,
        node: Node,
        coordinator: CoordinatorPartition,
        loaded: Callable[[Loading], None],
        failed: Callable[[Loading, Exception], None],
    ) -> None:
        self._node = node
        self._entries: Iterator[Entry] | None = None
        self._saved = 0
        self._read = 0
        self._loaded = loaded
        self._failed = failed
        self._skipped = 0
        self._cancelled = False
        self.coordinator = coordinator

    def cancel(self) -> None:
        """Stops before the next entry."""
        self._cancelled = True

    def go_on(self, *, whole: bool = False) -> None:
        """Reads for one turn of the loop, or to the end; calls `loaded` when the end is reached, or `failed`."""
        if self._cancelled:
            return
        try:
            more = self._fold_some()
            while more and whole:
                more = self._fold_some()
        except (StorageError, BatchError) as problem:
            self._failed(self, problem)
            return
        if more:
            self._node.call_later(0, self.go_on)
            return
        if self._skipped:
            log.warning(
                "%s: %d records could not be understood and were left out",
                self.coordinator.partition.name,
                self._skipped,
            )
        self.coordinator.checkpoint.count(self._read - self._saved)
        self._loaded(self)

    def _begin(self) -> Iterator[Entry]:
        partition = self.coordinator.partition
        offset, pairs = read_checkpoint(self._node.disk, partition)
        self._saved = len(pairs)
        saved = (Entry(-1, -1, -1, False, key, value) for key, value in pairs)
        return chain(saved, partition.whole_entries(offset))

    def _fold_some(self) -> bool:
        """Whether there is more."""
        state = self.coordinator.state
        if self._entries is None:
            self._entries = self._begin()
        for count, entry in enumerate(self._entries, start=1):
            self._read += 1
            record = read_entry(entry)
            if record is None:
                self._skipped += 1
            else:
                apply(state, record)
            if count == ENTRIES_PER_TURN:
                return True
        return False


def not_served(node: Node, partition: Partition, problem: Exception) -> str:
    """What an operator must know of a coordinator partition with damage."""
    name = partition.name
    if name.topic == TRANSACTION_STATE_TOPIC:
        kept, risk, fate = (
            "transactional ids",
            "one of them could come back at an older epoch, or a commit be forgotten",
            "their open transactions are aborted, and their producers are fenced",
        )
    else:
        kept, risk, fate = (
            "consumer groups",
            "their committed offsets could go back",
            "groups go on from the newest offsets that can be read",
        )
    return (
        f"{name} is damaged and not served: {problem}. Its {kept} get "
        f"COORDINATOR_NOT_AVAILABLE, because {risk}. Nothing "
        "was removed, and everything else is served. Stop the broker and put the file back from "
        "a copy. Without a copy, "
        f"accept the loss with `fencepost repair {node.config.data} {name}`: {fate}."
    )


def finish_prepared(node: Node, coordinator: CoordinatorPartition) -> None:
    """Writes the markers of everything that a load has found prepared."""
    state = coordinator.state
    prepared = [
        markers_of(transactional_id, txn)
        for transactional_id, txn in ((found, state.transactions[found]) for found in state.open)
        if txn.state in PREPARED_STATES
    ]
    for effect in prepared:
        coordinator.pending[effect.transactional_id] = coordinator.partition.log_end_offset
    for effect in prepared:
        Ending(node, coordinator, effect, Reply(ErrorCode.NONE), None).write_markers()
