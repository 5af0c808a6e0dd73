"""Kafka's default partitioner: murmur2 of the key, made positive, modulo the partition count.

Two systems that write the same key to the same topic must agree on its partition, or joins and
compaction break. So this is the Java client's function bit for bit, including its sign arithmetic.
The hash mixes the key into a 32-bit state in little-endian words of four bytes, and adds the last
one to three bytes at the end. The caller chooses the partition of records without a key.
"""

from __future__ import annotations

from typing import Final

from fencepost.base.seams import Buffer

_SEED: Final = 0x9747B28C
_MULTIPLIER: Final = 0x5BD1E995
_SHIFT: Final = 24
_MASK: Final = 0xFFFFFFFF


def murmur2(key: Buffer) -> int:
    """Returns the 32-bit hash as a signed integer, as Java does."""
    size = len(key)
    value = (_SEED ^ size) & _MASK
    whole = size & ~3
    for position in range(0, whole, 4):
        word = int.from_bytes(key[position : position + 4], "little")
        word = (word * _MULTIPLIER) & _MASK
        word ^= word >> _SHIFT
        word = (word * _MULTIPLIER) & _MASK
        value = ((value * _MULTIPLIER) & _MASK) ^ word
    if size != whole:
        value ^= int.from_bytes(key[whole:], "little")
        value = (value * _MULTIPLIER) & _MASK
    value ^= value >> 13
    value = (value * _MULTIPLIER) & _MASK
    value ^= value >> 15
    return value - (1 << 32) if value >= 1 << 31 else value


def partition_for_key(key: Buffer, partition_count: int) -> int:
    """Returns the partition that Kafka's Java producer would choose for this key."""
    assert partition_count > 0
    # Kafka clears the sign bit; it does not take the absolute value.
    return (murmur2(key) & 0x7FFFFFFF) % partition_count
