"""What a topic's config asks of a client's batch, before anybody looks at its producer.

Most of it is answered by the header. What a compacted topic must know of the records has been found
out before (`opening.py`). A short batch that is refused for its times is opened here, to name the
records.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fencepost.base.errors import ErrorCode
from fencepost.log.config import LogConfig
from fencepost.partition.opening import Opening
from fencepost.records.batch import BatchError, SealedBatch
from fencepost.records.opened import open_batch
from fencepost.records.produced import check_timestamps
from fencepost.records.scan import MAX_KEYLESS


class Refused(NamedTuple):
    """The reason for the whole batch and, where single records are at fault, which ones."""

    error: ErrorCode
    message: str
    record_errors: Sequence[tuple[int, str]] = ()


def check_admission(
    batch: SealedBatch, config: LogConfig, now_ms: int, opening: Opening | None
) -> Refused | None:
    """None when the topic takes the batch; its size was checked when it was read."""
    try:
        refused = None if config.is_append_time else _check_times(batch, config, now_ms)
        if refused is None and config.is_compacted:
            assert opening is not None, "a compacted topic has looked at the keys"
            refused = _check_keys(opening)
    except BatchError as problem:
        return Refused(problem.error_code, str(problem))
    return refused


def _check_times(batch: SealedBatch, config: LogConfig, now_ms: int) -> Refused | None:
    before_max_ms = config.message_timestamp_before_max_ms
    after_max_ms = config.message_timestamp_after_max_ms
    try:
        check_timestamps(batch, now_ms, before_max_ms=before_max_ms, after_max_ms=after_max_ms)
    except BatchError as problem:
        # Its producer is told which records are at fault, where that takes no longer than a request
        # may.
        if not Opening(batch, config).open_if_short():
            return Refused(problem.error_code, str(problem))
        wrong = [
            (index, f"The time {record.timestamp_ms} is too far from {now_ms}.")
            for index, record in enumerate(open_batch(batch))
            if not now_ms - before_max_ms <= record.timestamp_ms <= now_ms + after_max_ms
        ]
        return Refused(problem.error_code, str(problem), wrong[:MAX_KEYLESS])
    return None


def _check_keys(opening: Opening) -> Refused | None:
    if opening.problem is not None:
        raise opening.problem
    keyless = [
        (index, "Compacted topic cannot accept message without key.") for index in opening.keyless
    ]
    if not keyless:
        return None
    return Refused(
        ErrorCode.INVALID_RECORD,
        "One or more records have been rejected: a compacted topic needs a key on each.",
        keyless,
    )
