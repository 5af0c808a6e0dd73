"""What `preserve_partitioning` needs of a query; everything else is refused with the reason.

The option says that rows go to the partition with the number of the partition they were read from,
and that no shuffle and no exchange is needed for that. So the query must read one topic with as
many partitions as the target, keep the source's column `partition`, and keep the rows of a
partition in one task.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from fencepost.spark.failures import SinkRefused
from fencepost.spark.offsets import parse_sources

if TYPE_CHECKING:
    from fencepost.spark.sink.batch.micro_batch import MicroBatch

_INSTEAD: Final = "or leave preserve_partitioning out. Nothing was written"

PARTITIONS_CHANGED: Final = ("UnionRDD", "CoalescedRDD", "CartesianRDD")
"""RDDs that change the number of partitions within a stage."""

SHUFFLE: Final = "+-("
"""Where another stage begins, in the lineage that Spark prints."""


def source_partitions(micro_batch: MicroBatch) -> int:
    """How many partitions the topic has that the query reads; SinkRefused if it is not one."""
    offsets = parse_sources(micro_batch.end_offsets)
    topics = {tp.topic for tp in offsets or ()}
    if not offsets or len(topics) != 1:
        found = f"reads {', '.join(sorted(topics))}" if topics else "does not read a topic"
        raise SinkRefused(
            f"preserve_partitioning needs a query that reads one topic, and this one {found}: read "
            f"one topic per query, {_INSTEAD}"
        )
    return len(offsets)


def check_target(topic: str | None, columns: Iterable[str], source: int, target: int) -> None:
    """SinkRefused if rows cannot keep their partition in this topic."""
    if topic is None:
        raise SinkRefused(
            "preserve_partitioning needs a topic that the rows do not choose: pass topic= to the "
            f"sink, {_INSTEAD}"
        )
    if "partition" not in {name.lower() for name in columns}:
        raise SinkRefused(
            "preserve_partitioning needs the source's column partition, and the DataFrame does not "
            f'have it: select it with key and value, as in select("key", "value", "partition"), '
            f"{_INSTEAD}"
        )
    if source != target:
        raise SinkRefused(
            f"preserve_partitioning needs as many partitions in the target as in the source: the "
            f"query reads {_count(source)}, and topic {topic!r} has {target}. Add the missing "
            f"ones, {_INSTEAD}"
        )


def _count(partitions: int) -> str:
    return "1 partition" if partitions == 1 else f"{partitions} partitions"


def check_lineage(lineage: str) -> None:
    """SinkRefused if rows do not stay in the task that has read them."""
    if SHUFFLE in lineage:
        moved = "shuffles its rows (an aggregation, a join, repartition or a state)"
    elif any(name in lineage for name in PARTITIONS_CHANGED):
        moved = "changes its number of partitions (union, coalesce or a cross join)"
    else:
        return
    raise SinkRefused(
        "preserve_partitioning needs a plan whose rows stay in the task that has read them, and "
        f"this plan {moved}: write the rows of the source without that, {_INSTEAD}"
    )
