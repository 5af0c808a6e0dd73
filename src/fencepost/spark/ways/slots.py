"""Brings every row to the task that writes its partition: the shuffle between the two stages.

Spark 4.1 has `repartitionById`, which takes a column as the number of the task. Before, Spark only
hashes columns. There the column gets, for every slot, an integer whose hash falls on that slot:
Spark takes Murmur3 of the value with the seed 42, modulo the number of tasks. Neither shuffle is
changed by adaptive execution, because it has a fixed number of tasks. If the hash were another
one, the writing tasks would notice: they check the slot of each batch (`shuffled.py`).
"""

from __future__ import annotations

from functools import cache
from itertools import count
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SEED: Final = 42
_WORD: Final = 0xFFFFFFFF


def bring_to_slots(packed: DataFrame, slots: int) -> DataFrame:
    """The same rows, each in the partition that its column `slot` names."""
    if hasattr(packed, "repartitionById"):
        return packed.repartitionById(slots, "slot")
    from pyspark.sql import functions as f

    keys = f.array(*(f.lit(key) for key in keys_of_slots(slots)))
    return packed.repartition(slots, f.get(keys, "slot"))


@cache
def keys_of_slots(slots: int) -> tuple[int, ...]:
    """For every slot, the smallest integer that Spark's hash partitioning brings there."""
    found: dict[int, int] = {}
    for key in count():
        found.setdefault(spark_hash(key) % slots, key)
        if len(found) == slots:
            return tuple(found[slot] for slot in range(slots))
    raise AssertionError  # Every slot has some integer.


def spark_hash(value: int) -> int:
    """Spark's hash of a 32-bit integer, as a signed number."""
    mixed = value * 0xCC9E2D51 & _WORD
    mixed = _rotated(mixed, 15) * 0x1B873593 & _WORD
    state = _rotated(_SEED ^ mixed, 13) * 5 + 0xE6546B64 & _WORD
    state ^= 4  # The length in bytes.
    state = (state ^ state >> 16) * 0x85EBCA6B & _WORD
    state = (state ^ state >> 13) * 0xC2B2AE35 & _WORD
    state ^= state >> 16
    return state - (1 << 32) if state >> 31 else state


def _rotated(word: int, bits: int) -> int:
    return (word << bits | word >> 32 - bits) & _WORD
