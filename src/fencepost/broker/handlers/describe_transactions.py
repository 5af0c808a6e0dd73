"""DescribeTransactions (65): v0

Behaviour: the state of transactional ids that this node coordinates. While markers are being
           written, only the partitions that still lack theirs are shown; topics that the client may
           not describe are left out. fencepost's own client (by its software name in ApiVersions)
           gets tagged fields more: 10,000 and 10,001 are the client id and the address of the
           client that last spoke for the id (InitProducerId, AddPartitionsToTxn, EndTxn), absent if
           the coordinator was loaded since; 10,002 is whether that connection is "connected",
           "gone" or "unknown", and 10,003 since when it is gone; 10,004 is the administrator who
           ended the last transaction or fenced the producer, if one did.
Errors:    per id TRANSACTIONAL_ID_AUTHORIZATION_FAILED, INVALID_REQUEST (an empty id),
           COORDINATOR_LOAD_IN_PROGRESS, NOT_COORDINATOR, TRANSACTIONAL_ID_NOT_FOUND.
"""

from __future__ import annotations

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import NO_TIMESTAMP
from fencepost.broker.context import Context
from fencepost.broker.turns import fill, in_turns
from fencepost.broker.waiting import Parked
from fencepost.coordinator.txn.views import Description
from fencepost.wire.forms.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)
from fencepost.wire.schema import OUR_CLIENT


def handle(
    request: DescribeTransactionsRequest, context: Context
) -> DescribeTransactionsResponse | Parked:
    """Serves one request; see above."""
    response = DescribeTransactionsResponse()
    steps = fill(
        response.transaction_states,
        request.transactional_ids,
        lambda transactional_id: _describe(transactional_id, context),
    )
    return in_turns(context.services.runtime, steps, response, holds_followers=True)


def _describe(transactional_id: str, context: Context) -> TransactionState:
    if not context.authorize("DESCRIBE", "TRANSACTIONAL_ID", transactional_id):
        found = Description(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, transactional_id)
    else:
        found = context.services.transactions.describe(transactional_id)
    is_ours = context.client_software == OUR_CLIENT
    return TransactionState(
        error_code=found.error,
        transactional_id=transactional_id,
        transaction_state=found.state,
        transaction_timeout_ms=found.timeout_ms,
        transaction_start_time_ms=found.start_ms,
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        topics=[
            TopicData(topic=topic, partitions=list(indexes))
            for topic, indexes in found.partitions.items()
            if context.may("DESCRIBE", "TOPIC", topic)
        ],
        client_id=found.client_id if is_ours else None,
        client_host=found.client_host if is_ours else None,
        client_connection=found.client_connection if is_ours else None,
        client_gone_at_ms=found.client_gone_at_ms if is_ours else NO_TIMESTAMP,
        administrator=found.administrator if is_ours else None,
    )
