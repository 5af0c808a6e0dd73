"""Whether every batch of a stream will have a slot for each of its tasks.

A barrier stage that has more tasks than slots never starts. `route` is called before the first
batch is planned, so only the plan can tell. The tasks of a stream are those of its source, if no
step moves rows to other tasks; and the source of this package packs its ranges into as many tasks
as there are slots (`source/batch_reader.py`). A plan with anything else in it gets a shuffle.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_KEEP_TASKS: Final = frozenset(
    {
        "CollectMetrics",
        "EventTimeWatermark",
        "Filter",
        "Generate",
        "MapInArrow",
        "MapInPandas",
        "Project",
        "SubqueryAlias",
        "View",
    }
)
"""The steps of an analysed plan that keep every row in its task."""

_SOURCE: Final = "StreamingRelationV2"
_SPLITS: Final = ("minPartitions", "maxRecordsPerPartition")
"""Options with which the source plans as many tasks as its user wants."""


def has_slots(df: DataFrame, slots: int) -> bool:
    """Whether no batch of this stream can have more tasks than there are slots."""
    java: Any = df
    plan = java._jdf.queryExecution().analyzed()  # noqa: SLF001
    # Spark makes a join of a subquery, and a join may need a shuffle.
    if not plan.subqueriesAll().isEmpty():
        return False
    return all(_keeps_tasks(node, slots) for node in _nodes(plan))


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    children = plan.children()
    for at in range(children.size()):
        yield from _nodes(children.apply(at))


def _keeps_tasks(node: Any, slots: int) -> bool:
    name = str(node.nodeName())
    if name != _SOURCE:
        return name in _KEEP_TASKS
    if str(node.sourceName()) != "fencepost":
        return False
    options = node.extraOptions()
    if any(options.containsKey(name) for name in _SPLITS):
        return False
    most = options.get("maxTasks")
    return most is None or (str(most).strip().isdigit() and int(most) <= slots)
