"""The rows that the processor reads and writes.

One settlement becomes one refund and one audit row.
"""

from __future__ import annotations

import json
from typing import Final, NamedTuple

SETTLEMENTS: Final = "settlements"
REFUNDS_EMITTED: Final = "refunds-emitted"
REFUND_AUDIT: Final = "refund-audit"

ACTOR: Final = "system"


class Refund(NamedTuple):
    """One refund."""

    refund_id: str
    amount_paise: int
    merchant: str


class Audit(NamedTuple):
    """Who decided about a refund, and why."""

    refund_id: str
    actor: str
    reason: str


def read_settlement(value: bytes | None, place: str) -> tuple[Refund | None, Audit]:
    """Returns the refund and the audit row of a settlement.

    An unreadable settlement becomes an audit row named `place`, without a refund: it would be
    unreadable after every restart too, and would block everything behind it.
    """
    try:
        fields = json.loads(value or b"")
        refund = Refund(
            str(fields["refund_id"]), int(fields["amount_paise"]), str(fields["merchant"])
        )
        reason = str(fields.get("reason", "merchant-initiated"))
    except (ValueError, TypeError, KeyError) as problem:
        return None, Audit(place, ACTOR, f"unreadable: {type(problem).__name__}")
    if refund.amount_paise <= 0:
        return None, Audit(refund.refund_id, ACTOR, "nothing to refund")
    return refund, Audit(refund.refund_id, ACTOR, reason)


def encode(row: Refund | Audit) -> bytes:
    """Returns a row as JSON bytes."""
    return json.dumps(row._asdict(), separators=(",", ":")).encode()
