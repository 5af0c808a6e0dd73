"""AddOffsetsToTxn (25): v0-4

Behaviour: adds the partition of __consumer_offsets that belongs to a group to the transaction.
           Answers once the record is durable.
Versions:  v2 PRODUCER_FENCED, INVALID_PRODUCER_EPOCH before that (KIP-588); v3 flexible.
Errors:    TRANSACTIONAL_ID_AUTHORIZATION_FAILED, GROUP_AUTHORIZATION_FAILED, INVALID_REQUEST,
           COORDINATOR_LOAD_IN_PROGRESS, NOT_COORDINATOR, COORDINATOR_NOT_AVAILABLE (the group's
           topic cannot be created), INVALID_PRODUCER_ID_MAPPING, CONCURRENT_TRANSACTIONS,
           PRODUCER_FENCED.
"""

from __future__ import annotations

from typing import Final

from fencepost.base.errors import ErrorCode
from fencepost.base.failures import StorageError
from fencepost.base.ids import CONSUMER_OFFSETS_TOPIC, coordinator_partition
from fencepost.broker.context import Context
from fencepost.broker.waiting import Parked
from fencepost.coordinator.txn.events import AddPartitions, Reply
from fencepost.wire.forms.add_offsets_to_txn import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)

FIRST_VERSION_WITH_FENCED: Final = 2


def handle(request: AddOffsetsToTxnRequest, context: Context) -> AddOffsetsToTxnResponse | Parked:
    """Serves one request; see above."""
    error = _refuse(request, context)
    if error is not ErrorCode.NONE:
        return AddOffsetsToTxnResponse(error_code=error)
    count = context.services.metadata.partition_count(CONSUMER_OFFSETS_TOPIC)
    index = coordinator_partition(request.group_id, count)
    event = AddPartitions(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        {CONSUMER_OFFSETS_TOPIC: (index,)},
    )
    parked = Parked(holds_followers=True)
    context.services.transactions.add_partitions(
        event, lambda reply: parked.answer(_respond(reply, context)), context
    )
    return parked


def _refuse(request: AddOffsetsToTxnRequest, context: Context) -> ErrorCode:
    if not context.authorize("WRITE", "TRANSACTIONAL_ID", request.transactional_id):
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if not context.authorize("READ", "GROUP", request.group_id):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    try:
        # A client may add a group before any client has looked up its coordinator.
        context.services.internal_topics.ensure(CONSUMER_OFFSETS_TOPIC)
    except StorageError:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return ErrorCode.NONE


def _respond(reply: Reply, context: Context) -> AddOffsetsToTxnResponse:
    error = reply.error
    if error is ErrorCode.PRODUCER_FENCED and context.api_version < FIRST_VERSION_WITH_FENCED:
        error = ErrorCode.INVALID_PRODUCER_EPOCH
    return AddOffsetsToTxnResponse(error_code=error)
