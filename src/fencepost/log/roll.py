"""Decides when a batch begins a new segment, by Kafka's rules. `Log.roll` begins it."""

from __future__ import annotations

from fencepost.log.config import LogConfig
from fencepost.log.segment.segment import Segment
from fencepost.log.segment.survey import MAX_RELATIVE_OFFSET
from fencepost.records.batch import SealedBatch


def should_roll(active: Segment, config: LogConfig, batch: SealedBatch, now_ms: int) -> bool:
    """Whether the segment is full or too old for the batch; an empty one never is."""
    if active.size_bytes == 0:
        return False
    return (
        active.size_bytes + batch.size_bytes > config.segment_bytes
        or _waited_ms(active, batch, now_ms) > config.segment_ms - config.segment_jitter_ms
        or active.index().is_full(config.segment_index_bytes)
        or batch.base_offset + batch.last_offset_delta - active.base_offset > MAX_RELATIVE_OFFSET
    )


def _waited_ms(active: Segment, batch: SealedBatch, now_ms: int) -> int:
    """The age of the segment by its records' times; by the clock if they have none."""
    first = active.first_timestamp
    if first is None or first < 0:
        return now_ms - active.created_ms
    return batch.max_timestamp - first
