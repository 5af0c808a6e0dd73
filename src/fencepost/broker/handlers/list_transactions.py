"""ListTransactions (66): v0-2

Behaviour: the transactional ids that this node coordinates, by state, producer id, age and pattern;
           those that the client may not describe are left out.
Versions:  v1 (KIP-994) only what began longer ago than a duration; v2 (KIP-1152) only ids that
           match a pattern as a whole; served only with google-re2 (extra `re2`).
Errors:    COORDINATOR_LOAD_IN_PROGRESS, INVALID_REGULAR_EXPRESSION. Unknown
           state filters are returned in the reply.
"""

from __future__ import annotations

from collections.abc import Iterator

from fencepost.base.errors import ErrorCode
from fencepost.base.patterns import Pattern, compile_pattern
from fencepost.broker.context import Context
from fencepost.broker.turns import in_turns
from fencepost.broker.waiting import Parked
from fencepost.coordinator.txn.views import Filters, parse_state_filters
from fencepost.records.transaction_log import STATE_NAMES
from fencepost.wire.forms.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)


def handle(request: ListTransactionsRequest, context: Context) -> ListTransactionsResponse | Parked:
    """Serves one request; see above."""
    if context.services.transactions.is_loading:
        return ListTransactionsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    try:
        pattern = _compiled(request.transactional_id_pattern)
    except ValueError:
        return ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
    states, unknown = parse_state_filters(request.state_filters)
    filters = Filters(
        states, frozenset(request.producer_id_filters), request.duration_filter, pattern
    )
    response = ListTransactionsResponse(unknown_state_filters=unknown)

    def steps() -> Iterator[None]:
        for found in context.services.transactions.list(filters):
            response.transaction_states += [
                TransactionState(
                    transactional_id=transactional_id,
                    producer_id=txn.producer_id,
                    transaction_state=STATE_NAMES[txn.state],
                )
                for transactional_id, txn in found
                if context.may("DESCRIBE", "TRANSACTIONAL_ID", transactional_id)
            ]
            yield

    return in_turns(context.services.runtime, steps(), response, holds_followers=True)


def _compiled(text: str | None) -> Pattern | None:
    """Compile the pattern of a request, if it has one; ValueError for an invalid one."""
    return compile_pattern(text) if text else None
