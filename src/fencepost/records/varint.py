"""Kafka's variable-length integers inside records: zigzag, seven bits at a time, low bits first.

Readers return `(value, next_position)`. They raise `IndexError` at the end of the bytes and
`ValueError` for a number that is too long. `opened.py` turns both into `BatchError` once per batch:
a check per number would cost more than the number.
"""

from __future__ import annotations

from typing import Final

from fencepost.base.seams import Buffer

_MAX_SHIFT_32: Final = 28
_MAX_SHIFT_64: Final = 63


def write_varint(value: int) -> bytes:
    """Encodes a signed integer of up to 64 bits, as VARINT or VARLONG."""
    rest = value << 1 if value >= 0 else (-value << 1) - 1
    return _SHORT[rest] if rest < len(_SHORT) else _write_unsigned(rest)


def _write_unsigned(rest: int) -> bytes:
    out = bytearray()
    while rest >= 128:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


_SHORT: Final = tuple(map(_write_unsigned, range(1024)))
"""Precomputed: the lengths of most keys and values."""


def read_varint(data: Buffer, position: int) -> tuple[int, int]:
    """Reads a VARINT of at most five bytes."""
    byte = data[position]
    if byte < 128:
        return (byte >> 1) ^ -(byte & 1), position + 1
    return _read_long(data, position, _MAX_SHIFT_32)


def read_varlong(data: Buffer, position: int) -> tuple[int, int]:
    """Reads a VARLONG of at most ten bytes."""
    byte = data[position]
    if byte < 128:
        return (byte >> 1) ^ -(byte & 1), position + 1
    return _read_long(data, position, _MAX_SHIFT_64)


def _read_long(data: Buffer, position: int, max_shift: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 128:
            break
        shift += 7
        if shift > max_shift:
            raise ValueError("a variable-length integer is too long")
    value &= 0xFFFFFFFF if max_shift == _MAX_SHIFT_32 else 0xFFFFFFFFFFFFFFFF
    return (value >> 1) ^ -(value & 1), position
