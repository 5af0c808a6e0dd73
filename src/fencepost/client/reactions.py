"""The table of error codes and how to react to each.

Theory of operation. Every error code of every API is judged here and nowhere else.
`reaction(api, code)` first looks for an entry of this API and code, then of the code. Everything
else is fatal: an unknown code must not be retried, because its effect is unknown.

  RETRY                send the same request to the same broker after a pause
  REFRESH_METADATA     cached leaders or topics are stale: refresh them, then send the same request
  REFRESH_COORDINATOR  the coordinator has moved: look it up again, then send the same request
  ABORTABLE            the transaction cannot be committed; abort it, and a new one may succeed
  FENCED               this producer is fenced and must stop sending
  FATAL                a retry changes nothing
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from fencepost.base.errors import ErrorCode
from fencepost.wire.apis import ApiKey


class Reaction(Enum):
    """How a client reacts to an error code."""

    SUCCEED = "succeed"
    RETRY = "retry"
    REFRESH_METADATA = "refresh metadata"
    REFRESH_COORDINATOR = "refresh coordinator"
    ABORTABLE = "abortable"
    FENCED = "fenced"
    FATAL = "fatal"

    @property
    def is_retriable(self) -> bool:
        """Whether the same request is sent again."""
        return self in _RETRIABLE


_RETRIABLE: Final = frozenset(
    {Reaction.RETRY, Reaction.REFRESH_METADATA, Reaction.REFRESH_COORDINATOR}
)

REACTIONS: Final[Mapping[int, Reaction]] = {
    ErrorCode.NONE: Reaction.SUCCEED,
    # A transient error; our metadata is up to date.
    ErrorCode.CORRUPT_MESSAGE: Reaction.RETRY,
    ErrorCode.REQUEST_TIMED_OUT: Reaction.RETRY,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: Reaction.RETRY,
    ErrorCode.NOT_ENOUGH_REPLICAS: Reaction.RETRY,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: Reaction.RETRY,
    ErrorCode.CONCURRENT_TRANSACTIONS: Reaction.RETRY,
    ErrorCode.OFFSET_NOT_AVAILABLE: Reaction.RETRY,
    ErrorCode.UNSTABLE_OFFSET_COMMIT: Reaction.RETRY,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: Reaction.RETRY,
    # Another broker may be the leader.
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: Reaction.REFRESH_METADATA,
    ErrorCode.UNKNOWN_TOPIC_ID: Reaction.REFRESH_METADATA,
    ErrorCode.INCONSISTENT_TOPIC_ID: Reaction.REFRESH_METADATA,
    ErrorCode.LEADER_NOT_AVAILABLE: Reaction.REFRESH_METADATA,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: Reaction.REFRESH_METADATA,
    ErrorCode.BROKER_NOT_AVAILABLE: Reaction.REFRESH_METADATA,
    ErrorCode.REPLICA_NOT_AVAILABLE: Reaction.REFRESH_METADATA,
    ErrorCode.NETWORK_EXCEPTION: Reaction.REFRESH_METADATA,
    ErrorCode.NOT_CONTROLLER: Reaction.REFRESH_METADATA,
    ErrorCode.KAFKA_STORAGE_ERROR: Reaction.REFRESH_METADATA,
    ErrorCode.LISTENER_NOT_FOUND: Reaction.REFRESH_METADATA,
    ErrorCode.FENCED_LEADER_EPOCH: Reaction.REFRESH_METADATA,
    ErrorCode.UNKNOWN_LEADER_EPOCH: Reaction.REFRESH_METADATA,
    ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE: Reaction.REFRESH_METADATA,
    ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE: Reaction.REFRESH_METADATA,
    ErrorCode.REBOOTSTRAP_REQUIRED: Reaction.REFRESH_METADATA,
    # Another broker may be the coordinator.
    ErrorCode.COORDINATOR_NOT_AVAILABLE: Reaction.REFRESH_COORDINATOR,
    ErrorCode.NOT_COORDINATOR: Reaction.REFRESH_COORDINATOR,
    # The producer is fenced. Partitions answer 47, coordinators 90 (KIP-588).
    ErrorCode.INVALID_PRODUCER_EPOCH: Reaction.FENCED,
    ErrorCode.PRODUCER_FENCED: Reaction.FENCED,
    # The transaction must be aborted.
    ErrorCode.TRANSACTION_ABORTABLE: Reaction.ABORTABLE,
}
"""Reactions that do not depend on the API. Absent codes, such as 45, 48 and 49, are fatal."""

SPECIAL: Final[Mapping[tuple[ApiKey, int], Reaction]] = {
    # A retry whose first copy did arrive. Kafka answers 0 with the old offsets since 1.0; the code
    # remains in the protocol.
    (ApiKey.PRODUCE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER): Reaction.SUCCEED,
    # The coordinator could not verify or add the partition of a first write just now. Kafka maps
    # these to 19; in every case send the same bytes to the same leader again.
    (ApiKey.PRODUCE, ErrorCode.NETWORK_EXCEPTION): Reaction.RETRY,
    (ApiKey.PRODUCE, ErrorCode.COORDINATOR_NOT_AVAILABLE): Reaction.RETRY,
    (ApiKey.PRODUCE, ErrorCode.NOT_COORDINATOR): Reaction.RETRY,
    # The broker's queue held two requests of one transactional id; the older one gets this code.
    (ApiKey.ADD_PARTITIONS_TO_TXN, ErrorCode.NETWORK_EXCEPTION): Reaction.RETRY,
    # Another partition of the same request was refused, and its code is judged.
    (ApiKey.ADD_PARTITIONS_TO_TXN, ErrorCode.OPERATION_NOT_ATTEMPTED): Reaction.RETRY,
    # A rebalancing group accepts plain commits again after the rebalance.
    (ApiKey.OFFSET_COMMIT, ErrorCode.REBALANCE_IN_PROGRESS): Reaction.RETRY,
    # For these requests "unknown" is the answer, not a transient error.
    (ApiKey.DELETE_TOPICS, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION): Reaction.FATAL,
    (ApiKey.DESCRIBE_CONFIGS, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION): Reaction.FATAL,
    (ApiKey.CREATE_PARTITIONS, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION): Reaction.FATAL,
    (ApiKey.INCREMENTAL_ALTER_CONFIGS, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION): Reaction.FATAL,
    (ApiKey.OFFSET_FETCH, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION): Reaction.FATAL,
}
"""Reactions to codes that mean something else in one API."""


def reaction(api: ApiKey, code: int) -> Reaction:
    """Returns the reaction to this code in a reply of this API."""
    special = SPECIAL.get((api, code))
    if special is not None:
        return special
    return REACTIONS.get(code, Reaction.FATAL)
