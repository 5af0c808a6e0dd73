"""The settings of the group coordinator, with Kafka's defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fencepost.base import limits

RETRY_MS: Final = 1000
"""When to retry ending a join phase that could not be ended, because no member had joined or the
disk refused. A member may send a rebalance timeout of 0, which must not cause a busy loop."""


@dataclass(frozen=True, slots=True)
class GroupCoordinatorSettings:
    """The settings of the group coordinator; the comments name Kafka's settings."""

    min_session_timeout_ms: int = 6_000  # group.min.session.timeout.ms
    max_session_timeout_ms: int = 1_800_000  # group.max.session.timeout.ms
    initial_rebalance_delay_ms: int = 3_000  # group.initial.rebalance.delay.ms
    max_size: int = limits.MAX_GROUP_SIZE  # group.max.size
    offset_metadata_max_size: int = limits.MAX_OFFSET_METADATA_BYTES  # offset.metadata.max.bytes
    offsets_retention_ms: int = 7 * 24 * 60 * 60 * 1000  # offsets.retention.minutes
