"""EndTxn (26): v0-5

Behaviour: commits or aborts; answers once the Complete record is durable, or after the Prepare
           record when a marker takes too long.
Versions:  v2 PRODUCER_FENCED, INVALID_PRODUCER_EPOCH before that (KIP-588); v3 flexible; v5
           (KIP-890) raises the epoch and returns the next producer id and epoch.
Errors:    TRANSACTIONAL_ID_AUTHORIZATION_FAILED, INVALID_REQUEST, COORDINATOR_LOAD_IN_PROGRESS,
           NOT_COORDINATOR, INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS,
           INVALID_TXN_STATE.
"""

from __future__ import annotations

from typing import Final

from fencepost.base.administrators import ENDING
from fencepost.base.errors import ErrorCode
from fencepost.broker.context import Context
from fencepost.broker.transactions.journal import administrator_of
from fencepost.broker.waiting import Parked
from fencepost.coordinator.txn.events import EndTxn, Reply
from fencepost.wire.forms.end_txn import EndTxnRequest, EndTxnResponse
from fencepost.wire.schema import constructor

PRODUCER_FENCED: Final = ErrorCode.PRODUCER_FENCED
FIRST_VERSION_WITH_FENCED: Final = 2
FIRST_VERSION_OF_TV2: Final = 5

_reply: Final = constructor(EndTxnResponse)


def handle(request: EndTxnRequest, context: Context) -> EndTxnResponse | Parked:
    """Serves one request; see above."""
    if not context.authorize("WRITE", "TRANSACTIONAL_ID", request.transactional_id):
        return EndTxnResponse(error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    parked = Parked(holds_followers=True)
    event = EndTxn(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        request.committed,
        2 if context.api_version >= FIRST_VERSION_OF_TV2 else 0,
        administrator=administrator_of(context, ENDING),
    )
    context.services.transactions.end_txn(
        event, lambda reply: parked.answer(_respond(reply, context)), context
    )
    return parked


def _respond(reply: Reply, context: Context) -> EndTxnResponse:
    error = reply.error
    if error is PRODUCER_FENCED and context.api_version < FIRST_VERSION_WITH_FENCED:
        error = ErrorCode.INVALID_PRODUCER_EPOCH
    return _reply(
        error_code=error, producer_id=reply.producer_id, producer_epoch=reply.producer_epoch
    )
