"""The two transaction protocols, TV1 and TV2, as the request versions of a client."""

from __future__ import annotations

from typing import Final, NamedTuple


class Protocol(NamedTuple):
    """The versions that a client of one protocol sends."""

    name: str
    init: int
    produce: int
    txn_offset_commit: int
    end_txn: int
    adds_explicitly: bool
    """Whether a client sends AddPartitionsToTxn before it writes to a partition."""

    def __repr__(self) -> str:
        return self.name


TV1: Final = Protocol(
    "TV1", init=4, produce=11, txn_offset_commit=4, end_txn=4, adds_explicitly=True
)
TV2: Final = Protocol(
    "TV2", init=5, produce=12, txn_offset_commit=5, end_txn=5, adds_explicitly=False
)
PROTOCOLS: Final = (TV1, TV2)
