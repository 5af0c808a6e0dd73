"""Loads a coordinator partition: folds its log into a state, over several turns of the loop.

Both coordinators load this way. A short log is read at once. A long one is read over several turns,
so that the node keeps serving; requests for its ids get COORDINATOR_LOAD_IN_PROGRESS until the end.
Of several long logs one is read at a time, those of transactions first (`LoadQueue`): a takeover
loads tens of logs at once, and transactions wait for their coordinator.
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
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from time import perf_counter
from typing import TYPE_CHECKING, Final

from fencepost.base.failures import CorruptError, StorageError, SyncError
from fencepost.base.ids import TRANSACTION_STATE_TOPIC
from fencepost.broker.metrics.counters import LoadTimes
from fencepost.broker.turns import Turn
from fencepost.records.batch import BatchError
from fencepost.records.entry import Entry

if TYPE_CHECKING:
    from fencepost.broker.runtime import Runtime, Timers
    from fencepost.partition.partition import Partition

log = logging.getLogger(__name__)

ENTRIES_PER_TURN: Final = 10_000
"""The most entries that are folded before the loop gets a turn; most turns end by time."""
ENTRIES_PER_LOOK: Final = 100
"""Entries that are folded between two looks at the time, and always at once."""

RETRY_LOAD_MS: Final = 5_000
"""Pause before a log that the disk failed to read is read again."""


class LoadQueue:
    """The loads of one node that take more than one turn; one of them goes on in each turn."""

    __slots__ = ("_others", "_timers", "_transactions", "is_running", "times")

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._transactions: deque[LogLoader] = deque()
        self._others: deque[LogLoader] = deque()
        self.is_running = False
        """Whether a load waits for its next turn."""
        self.times: dict[str, LoadTimes] = {}
        """How long loads have taken, by topic."""

    def add(self, loader: LogLoader, *, is_first: bool) -> None:
        """Lets a load continue when its time comes."""
        (self._transactions if is_first else self._others).append(loader)
        if not self.is_running:
            self.is_running = True
            self._timers.call_later(0, self._run)

    def finished(self, topic: str, seconds: float) -> None:
        """A log was read to its end."""
        self.times.setdefault(topic, LoadTimes()).add(seconds)

    def _run(self) -> None:
        queue = self._transactions or self._others
        loader = queue[0]
        try:
            is_over = loader.step(ENTRIES_PER_TURN)
        except BaseException:
            queue.popleft()
            raise
        if is_over:
            queue.popleft()
        self.is_running = bool(self._transactions or self._others)
        if self.is_running:
            self._timers.call_later(0, self._run)


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
        "_queue",
        "_runtime",
        "_skipped",
        "_started_at",
        "is_refused",
    )

    def __init__(
        self,
        runtime: Runtime,
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
        self._runtime = runtime
        self._queue = runtime.loads
        self._partition = partition
        self._data = data
        self._begin = begin
        self._apply = apply
        self._check = check
        self._loaded = loaded
        self._entries: Iterator[Entry] | None = None
        self._skipped = 0
        self._started_at = 0.0
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
        self._started_at = perf_counter()
        if held:
            while self._read_some(ENTRIES_PER_TURN):
                pass
            self._finish()
        else:
            self._go_on()

    def _go_on(self) -> None:
        # While others wait, only a log that is shorter than this is read at once.
        if not self.step(ENTRIES_PER_LOOK if self._queue.is_running else ENTRIES_PER_TURN):
            is_first = self._partition.name.topic == TRANSACTION_STATE_TOPIC
            self._queue.add(self, is_first=is_first)

    def step(self, most: int) -> bool:
        """Reads for one turn, `most` entries; whether this load needs no other turn."""
        if self._is_cancelled:
            return True
        try:
            more = self._read_some(most)
        except SyncError as problem:
            self._runtime.sync_failed(problem)
            return True
        except (StorageError, BatchError) as problem:
            self._fail(problem)
            return True
        if not more:
            self._finish()
        return not more

    def _read_some(self, most: int) -> bool:
        """Reads for one turn; whether there is more."""
        if self._entries is None:
            self._entries = self._begin()
        entries, apply = self._entries, self._apply
        turn, left = Turn(), min(most, ENTRIES_PER_TURN)
        while left > 0:
            wanted = min(left, ENTRIES_PER_LOOK)
            count = 0
            for entry in islice(entries, wanted):
                count += 1
                if not apply(entry):
                    self._skipped += 1
            if count < wanted:
                return self._check is not None and self._check()
            left -= count
            if turn.is_over():
                break
        return True

    def _fail(self, problem: Exception) -> None:
        if isinstance(problem, CorruptError | BatchError):
            self.is_refused = True
            log.error("%s", _refusal(self._partition, self._data, problem))
            return
        log.error("%s cannot be read, and is tried again: %s", self._partition.name, problem)
        self._entries = None
        self._skipped = 0
        self._runtime.call_later(RETRY_LOAD_MS, self._go_on)

    def _finish(self) -> None:
        if self._skipped:
            log.warning(
                "%s: %d records could not be decoded and were skipped",
                self._partition.name,
                self._skipped,
            )
        self._entries = iter(())
        self._queue.finished(self._partition.name.topic, perf_counter() - self._started_at)
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
