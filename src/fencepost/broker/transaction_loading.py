"""Taking a coordinator partition over: read its log, and finish what the log says is unfinished.

The last checkpoint is read first, then what the log has after it. A short log is read at once. A long one is read over several turns of the loop, so that the node goes on serving;
whoever asks for one of its ids meanwhile is told COORDINATOR_LOAD_IN_PROGRESS. A load that is cancelled, because
the partition was given away or a newer load has begun, stops and leaves nothing behind.

What is found:

- prepared: the outcome is fixed, so its markers are written (again, perhaps) and it is completed;
- open: goes on until its timeout, so that a producer never sees that its coordinator has moved. With
  `transaction.recovery.ongoing=abort` it is aborted as if its time were over;
- expired: tombstoned.
"""

from __future__ import annotations

import logging
from itertools import chain
from typing import TYPE_CHECKING, Final

from fencepost.base.errors import ErrorCode
from fencepost.base.failures import StorageError
from fencepost.broker.transaction_checkpoint import read_checkpoint
from fencepost.broker.transaction_ending import Ending
from fencepost.coordinator.txn.apply import apply, read_entry
from fencepost.coordinator.txn.events import Reply
from fencepost.coordinator.txn.prepare import PREPARED_STATES, markers_of
from fencepost.records.batch import BatchError
from fencepost.records.entry import Entry

if TYPE_CHECKING:
    from collections.abc import Callable

    from fencepost.broker.node import Node
    from fencepost.broker.transaction_partition import CoordinatorPartition

log = logging.getLogger(__name__)

ENTRIES_PER_TURN: Final = 2_000
"""Log entries folded before the loop gets a turn: some 20 ms."""


class Loading:
    """A log that is being read."""

    __slots__ = (
        "_cancelled",
        "_entries",
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
    ) -> None:
        self._node = node
        offset, pairs = read_checkpoint(node.disk, coordinator.partition)
        self._entries = chain(
            (Entry(-1, -1, -1, False, key, value) for key, value in pairs),
            coordinator.partition.entries(offset),
        )
        self._saved = len(pairs)
        self._read = 0
        self._loaded = loaded
        self._skipped = 0
        self._cancelled = False
        self.coordinator = coordinator

    def cancel(self) -> None:
        """Stops before the next entry."""
        self._cancelled = True

    def go_on(self, *, whole: bool = False) -> None:
        """Reads for one turn of the loop, or to the end; calls `loaded` when the end is reached."""
        if self._cancelled:
            return
        try:
            more = self._fold_some()
            while more and whole:
                more = self._fold_some()
        except (StorageError, BatchError) as problem:
            # As in Kafka: what was read is served, rather than nothing.
            log.error(
                "%s could not be read to its end: %s", self.coordinator.partition.name, problem
            )
            more = False
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

    def _fold_some(self) -> bool:
        """Whether there is more."""
        state = self.coordinator.state
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


def finish_prepared(node: Node, coordinator: CoordinatorPartition) -> None:
    """Writes the markers of everything that a load has found prepared."""
    state = coordinator.state
    prepared = [
        markers_of(transactional_id, txn)
        for transactional_id, txn in ((found, state.transactions[found]) for found in state.open)
        if txn.state in PREPARED_STATES
    ]
    for effect in prepared:
        state.pending[effect.transactional_id] = coordinator.partition.log_end_offset
    for effect in prepared:
        Ending(node, coordinator, effect, Reply(ErrorCode.NONE), None).write_markers()
