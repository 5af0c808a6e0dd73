"""Loads a coordinator partition: folds its log into a state, over several turns of the loop.

Both coordinators load this way. A short log is read at once. A long one is read over several turns,
so that the node keeps serving; requests for its ids get COORDINATOR_LOAD_IN_PROGRESS until the end.
A load that is cancelled, because the partition was given away or a newer load has begun, stops and
leaves nothing behind. Records that cannot be decoded are skipped, and counted in one warning.

A damaged log is refused as a whole. After a missing record a transactional id would come back with
an older epoch, and a fenced producer could write again; a commit that was decided would be
forgotten; committed offsets would go back. So requests for its ids get COORDINATOR_NOT_AVAILABLE,
which clients retry until their own timeout. A read that the disk fails is repeated after a pause,
from the beginning.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from fencepost.base.failures import CorruptError, StorageError
from fencepost.base.ids import TRANSACTION_STATE_TOPIC
from fencepost.records.batch import BatchError
from fencepost.records.entry import Entry

if TYPE_CHECKING:
    from fencepost.broker.runtime import Timers
    from fencepost.partition.partition import Partition

log = logging.getLogger(__name__)

ENTRIES_PER_TURN: Final = 1_000
"""Log entries folded before the loop gets a turn: 10 to 20 ms."""

RETRY_LOAD_MS: Final = 5_000
"""Pause before a log that the disk failed to read is read again."""


class LogLoader:
    """Reads one log from its beginning to its end, and again if the disk fails."""

    __slots__ = (
        "_apply",
        "_begin",
        "_check",
        "_data",
        "_entries",
        "_is_cancelled",
        "_loaded",
        "_partition",
        "_skipped",
        "_timers",
        "is_refused",
    )

    def __init__(
        self,
        timers: Timers,
        partition: Partition,
        data: str,
        *,
        begin: Callable[[], Iterator[Entry]],
        apply: Callable[[Entry], bool],
        check: Callable[[], bool] | None = None,
        loaded: Callable[[], None],
    ) -> None:
        """`data` is the data directory, for the message about damage.

        `begin` resets the state and returns the entries to fold. `apply` folds one and returns
        False if it cannot be decoded. `check` does some of the work that follows the last entry,
        and returns True while there is more. `loaded` is called at the end.
        """
        self._timers = timers
        self._partition = partition
        self._data = data
        self._begin = begin
        self._apply = apply
        self._check = check
        self._loaded = loaded
        self._entries: Iterator[Entry] | None = None
        self._skipped = 0
        self._is_cancelled = False
        self.is_refused = False
        """Whether the log is damaged, so that its ids are not served."""

    def cancel(self) -> None:
        """Stops before the next entry."""
        self._is_cancelled = True

    def start(self, *, held: bool = False) -> None:
        """Reads for one turn of the loop, and continues in the next until the end.

        With `held` reads all of it now, and raises StorageError or BatchError if that fails.
        """
        if held:
            while self._read_some():
                pass
            self._finish()
        else:
            self._go_on()

    def _go_on(self) -> None:
        if self._is_cancelled:
            return
        try:
            more = self._read_some()
        except (StorageError, BatchError) as problem:
            self._fail(problem)
            return
        if more:
            self._timers.call_later(0, self._go_on)
        else:
            self._finish()

    def _read_some(self) -> bool:
        """Reads for one turn; whether there is more."""
        if self._entries is None:
            self._entries = self._begin()
        for count, entry in enumerate(self._entries, start=1):
            if not self._apply(entry):
                self._skipped += 1
            if count == ENTRIES_PER_TURN:
                return True
        return self._check is not None and self._check()

    def _fail(self, problem: Exception) -> None:
        if isinstance(problem, CorruptError | BatchError):
            self.is_refused = True
            log.error("%s", _refusal(self._partition, self._data, problem))
            return
        log.error("%s cannot be read, and is tried again: %s", self._partition.name, problem)
        self._entries = None
        self._skipped = 0
        self._timers.call_later(RETRY_LOAD_MS, self._go_on)

    def _finish(self) -> None:
        if self._skipped:
            log.warning(
                "%s: %d records could not be decoded and were skipped",
                self._partition.name,
                self._skipped,
            )
        self._entries = iter(())
        self._loaded()


def _refusal(partition: Partition, data: str, problem: Exception) -> str:
    """What an operator needs to know about a damaged coordinator partition."""
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
            "groups continue from the newest offsets that can be read",
        )
    return (
        f"{name} is damaged and not served: {problem}. Its {kept} get "
        f"COORDINATOR_NOT_AVAILABLE, because {risk}. Nothing was removed, and everything else is "
        "served. Stop the broker and put the file back from a copy. Without a copy, accept the "
        f"loss with `fencepost repair {data} {name}`: {fate}."
    )
