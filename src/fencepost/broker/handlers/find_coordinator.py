"""FindCoordinator (10): v0-6

Behaviour: the node that owns a group (key type 0) or a transactional id (1): the leader of the
           partition of __consumer_offsets or __transaction_state that the key hashes to. Those
           topics are created here, on first use, as in Kafka. An empty transactional id has a
           coordinator, too; InitProducerId refuses it.
Versions:  v3 flexible; v4 several keys in one request; v6 share groups (key type 2, not served).
Errors:    INVALID_REQUEST (an unknown key type), GROUP_AUTHORIZATION_FAILED,
           TRANSACTIONAL_ID_AUTHORIZATION_FAILED, CLUSTER_AUTHORIZATION_FAILED (a share group),
           COORDINATOR_NOT_AVAILABLE.
"""

from __future__ import annotations

from typing import Final

from fencepost.base.errors import ErrorCode
from fencepost.base.failures import StorageError
from fencepost.base.ids import (
    CONSUMER_OFFSETS_TOPIC,
    NO_NODE,
    TRANSACTION_STATE_TOPIC,
    coordinator_partition,
)
from fencepost.broker.authorization import CLUSTER, CLUSTER_NAME
from fencepost.broker.context import Context
from fencepost.broker.turns import fill, in_turns
from fencepost.broker.waiting import Parked
from fencepost.wire.forms.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

GROUP: Final = 0
TRANSACTION: Final = 1
SHARE: Final = 2
FIRST_VERSION_WITH_SHARE: Final = 6


def handle(request: FindCoordinatorRequest, context: Context) -> FindCoordinatorResponse | Parked:
    """Serves one request; see above."""
    response = FindCoordinatorResponse()
    steps = fill(
        response.coordinators,
        request.coordinator_keys,
        lambda key: _find(request.key_type, key, context),
    )
    return in_turns(context.services.runtime, steps, response, holds_followers=True)


def _find(key_type: int, key: str, context: Context) -> Coordinator:
    if error := _refuse(key_type, key, context):
        return _not_found(key, error)
    topic = CONSUMER_OFFSETS_TOPIC if key_type == GROUP else TRANSACTION_STATE_TOPIC
    try:
        context.services.internal_topics.ensure(topic)
    except StorageError:
        return _not_found(key, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    metadata = context.services.metadata
    count = metadata.partition_count(topic)
    if count == 0:  # The topic is being created; the client retries.
        return _not_found(key, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    index = coordinator_partition(key, count)
    leader = metadata.leader(topic, index)
    endpoint = metadata.endpoint(leader, context.listener)
    if endpoint is None:
        return _not_found(key, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return Coordinator(
        key=key, node_id=leader, host=endpoint.host, port=endpoint.port, error_message=None
    )


def _refuse(key_type: int, key: str, context: Context) -> ErrorCode | None:
    if key_type == GROUP:
        if not context.authorize("DESCRIBE", "GROUP", key):
            return ErrorCode.GROUP_AUTHORIZATION_FAILED
    elif key_type == TRANSACTION:
        if not context.authorize("DESCRIBE", "TRANSACTIONAL_ID", key):
            return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    elif key_type == SHARE and context.api_version >= FIRST_VERSION_WITH_SHARE:
        if not context.authorize("CLUSTER_ACTION", CLUSTER, CLUSTER_NAME):
            return ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return ErrorCode.INVALID_REQUEST
    else:
        return ErrorCode.INVALID_REQUEST
    return None


def _not_found(key: str, error: ErrorCode) -> Coordinator:
    return Coordinator(
        key=key, node_id=NO_NODE, host="", port=-1, error_code=error, error_message=error.name
    )
