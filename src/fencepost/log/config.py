"""The settings of a log: topic configs with Kafka's names and defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fencepost.base.limits import MAX_BATCH_BYTES

NEVER_MS: Final = 2**63 - 1
"""Kafka's "no limit": the largest long."""
_DAY_MS: Final = 24 * 60 * 60 * 1000

DELETE: Final = "delete"
COMPACT: Final = "compact"
CREATE_TIME: Final = "CreateTime"
LOG_APPEND_TIME: Final = "LogAppendTime"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """The config of a topic; a change replaces the whole object in `Log.config`."""

    segment_bytes: int = 1024 * 1024 * 1024
    segment_ms: int = 7 * _DAY_MS
    segment_jitter_ms: int = 0
    index_interval_bytes: int = 4096
    segment_index_bytes: int = 10 * 1024 * 1024
    retention_ms: int = 7 * _DAY_MS
    retention_bytes: int = -1
    cleanup_policy: frozenset[str] = frozenset({DELETE})
    delete_retention_ms: int = _DAY_MS
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = NEVER_MS
    max_message_bytes: int = MAX_BATCH_BYTES
    message_timestamp_type: str = CREATE_TIME
    message_timestamp_before_max_ms: int = NEVER_MS
    message_timestamp_after_max_ms: int = 60 * 60 * 1000
    compression_type: str = "producer"

    @property
    def is_compacted(self) -> bool:
        """Whether `cleanup.policy` includes compact."""
        return COMPACT in self.cleanup_policy

    @property
    def is_deleted_from(self) -> bool:
        """Whether `cleanup.policy` includes delete."""
        return DELETE in self.cleanup_policy

    @property
    def is_append_time(self) -> bool:
        """Whether the broker sets the timestamps."""
        return self.message_timestamp_type == LOG_APPEND_TIME
