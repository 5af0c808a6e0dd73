"""What a topic's config requires of a client's batch; checked before its producer.

`opening.py` has checked the records before, and knows their times and which of them have no key. If
`record.validation.enable` is off, only the header is checked. A short batch with a wrong time is
opened here, to name the records with that time. The order is Kafka's: records that cannot be read,
wrong times, missing keys.
"""

from __future__ import annotations

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import NO_TIMESTAMP
from fencepost.base.limits import MAX_RECORD_ERRORS
from fencepost.base.refusal import Refusal
from fencepost.log.config import LogConfig
from fencepost.partition.opening import RECORDS_PER_STEP, SHORT_BYTES, Opening
from fencepost.records.batch import BatchError, SealedBatch
from fencepost.records.opened import open_batch
from fencepost.records.produced import check_timestamps


def check_admission(
    batch: SealedBatch, config: LogConfig, now_ms: int, opening: Opening | None
) -> Refusal | None:
    """Checks a batch against its topic's config; the size was checked when the batch was read."""
    if opening is not None and opening.refusal is not None:
        return opening.refusal
    if not config.is_append_time:
        # The base timestamp of a header is the oldest if the first record is.
        oldest_ms, newest_ms = batch.base_timestamp, batch.max_timestamp
        if opening is not None and not batch.is_append_time:
            oldest_ms, newest_ms = opening.oldest_ms, opening.newest_ms
        refusal = check_timestamps(
            oldest_ms,
            newest_ms,
            now_ms,
            before_max_ms=config.message_timestamp_before_max_ms,
            after_max_ms=config.message_timestamp_after_max_ms,
        )
        if refusal is not None:
            return _name_records(refusal, batch, config, now_ms)
    if config.is_compacted:
        assert opening is not None, "a compacted topic has read the keys"
        return _check_keys(opening)
    return None


def _name_records(refusal: Refusal, batch: SealedBatch, config: LogConfig, now_ms: int) -> Refusal:
    """Adds the records with a wrong time, if the batch is short enough to be opened at once."""
    if batch.record_count > RECORDS_PER_STEP:
        return refusal
    oldest_ms = now_ms - config.message_timestamp_before_max_ms
    newest_ms = now_ms + config.message_timestamp_after_max_ms
    try:
        records = open_batch(batch, max_bytes=SHORT_BYTES)
    except BatchError:  # Larger than that, or its records have not been checked.
        return refusal
    wrong = [
        (index, f"The time {record.timestamp_ms} is too far from {now_ms}.")
        for index, record in enumerate(records)
        if record.timestamp_ms != NO_TIMESTAMP and not oldest_ms <= record.timestamp_ms <= newest_ms
    ]
    return Refusal(refusal.error, refusal.message, wrong[:MAX_RECORD_ERRORS])


def _check_keys(opening: Opening) -> Refusal | None:
    keyless = [
        (index, "Compacted topic cannot accept message without key.") for index in opening.keyless
    ]
    if not keyless:
        return None
    return Refusal(
        ErrorCode.INVALID_RECORD,
        "One or more records have been rejected: a compacted topic needs a key on each.",
        keyless,
    )
