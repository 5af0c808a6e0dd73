"""Histories by hand: the records of one id, in a line each."""

from __future__ import annotations

from fencepost.base.ids import TopicPartition
from fencepost.forensics.history.state_changes import EMPTY, ONGOING, History, StateChange
from fencepost.records.transaction_log import STATE_NAMES, TransactionMetadata

PARTITION = TopicPartition("__transaction_state", 7)
ORDERS = {"orders": (0,)}
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
        ORDERS if is_open else {},
        start_ms,
        at_ms,
        tv,
    )


def change(offset: int, found: TransactionMetadata, coordinator_epoch: int = 0) -> StateChange:
    return StateChange(offset, found.last_update_ms, coordinator_epoch, found)


def tombstone(offset: int, at_ms: int) -> StateChange:
    return StateChange(offset, at_ms, 0, None)


def history(changes: list[StateChange], **more: int) -> History:
    given = {"log_start": 0, "log_end": 100, "reached": 100, **more}
    return History("refunds", PARTITION, tuple(changes), **given)
