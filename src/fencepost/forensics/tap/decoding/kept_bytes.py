"""The first bytes of a request, for `tap --bytes`.

Only requests of a transaction are kept, and only what a trace may show of them: of records the
batch headers, of fields with confidential names and of unknown fields nothing. A walk (`walk.py`)
has noted where those are. A request that cannot be followed to its end is not kept, because it is
not known what is in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fencepost.records.trace import Body
from fencepost.wire.apis import ApiKey

KEPT_BYTES: Final = 2_048
"""What is kept of one request, its size field included. EndTxn has about 60 bytes, and
AddPartitionsToTxn for a hundred partitions 2 KB."""

KEPT_APIS: Final = frozenset(
    {
        ApiKey.FIND_COORDINATOR,
        ApiKey.INIT_PRODUCER_ID,
        ApiKey.ADD_PARTITIONS_TO_TXN,
        ApiKey.ADD_OFFSETS_TO_TXN,
        ApiKey.TXN_OFFSET_COMMIT,
        ApiKey.PRODUCE,
        ApiKey.END_TXN,
        ApiKey.WRITE_TXN_MARKERS,
    }
)
"""A list of what is kept, not of what is not: logins and settings are never on it."""


def pieces(head: bytes, hidden: Sequence[tuple[int, int]]) -> list[Body]:
    """Returns the parts of a frame's first bytes that may be shown, each with its position."""
    shown: list[Body] = []
    start = 0
    for hidden_from, hidden_to in (*hidden, (len(head), len(head))):
        end = min(hidden_from, len(head))
        if start < end:
            shown.append({"at": start, "hex": head[start:end].hex()})
        start = max(start, hidden_to)
    return shown
