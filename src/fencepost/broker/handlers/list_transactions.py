"""ListTransactions (66): v0-2

Behaviour: the transactional ids that this node coordinates, by state, producer id, age and pattern; those that the
           client may not describe are left out.
Versions:  v1 (KIP-994) only what began longer ago than a duration; v2 (KIP-1152) only ids that match a pattern as
           a whole.
Errors:    COORDINATOR_LOAD_IN_PROGRESS, INVALID_REGULAR_EXPRESSION. Names that no state has are echoed.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from fencepost.base.errors import ErrorCode
from fencepost.coordinator.txn.views import Filters, parse_state_filters
from fencepost.records.transaction_log import STATE_NAMES
from fencepost.wire.forms.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)

if TYPE_CHECKING:
    from fencepost.broker.context import Context


def handle(request: ListTransactionsRequest, context: Context) -> ListTransactionsResponse:
    try:
        pattern = compile_pattern(request.transactional_id_pattern)
    except (re.error, OverflowError, RecursionError):
        return ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
    states, unknown = parse_state_filters(request.state_filters)
    filters = Filters(
        states, frozenset(request.producer_id_filters), request.duration_filter, pattern
    )
    error, found = context.node.transactions.list(filters)
    if error is not ErrorCode.NONE:
        return ListTransactionsResponse(error_code=error)
    return ListTransactionsResponse(
        unknown_state_filters=unknown,
        transaction_states=[
            TransactionState(
                transactional_id=transactional_id,
                producer_id=txn.producer_id,
                transaction_state=STATE_NAMES[txn.state],
            )
            for transactional_id, txn in found
            if context.authorize("DESCRIBE", "TRANSACTIONAL_ID", transactional_id)
        ],
    )


def compile_pattern(pattern: str | None) -> re.Pattern[str] | None:
    """Kafka takes RE2's syntax; Python's is close to it. An empty pattern is none."""
    return re.compile("".join(map(translate, TOKEN.findall(pattern)))) if pattern else None


TOKEN: Final = re.compile(
    r"""\\. | \[\^?\]?(?:\\.|[^]\\])*\] | \(\?P?<\w+> | \(\?[^:)]* | [*+?}]\+ | \{\d+(?:,\d*)?\}\+? | .""",
    re.VERBOSE | re.DOTALL,
)
"""What a pattern is made of, as far as the two syntaxes differ: escapes, classes, groups, repetitions."""

MAX_REPETITIONS: Final = 1000

FOREIGN: Final = re.compile(
    r"\\[1-9Z] | [*+?}]\+ | \{.*\+ | \[.*\[:.* | \(\?(?!P?<\w+>|[ims-]*$).*", re.VERBOSE | re.DOTALL
)
"""What RE2 does not know though Python does: references back, \\Z, greed without return, looking around, other flags;
and classes by name, which Python would take for something else."""


def translate(piece: str) -> str:
    """A piece of RE2's syntax in Python's; re.error where RE2, or Python, has no such thing."""
    if FOREIGN.fullmatch(piece):
        raise re.error(f"{piece} is not understood")
    if piece.startswith("(?<"):
        return piece.replace("(?<", "(?P<")
    repetitions = re.findall(r"\d+", piece) if piece.startswith("{") else []
    if any(int(number) > MAX_REPETITIONS for number in repetitions):
        raise re.error(f"{piece} is more than {MAX_REPETITIONS} repetitions")
    return r"\Z" if piece == r"\z" else piece
