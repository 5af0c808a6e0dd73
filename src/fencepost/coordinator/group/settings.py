"""What a user may change about groups, with Kafka's defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fencepost.base import limits

NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 5 * 60 * 1000
"""How long a member that never was in a generation may wait in the join phase. Its client may have
given up and tried again without knowing its id, and each try would leave a member behind. Fixed in
Kafka too."""

RETRY_MS: Final = 1000
"""When to look again at a join phase that could not be ended: nobody had joined, or the disk
refused. A member may say that its rebalance timeout is 0, and must not make us look again and again
without a pause."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of the group coordinator; the comment names each one's config."""

    min_session_timeout_ms: int = 6_000  # group.min.session.timeout.ms
    max_session_timeout_ms: int = 1_800_000  # group.max.session.timeout.ms
    initial_rebalance_delay_ms: int = 3_000  # group.initial.rebalance.delay.ms
    max_size: int = limits.MAX_GROUP_SIZE  # group.max.size
    offset_metadata_max_size: int = limits.MAX_OFFSET_METADATA_BYTES  # offset.metadata.max.bytes
    offsets_retention_ms: int = 7 * 24 * 60 * 60 * 1000  # offsets.retention.minutes
