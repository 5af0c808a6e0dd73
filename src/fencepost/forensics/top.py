"""One frame of `fencepost top`: what the transactions of a cluster do now.

A frame asks every coordinator for its ids and states (ListTransactions), describes the open ones,
looks for pinned partitions (`pins.py`), and reads the records that coordinators have written since
the last frame (`history/transaction_log.py`). All of it works on Apache Kafka. Without READ on
`__transaction_state`, rates and latencies are unknown and everything else is shown.

A broker that does not answer is named, and the frame shows what the others say.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from fencepost.client.survey.asking import Missing
from fencepost.client.survey.coordinators import describe_listed, transactions_of
from fencepost.forensics.client_connection import client_in_words
from fencepost.forensics.commit_meter import CommitMeter
from fencepost.forensics.figures import Figure, estimated, exact, unknown
from fencepost.forensics.history.transaction_log import NoTransactionLogError, TransactionLogTail
from fencepost.forensics.holders import OPEN_STATES, now_ms
from fencepost.forensics.listing import age_of
from fencepost.forensics.pins import Pin, find_pins

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fencepost.client.admin import ListedTransaction, TransactionView
    from fencepost.client.blocking import Cluster

MAX_DESCRIBED: Final = 2_000
"""Open transactions that are described in one frame; the oldest of more cannot be told."""

CATCH_UP_SECONDS: Final = 2.0
"""How long a frame reads new records before it says that it is behind."""

RATES: Final = (
    "committed_per_second",
    "aborted_per_second",
    "commit_p50_ms",
    "commit_p99_ms",
    "commit_max_ms",
)
"""The figures of a frame that need the log of the coordinators."""

_LOG: Final = "__transaction_state"
_HERE: Final = "coordinator, here"


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """One open transaction."""

    transactional_id: str
    state: str
    coordinator: int
    producer_id: int
    producer_epoch: int | None
    age_ms: Figure
    left_ms: Figure
    """Until its timeout; the coordinator looks for it only from time to time."""
    partitions: int | None
    client: str | None
    """Client id and host; only fencepost tells."""
    view: TransactionView | None
    """What its coordinator says, if it described it."""


@dataclass(frozen=True, slots=True)
class Frame:
    """What one look has found."""

    taken_at_ms: int
    over_ms: int
    """The time that rates and latencies are about."""
    states: Mapping[str, int]
    committed_per_second: Figure
    aborted_per_second: Figure
    commit_p50_ms: Figure
    commit_p99_ms: Figure
    commit_max_ms: Figure
    open: Sequence[OpenTransaction]
    """The oldest first."""
    open_count: int
    pinned: Sequence[Pin]
    partitions: int
    notes: Sequence[str]
    """What could not be seen, as sentences."""


class Watch:
    """Looks at one cluster, frame after frame."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._meter = CommitMeter()
        self._tail: TransactionLogTail | None = None
        self._no_log = ""
        self._is_behind = False
        self._counted_from = time.monotonic()
        self._begin_tail()

    def _begin_tail(self) -> None:
        try:
            self._tail = TransactionLogTail(self._cluster)
        except NoTransactionLogError as problem:
            self._no_log = str(problem)
        self._counted_from = time.monotonic()

    def look(self) -> Frame:
        """One frame; FencepostError if no broker answers."""
        listed, missing = self._cluster.run(transactions_of(self._cluster.core))
        pins = find_pins(self._cluster)
        opened = [each for each in listed if each.state in OPEN_STATES]
        rates = self._rates()
        described = opened[:MAX_DESCRIBED]
        views = self._cluster.run(describe_listed(self._cluster.core, described))
        taken_at_ms = now_ms()
        notes = [each.reason for each in missing.values()]
        notes += [reason for broker, reason in pins.missing.items() if broker not in missing]
        if pins.unread:
            notes.append(f"{len(pins.unread)} partitions could not be read")
        if len(opened) > len(described):
            notes.append(f"{len(opened) - len(described)} open transactions are not described")
        if self._no_log:
            notes.append(self._no_log)
        if self._is_behind:
            notes.append("more transactions end than this command can read: rates lag behind")
        return Frame(
            taken_at_ms,
            states=Counter(each.state for each in listed),
            open=oldest_first(described, views, taken_at_ms),
            open_count=len(opened),
            pinned=pins.found,
            partitions=pins.partitions,
            notes=notes,
            **rates,
        )

    def _rates(self) -> dict[str, Any]:
        if self._tail is None:
            self._begin_tail()  # The first transaction may have created the topic since.
        if self._tail is None:
            return {"over_ms": 0, **dict.fromkeys(RATES, unknown(self._no_log))}
        self._no_log = ""
        self._read_new(self._tail)
        now = time.monotonic()
        seconds, self._counted_from = now - self._counted_from, now
        ended = self._meter.drain()
        return {
            "over_ms": round(seconds * 1000),
            "committed_per_second": _rate(ended.committed, seconds),
            "aborted_per_second": _rate(ended.aborted, seconds),
            "commit_p50_ms": _latency(ended.commit_ms_at(0.5)),
            "commit_p99_ms": _latency(ended.commit_ms_at(0.99)),
            "commit_max_ms": _latency(ended.commit_ms_at(1.0)),
        }

    def _read_new(self, tail: TransactionLogTail) -> None:
        until = time.monotonic() + CATCH_UP_SECONDS
        while changes := tail.poll(max_wait_ms=0):
            self._meter.add(changes)
            if time.monotonic() >= until:
                self._is_behind = True
                return
        self._is_behind = False


def _rate(count: int, seconds: float) -> Figure:
    return exact(round(count / max(seconds, 0.001), 1), _LOG, "here")


def _latency(value_ms: int | None) -> Figure:
    if value_ms is None:
        return unknown("no commit completed between two looks")
    return exact(value_ms, f"{_LOG}: Prepare to Complete", "coordinator")


def oldest_first(
    opened: Sequence[ListedTransaction],
    views: Mapping[str, TransactionView | Missing],
    at_ms: int,
) -> list[OpenTransaction]:
    """Joins what was listed and described; those that have ended in between are left out."""
    found = []
    for each in opened:
        view = views.get(each.transactional_id)
        if not isinstance(view, Missing) and view is not None and view.state not in OPEN_STATES:
            continue
        found.append(_describe(each, None if isinstance(view, Missing) else view, at_ms))
    return sorted(found, key=lambda one: (-(one.age_ms.value or 0), one.transactional_id))


def _describe(
    listed: ListedTransaction, view: TransactionView | None, at_ms: int
) -> OpenTransaction:
    age = age_of(view, at_ms) or unknown("it has just ended")
    left = unknown("it is decided, and waits for its markers")
    if view is None:
        left = unknown("its coordinator did not describe it")
    elif view.state == "Ongoing":
        left_ms = max(0, view.start_ms + view.timeout_ms - at_ms)
        left = estimated(left_ms, "DescribeTransactions", _HERE)
    return OpenTransaction(
        listed.transactional_id,
        listed.state if view is None else view.state,
        listed.coordinator,
        listed.producer_id,
        None if view is None else view.producer_epoch,
        age,
        left,
        None if view is None else len(view.partitions),
        client_in_words(view),
        view,
    )
