"""Brings every row to the task that writes its partition: the shuffle between the two stages.

Spark 4.1 has `repartitionById`, which takes a column as the number of the task. Spark 4.0 only
hashes columns. There the column gets, for every slot, an integer that Spark brings to that slot.
Which one that is, Spark is asked once: its task is the hash of the value modulo the number of
tasks. Neither shuffle is changed by adaptive execution, because it has a fixed number of tasks. If
Spark chose the task otherwise, the writing tasks would notice: they check the slot of each batch
(`shuffled.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_keys: Final[dict[int, tuple[int, ...]]] = {}
"""The integers for each number of slots, which are the same in all sessions."""

_TRIED_PER_SLOT: Final = 16
"""So many integers leave one of a thousand slots without its own once in ten thousand times."""


def bring_to_slots(packed: DataFrame, slots: int) -> DataFrame:
    """The same rows, each in the partition that its column `slot` names."""
    if hasattr(packed, "repartitionById"):
        return packed.repartitionById(slots, "slot")
    from pyspark.sql import functions as f

    keys = f.array(*(f.lit(key) for key in keys_of_slots(packed.sparkSession, slots)))
    return packed.repartition(slots, f.get(keys, "slot"))


def keys_of_slots(session: SparkSession, slots: int) -> tuple[int, ...]:
    """For every slot, the smallest integer that Spark's hash partitioning brings there."""
    tried = _TRIED_PER_SLOT * slots
    while slots not in _keys:
        rows = session.range(0, tried, 1, 1).selectExpr(f"pmod(hash(CAST(id AS INT)), {slots})")
        found: dict[int, int] = {}
        for key, (slot,) in enumerate(rows.collect()):
            found.setdefault(slot, key)
        if len(found) == slots:
            _keys[slots] = tuple(found[slot] for slot in range(slots))
        tried *= 2
    return _keys[slots]
