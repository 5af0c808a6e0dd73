"""What became of each batch: the receipts of a sink, and the sinks of a query.

A sink adds one receipt per finished batch and keeps the last `RECEIPTS_KEPT`. A batch that failed
has none: the query's exception says what happened to it.

`Progress` knows the id of a query and not its sinks, so every history is registered here under the
ids of the queries that wrote with it. The register holds weak references: it keeps no sink alive.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

if TYPE_CHECKING:
    from fencepost.base.ids import TopicPartition
    from fencepost.client.writer import Written
    from fencepost.spark.ledger.rule import Verdict
    from fencepost.spark.ways.accounts import Account

RECEIPTS_KEPT: Final = 100
"""How many batches a sink remembers: an hour of batches that take half a minute each."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """The outcome of one batch."""

    batch_id: int
    verdict: Verdict
    account: Account | None = None
    """What was acknowledged; None for a drained batch."""
    open_ms: int = 0
    """How long the transaction was open before its end was requested."""
    parts: Mapping[str, Account] = field(default_factory=dict)
    """What each DataFrame of the batch wrote, by topic; `*` if its rows name the topic."""
    attempts: int = 1
    """How often the rows were written, the last time included; 0 for a drained batch."""
    commit_ms: int | None = None
    """How long EndTxn took, and the search for the outcome if its answer was lost; None if there
    was nothing to commit."""
    began_ms: int = 0
    """When the sink began with the batch, in milliseconds since 1970."""
    ended_ms: int = 0
    query_id: str = ""
    run_id: str = ""

    @property
    def rows(self) -> int:
        """How many rows were written."""
        return 0 if self.account is None else self.account.rows

    @property
    def partitions(self) -> Mapping[TopicPartition, Written]:
        """What was written to each partition."""
        return {} if self.account is None else self.account.partitions

    @property
    def retries(self) -> int:
        """How many attempts failed before the one that succeeded."""
        return max(0, self.attempts - 1)


def now_ms() -> int:
    """The time for receipts."""
    return time.time_ns() // 1_000_000


class ReceiptHistory:
    """The receipts of one sink. Other threads may read it while batches are written."""

    def __init__(self) -> None:
        self._receipts: deque[tuple[int, Receipt]] = deque(maxlen=RECEIPTS_KEPT)
        self._lock = threading.Lock()

    def add(self, receipt: Receipt) -> None:
        """Adds the receipt of the last batch."""
        with self._lock:
            self._receipts.append((next(_numbers), receipt))
        _register(receipt.query_id, self)

    def snapshot(self) -> tuple[Receipt, ...]:
        """All receipts that are kept, oldest first."""
        with self._lock:
            return tuple(receipt for _, receipt in self._receipts)

    def numbered(self) -> list[tuple[int, Receipt]]:
        """The same, each with its number in this process."""
        with self._lock:
            return list(self._receipts)


_numbers: Final = itertools.count(1)
_histories: Final[dict[str, WeakSet[ReceiptHistory]]] = {}
_register_lock: Final = threading.Lock()


def _register(query_id: str, history: ReceiptHistory) -> None:
    with _register_lock:
        if query_id not in _histories:
            for known in [known for known, left in _histories.items() if not left]:
                del _histories[known]
            _histories[query_id] = WeakSet()
        _histories[query_id].add(history)


def receipts_of(query_id: str, after: int = 0) -> list[tuple[int, Receipt]]:
    """The receipts of all sinks of a query in this process, oldest first, each with its number.

    `after` is the number of the last one that the caller has seen.
    """
    with _register_lock:
        found = list(_histories.get(query_id, ()))
    return sorted(
        (
            (number, receipt)
            for history in found
            for number, receipt in history.numbered()
            if number > after and receipt.query_id == query_id
        ),
        key=lambda pair: pair[0],
    )
