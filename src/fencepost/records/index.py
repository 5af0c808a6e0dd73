"""The three indexes beside a segment, as Kafka writes them.

.index      relative offset i32, position i32. The offset is the LAST one of the batch at that position,
            so a search for the largest entry <= target may start reading there without missing anything.
.timeindex  timestamp i64, relative offset i32: "up to here no record is newer than this". The offset is
            the last one of the batch that has that maximum. Timestamps strictly increase.
.txnindex   version i16 = 0, producerId i64, firstOffset i64, lastOffset i64 (that of the ABORT marker),
            lastStableOffset i64: aborted transactions that had data here. Made on first use.

Relative means: minus the base offset in the file's name. Positions are below 2 GiB because segments are.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Sequence
from typing import Final, NamedTuple

OFFSET_ENTRY_BYTES: Final = 8
TIME_ENTRY_BYTES: Final = 12
ABORTED_TXN_BYTES: Final = 34

_TIME_ENTRY: Final = struct.Struct(">qi")
_ABORTED_TXN: Final = struct.Struct(">hqqqq")
_SWAP: Final = sys.byteorder == "little"


class AbortedTxn(NamedTuple):
    """An aborted transaction of one producer in one partition."""

    producer_id: int
    first_offset: int
    last_offset: int
    """Of the ABORT marker."""
    last_stable_offset: int


def encode_offset_index(relative_offsets: array[int], positions: array[int]) -> bytes:
    """The bytes of an `.index` from its two columns."""
    both = array("i", bytes(OFFSET_ENTRY_BYTES * len(relative_offsets)))
    both[0::2] = relative_offsets
    both[1::2] = positions
    if _SWAP:
        both.byteswap()
    return both.tobytes()


def decode_offset_index(data: bytes) -> tuple[array[int], array[int]]:
    """The two columns of an `.index`; ValueError when it cannot be one."""
    if len(data) % OFFSET_ENTRY_BYTES:
        raise ValueError(f"{len(data)} bytes are no offset index")
    both = array("i", data)
    if _SWAP:
        both.byteswap()
    return both[0::2], both[1::2]


def encode_time_index(entries: Sequence[tuple[int, int]]) -> bytes:
    """The bytes of a `.timeindex` from (timestamp, relative offset) pairs."""
    return b"".join([_TIME_ENTRY.pack(timestamp, offset) for timestamp, offset in entries])


def decode_time_index(data: bytes) -> list[tuple[int, int]]:
    """The (timestamp, relative offset) pairs of a `.timeindex`; ValueError when it cannot be one."""
    if len(data) % TIME_ENTRY_BYTES:
        raise ValueError(f"{len(data)} bytes are no time index")
    return list(_TIME_ENTRY.iter_unpack(data))


def encode_aborted_txn(txn: AbortedTxn) -> bytes:
    """The 34 bytes of one `.txnindex` entry."""
    return _ABORTED_TXN.pack(0, *txn)


def decode_aborted_txns(data: bytes) -> list[AbortedTxn]:
    """All entries of a `.txnindex`; ValueError for a version or an order that Kafka never writes."""
    if len(data) % ABORTED_TXN_BYTES:
        raise ValueError(f"{len(data)} bytes are no transaction index")
    txns: list[AbortedTxn] = []
    for version, *fields in _ABORTED_TXN.iter_unpack(data):
        txn = AbortedTxn(*fields)
        if version > 0 or version < 0:
            raise ValueError(f"a transaction index entry of version {version}")
        if txns and txn.last_offset <= txns[-1].last_offset:
            raise ValueError("the transaction index is out of order")
        txns.append(txn)
    return txns
