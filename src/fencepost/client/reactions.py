"""The one table of what to do about an error code.

Theory of operation. Every reply of every API is judged here and nowhere else. `reaction(api, code)`
looks first for what is special about the API, then for the code, and calls the rest fatal: a code
that we do not know must never be retried, because we cannot know what it did.

  RETRY                the same request again, after a pause, to the same broker
  REFRESH_METADATA     our picture of leaders and topics is old: refresh it, then the same request again
  REFRESH_COORDINATOR  the coordinator has moved: look it up again, then the same request again
  ABORTABLE            the transaction cannot be committed; abort it, and a new one may succeed
  FENCED               this producer's time is over: it must not send anything any more
  FATAL                trying again changes nothing
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

from fencepost.base.errors import ErrorCode
from fencepost.wire.apis import ApiKey

if TYPE_CHECKING:
    from collections.abc import Mapping


class Reaction(Enum):
    """What a client does about an error code."""

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
    # The broker or the network had a bad moment; its picture of the cluster and ours agree.
    ErrorCode.CORRUPT_MESSAGE: Reaction.RETRY,
    ErrorCode.REQUEST_TIMED_OUT: Reaction.RETRY,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: Reaction.RETRY,
    ErrorCode.NOT_ENOUGH_REPLICAS: Reaction.RETRY,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: Reaction.RETRY,
    ErrorCode.CONCURRENT_TRANSACTIONS: Reaction.RETRY,
    ErrorCode.OFFSET_NOT_AVAILABLE: Reaction.RETRY,
    ErrorCode.UNSTABLE_OFFSET_COMMIT: Reaction.RETRY,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: Reaction.RETRY,
    # Somebody else leads.
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
    # Somebody else coordinates.
    ErrorCode.COORDINATOR_NOT_AVAILABLE: Reaction.REFRESH_COORDINATOR,
    ErrorCode.NOT_COORDINATOR: Reaction.REFRESH_COORDINATOR,
    # This producer is over. 47 is what partitions say, 90 what coordinators say (KIP-588).
    ErrorCode.INVALID_PRODUCER_EPOCH: Reaction.FENCED,
    ErrorCode.PRODUCER_FENCED: Reaction.FENCED,
    # This transaction is over.
    ErrorCode.TRANSACTION_ABORTABLE: Reaction.ABORTABLE,
}
"""What a code means wherever it comes from. 45, 48, 49 and everything else that is absent is
fatal."""

SPECIAL: Final[Mapping[tuple[ApiKey, int], Reaction]] = {
    # A duplicate is what a retry of ours looks like when its first copy did arrive. Kafka answers 0
    # with the old offsets since 1.0; the code remains in the protocol.
    (ApiKey.PRODUCE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER): Reaction.SUCCEED,
    # The verification of a first write, or its implicit add, met the coordinator at a bad moment.
    # Kafka maps these to 19, but they are the same news wherever they appear: same leader, same
    # bytes, a little later.
    (ApiKey.PRODUCE, ErrorCode.NETWORK_EXCEPTION): Reaction.RETRY,
    (ApiKey.PRODUCE, ErrorCode.COORDINATOR_NOT_AVAILABLE): Reaction.RETRY,
    (ApiKey.PRODUCE, ErrorCode.NOT_COORDINATOR): Reaction.RETRY,
    # Two requests of one transactional id met in the queue of a broker: the older one is answered
    # so.
    (ApiKey.ADD_PARTITIONS_TO_TXN, ErrorCode.NETWORK_EXCEPTION): Reaction.RETRY,
    # Some other partition of the same request was refused; that one's code is the one to judge.
    (ApiKey.ADD_PARTITIONS_TO_TXN, ErrorCode.OPERATION_NOT_ATTEMPTED): Reaction.RETRY,
    # A group that waits for a rebalance takes plain commits again when the rebalance is done.
    (ApiKey.OFFSET_COMMIT, ErrorCode.REBALANCE_IN_PROGRESS): Reaction.RETRY,
    # Administration asks about what exists: unknown is the answer, not a passing weakness.
    (ApiKey.DELETE_TOPICS, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION): Reaction.FATAL,
    (ApiKey.DESCRIBE_CONFIGS, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION): Reaction.FATAL,
    (ApiKey.CREATE_PARTITIONS, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION): Reaction.FATAL,
    (ApiKey.OFFSET_FETCH, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION): Reaction.FATAL,
}
"""Where one API means something else by a code."""


def reaction(api: ApiKey, code: int) -> Reaction:
    """What to do about this code in a reply of this API."""
    special = SPECIAL.get((api, code))
    if special is not None:
        return special
    return REACTIONS.get(code, Reaction.FATAL)
