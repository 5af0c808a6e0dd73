"""How brokers recognise what `fencepost txn` and other tools of ours do to transactions.

An operator's EndTxn has the producer id and epoch of the producer, so only the name of the client
tells the two apart. The tools send these client ids, whatever the user's settings are; brokers log
such requests as an administrator's. On Apache Kafka the client id is in its request log alone.
"""

from __future__ import annotations

from typing import Final

TXN_ABORT: Final = "fencepost-txn-abort"
TXN_COMMIT: Final = "fencepost-txn-commit"
TXN_FENCE: Final = "fencepost-txn-fence"
LEDGER: Final = "fencepost-ledger"

ENDING: Final = frozenset({TXN_ABORT, TXN_COMMIT})
"""Whose EndTxn is not of the producer itself."""
FENCING: Final = frozenset({TXN_FENCE, LEDGER})
"""Whose InitProducerId is not of a newer instance. `fencepost ledger` fences a query's id, and then
commits a transaction of its own."""

MAX_PRINCIPAL: Final = 256
"""Characters of a principal that a record keeps: the name of a certificate may be long."""


def administrator_in_words(principal: str, client_id: str, host: str) -> str:
    """Who did it, with what and from where, as `__transaction_state` keeps it."""
    return f"{principal[:MAX_PRINCIPAL]} with {client_id} from {host}"
