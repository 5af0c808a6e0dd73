"""InitProducerId (22): v0-5

Behaviour: without a transactional id, returns a new producer id at epoch 0 and writes no record.
           With one, returns its producer id at a new epoch, which fences the previous producer. An
           open transaction is aborted first, and the client has to retry. Answers once the record
           is durable.
Versions:  v2 flexible; v3 a producer may send its current id and epoch (KIP-360); v4
           PRODUCER_FENCED, INVALID_PRODUCER_EPOCH before that (KIP-588). v6 (KIP-939) is not
           served.
Errors:    TRANSACTIONAL_ID_AUTHORIZATION_FAILED, CLUSTER_AUTHORIZATION_FAILED, INVALID_REQUEST,
           UNSUPPORTED_VERSION (keepPreparedTxn), INVALID_TRANSACTION_TIMEOUT,
           COORDINATOR_LOAD_IN_PROGRESS, NOT_COORDINATOR, CONCURRENT_TRANSACTIONS, PRODUCER_FENCED.
"""

from __future__ import annotations

from typing import Final

from fencepost.base.administrators import FENCING
from fencepost.base.errors import ErrorCode
from fencepost.base.ids import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from fencepost.broker.authorization import CLUSTER, CLUSTER_NAME
from fencepost.broker.context import Context
from fencepost.broker.transactions.journal import administrator_of, client_of
from fencepost.broker.waiting import Parked
from fencepost.coordinator.txn.events import InitProducerId, Reply
from fencepost.wire.forms.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

FIRST_VERSION_WITH_FENCED: Final = 4


def handle(request: InitProducerIdRequest, context: Context) -> InitProducerIdResponse | Parked:
    """Serves one request; see above."""
    error = _refuse(request, context)
    if error is not ErrorCode.NONE:
        return _respond(Reply(error), context)
    parked = Parked(holds_followers=True)

    def done(reply: Reply) -> None:
        parked.answer(_respond(reply, context))

    if request.transactional_id is None:
        context.services.transactions.fresh_producer_id(done)
    else:
        context.services.transactions.init_producer_id(
            _event_of(request, request.transactional_id, administrator_of(context, FENCING)),
            done,
            client_of(context),
        )
    return parked


def _refuse(request: InitProducerIdRequest, context: Context) -> ErrorCode:
    transactional_id = request.transactional_id
    if transactional_id is None:
        if not _may_write_idempotently(context):
            return ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    elif not context.authorize("WRITE", "TRANSACTIONAL_ID", transactional_id) or (
        request.enable2_pc
        and not context.authorize("TWO_PHASE_COMMIT", "TRANSACTIONAL_ID", transactional_id)
    ):
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_PRODUCER_EPOCH):
        return ErrorCode.INVALID_REQUEST
    return ErrorCode.NONE


def _may_write_idempotently(context: Context) -> bool:
    """Whether the client may write to the cluster, or to some topic, existing or not (KIP-679)."""
    by_type = context.services.authorizer.authorize_by_type
    return by_type(context.principal, context.client_host, "WRITE", "TOPIC") or context.authorize(
        "IDEMPOTENT_WRITE", CLUSTER, CLUSTER_NAME
    )


def _event_of(
    request: InitProducerIdRequest, transactional_id: str, administrator: str
) -> InitProducerId:
    return InitProducerId(
        transactional_id,
        request.transaction_timeout_ms,
        request.producer_id,
        request.producer_epoch,
        request.enable2_pc,
        request.keep_prepared_txn,
        administrator=administrator,
    )


def _respond(reply: Reply, context: Context) -> InitProducerIdResponse:
    error = reply.error
    if error is ErrorCode.PRODUCER_FENCED and context.api_version < FIRST_VERSION_WITH_FENCED:
        error = ErrorCode.INVALID_PRODUCER_EPOCH
    return InitProducerIdResponse(
        error_code=error, producer_id=reply.producer_id, producer_epoch=reply.producer_epoch
    )
