"""The three indexes beside a segment, as Kafka writes them.

.index      relative offset i32, position i32. The offset is the LAST one of the batch at that
            position, so a search that starts at the largest entry <= target misses nothing.
.timeindex  timestamp i64, relative offset i32: no record up to the offset is newer. The offset is
            the last one of the batch that has that maximum. Timestamps strictly increase.
.txnindex   version i16 = 0, producerId i64, firstOffset i64, lastOffset i64 (that of the ABORT
            marker), lastStableOffset i64: aborted transactions with data. Created with the first
            entry.

Relative means: minus the base offset in the file's name. Segments, and so positions, are below 2
GiB.
"""

from __future__ import annotations

import struct
import sys
from array import array
from typing import Final, NamedTuple

OFFSET_ENTRY_BYTES: Final = 8
TIME_ENTRY_BYTES: Final = 12
ABORTED_TXN_BYTES: Final = 34

_ABORTED_TXN: Final = struct.Struct(">hqqqq")
_SWAP: Final = sys.byteorder == "little"


class AbortedTxn(NamedTuple):
    """An aborted transaction of one producer in one partition."""

    producer_id: int
    first_offset: int
    last_offset: int
    """The offset of the ABORT marker."""
    last_stable_offset: int


def encode_offset_index(relative_offsets: array[int], positions: array[int]) -> bytes:
    """The bytes of an `.index` from its two columns."""
    both = array("i", bytes(OFFSET_ENTRY_BYTES * len(relative_offsets)))
    both[0::2] = relative_offsets
    both[1::2] = positions
    return _swapped(both).tobytes()


def decode_offset_index(data: bytes) -> tuple[array[int], array[int]]:
    """The two columns of an `.index`; ValueError for a wrong size."""
    if len(data) % OFFSET_ENTRY_BYTES:
        raise ValueError(f"{len(data)} bytes are not an offset index")
    both: array[int] = array("i", data)
    if _SWAP:
        both.byteswap()
    return both[0::2], both[1::2]


def encode_time_index(timestamps: array[int], relative_offsets: array[int]) -> bytes:
    """The bytes of a `.timeindex` from its two columns."""
    halves = array("I", _swapped(timestamps).tobytes())
    words = array("I", bytes(TIME_ENTRY_BYTES * len(timestamps)))
    words[0::3] = halves[0::2]
    words[1::3] = halves[1::2]
    words[2::3] = array("I", _swapped(relative_offsets).tobytes())
    return words.tobytes()


def decode_time_index(data: bytes) -> tuple[array[int], array[int]]:
    """The two columns of a `.timeindex`: timestamps, relative offsets; ValueError for a wrong size.

    An array has no items of twelve bytes, so the words are sorted into columns: hundreds of
    thousands of entries must not cost an object each.
    """
    if len(data) % TIME_ENTRY_BYTES:
        raise ValueError(f"{len(data)} bytes are not a time index")
    count = len(data) // TIME_ENTRY_BYTES
    words = memoryview(data).cast("I")
    halves, offsets = bytearray(8 * count), bytearray(4 * count)
    target = memoryview(halves).cast("I")
    target[0::2] = words[0::3]
    target[1::2] = words[1::3]
    memoryview(offsets).cast("I")[:] = words[2::3]
    return _from_file("q", halves), _from_file("i", offsets)


def _from_file(kind: str, data: bytearray) -> array[int]:
    """A column in the machine's byte order."""
    column: array[int] = array(kind, data)
    if _SWAP:
        column.byteswap()
    return column


def _swapped(column: array[int]) -> array[int]:
    """Swaps between the machine's byte order and the file's."""
    if not _SWAP:
        return column
    copy = column[:]
    copy.byteswap()
    return copy


def encode_aborted_txn(txn: AbortedTxn) -> bytes:
    """The 34 bytes of one `.txnindex` entry."""
    return _ABORTED_TXN.pack(0, *txn)


def decode_aborted_txns(data: bytes) -> list[AbortedTxn]:
    """All entries of a `.txnindex`; ValueError for a wrong version or order."""
    if len(data) % ABORTED_TXN_BYTES:
        raise ValueError(f"{len(data)} bytes are not a transaction index")
    txns: list[AbortedTxn] = []
    for version, *fields in _ABORTED_TXN.iter_unpack(data):
        txn = AbortedTxn(*fields)
        if version > 0 or version < 0:
            raise ValueError(f"a transaction index entry of version {version}")
        if txns and txn.last_offset <= txns[-1].last_offset:
            raise ValueError("the transaction index is out of order")
        txns.append(txn)
    return txns
