"""The hash function of large audits: MurmurHash3, its form for 64-bit machines with 128 bits."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from fencepost.records.columns import Bytes, Ints, column_of, compiled

_C1: Final = np.uint64(0x87C37B91114253D5)
_C2: Final = np.uint64(0x4CF5AD432745937F)
_ADD1: Final = np.uint64(0x52DCE729)
_ADD2: Final = np.uint64(0x38495AB5)
_MIX1: Final = np.uint64(0xFF51AFD7ED558CCD)
_MIX2: Final = np.uint64(0xC4CEB9FE1A85EC53)
_5: Final = np.uint64(5)


@compiled
def _rotated(value: Any, bits: Any) -> Any:
    return (value << np.uint64(bits)) | (value >> np.uint64(64 - bits))


@compiled
def _mixed(value: Any) -> Any:
    value ^= value >> np.uint64(33)
    value *= _MIX1
    value ^= value >> np.uint64(33)
    value *= _MIX2
    return value ^ (value >> np.uint64(33))


@compiled
def _word(data: Bytes, start: Any, size: Any) -> Any:
    """Up to eight bytes, the first one lowest. Unsigned indexes are not checked for the sign."""
    found = np.uint64(0)
    for i in range(size):
        found |= np.uint64(data[start + i]) << (np.uint64(8) * np.uint64(i))
    return found


@compiled
def _whole_word(data: Bytes, start: Any) -> Any:
    """Eight bytes; written out so that they become one load."""
    return (
        np.uint64(data[start])
        | np.uint64(data[start + np.uintp(1)]) << np.uint64(8)
        | np.uint64(data[start + np.uintp(2)]) << np.uint64(16)
        | np.uint64(data[start + np.uintp(3)]) << np.uint64(24)
        | np.uint64(data[start + np.uintp(4)]) << np.uint64(32)
        | np.uint64(data[start + np.uintp(5)]) << np.uint64(40)
        | np.uint64(data[start + np.uintp(6)]) << np.uint64(48)
        | np.uint64(data[start + np.uintp(7)]) << np.uint64(56)
    )


@compiled
def _hash_one(data: Bytes, start: Any, size: Any, seed: Any) -> Any:
    first, second = seed, seed
    position, end = np.uintp(start), np.uintp(start + size)
    while position + np.uintp(16) <= end:
        word = _whole_word(data, position)
        first ^= _rotated(word * _C1, 31) * _C2
        first = (_rotated(first, 27) + second) * _5 + _ADD1
        word = _whole_word(data, position + np.uintp(8))
        second ^= _rotated(word * _C2, 33) * _C1
        second = (_rotated(second, 31) + first) * _5 + _ADD2
        position += np.uintp(16)
    left = end - position
    if left > np.uintp(8):
        word = _word(data, position + np.uintp(8), left - np.uintp(8))
        second ^= _rotated(word * _C2, 33) * _C1
    if left > np.uintp(0):
        word = _word(data, position, min(left, np.uintp(8)))
        first ^= _rotated(word * _C1, 31) * _C2
    length = np.uint64(size)
    first ^= length
    second ^= length
    first += second
    second += first
    first, second = _mixed(first), _mixed(second)
    first += second
    return first, second + first


@compiled
def _hash_all(data: Bytes, offsets: Ints, seed: Any, out: Any) -> None:
    for row in range(len(out)):
        start = offsets[row]
        first, second = _hash_one(data, start, offsets[row + 1] - start, seed)
        out[row, 0] = first
        out[row, 1] = second


def compiled_hashes(keys: pa.Array, seed: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """One row of two numbers per key; those of null keys mean nothing."""
    column = column_of(keys, len(keys))
    out = np.empty((len(keys), 2), np.uint64)
    _hash_all(column.data, column.offsets, np.uint64(seed), out)
    return out
