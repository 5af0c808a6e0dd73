"""Histories by hand: the records of one id, in a line each."""

from __future__ import annotations

from typing import Any

from fencepost.base.ids import TopicPartition
from fencepost.forensics.history.markers import PartitionFacts, SeenMarker
from fencepost.forensics.history.state_changes import EMPTY, ONGOING, History, StateChange
from fencepost.records.fates import End
from fencepost.records.transaction_log import STATE_NAMES, TransactionMetadata

PARTITION = TopicPartition("__transaction_state", 7)
ORDERS = TopicPartition("orders", 0)
PRODUCER = 40


def metadata(
    state: str,
    at_ms: int,
    epoch: int = 0,
    *,
    producer: int = PRODUCER,
    previous: int | None = None,
    next_id: int = -1,
    timeout_ms: int = 60_000,
    start_ms: int = -1,
    tv: int = 2,
    administrator: str = "",
) -> TransactionMetadata:
    number = STATE_NAMES.index(state)
    if number != EMPTY and start_ms < 0:
        start_ms = at_ms if number == ONGOING else 0
    is_open = state in ("Ongoing", "PrepareCommit", "PrepareAbort")
    return TransactionMetadata(
        producer,
        producer if previous is None else previous,
        next_id,
        epoch,
        -1,
        timeout_ms,
        number,
        {"orders": (0,)} if is_open else {},
        start_ms,
        at_ms,
        tv,
        administrator,
    )


def change(offset: int, found: TransactionMetadata, coordinator_epoch: int = 0) -> StateChange:
    return StateChange(offset, found.last_update_ms, coordinator_epoch, found)


def tombstone(offset: int, at_ms: int) -> StateChange:
    return StateChange(offset, at_ms, 0, None)


def history(changes: list[StateChange], **more: int) -> History:
    given = {"log_start": 0, "log_end": 100, "reached": 100, **more}
    return History("refunds", PARTITION, tuple(changes), **given)


def marker(
    at_ms: int, *, commit: bool, epoch: int = 0, offset: int = 5, partition: TopicPartition = ORDERS
) -> SeenMarker:
    return SeenMarker(partition, PRODUCER, End(commit, offset, at_ms, 0, epoch), 0)


def seen(*markers: SeenMarker, problem: str | None = None) -> list[PartitionFacts]:
    return [PartitionFacts(ORDERS, markers=list(markers), problem=problem)]


def committed(start_ms: int, offset: int = 0) -> list[StateChange]:
    """A TV1 transaction: the epoch stays."""
    return [
        change(offset, metadata("Ongoing", start_ms, start_ms=start_ms, tv=0)),
        change(offset + 1, metadata("PrepareCommit", start_ms + 10, start_ms=start_ms, tv=0)),
        change(offset + 2, metadata("CompleteCommit", start_ms + 12, start_ms=start_ms, tv=0)),
    ]


def lives(count: int) -> list[StateChange]:
    """Transactions that are committed with TV2: every one raises the epoch."""
    found = [change(0, metadata("Empty", 900))]
    for number in range(count):
        at_ms, offset = 1_000 * (number + 1), 3 * number
        start: dict[str, Any] = {"start_ms": at_ms}
        found += [
            change(offset + 1, metadata("Ongoing", at_ms, number, **start)),
            change(offset + 2, metadata("PrepareCommit", at_ms + 10, number + 1, **start)),
            change(offset + 3, metadata("CompleteCommit", at_ms + 12, number + 1, **start)),
        ]
    return found
