"""Which way the rows of each batch took."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

WAYS = ("collected", "direct", "shuffled")


def watch_ways(
    set_attribute: Callable[[Any, str, Any], None], on_way: Callable[[str, int], None]
) -> None:
    """Calls `on_way` with the name of a way and the batch, for all rows that go it."""
    from fencepost.spark.ways import direct, shuffled
    from fencepost.spark.ways.collected import RowCollector

    def watch(owner: Any, function: str, name: str) -> None:
        genuine = getattr(owner, function)

        def run(rows_or_self: Any, job: Any) -> Any:
            found = genuine(rows_or_self, job)
            if found is not None:
                on_way(name, job.packing.batch_id)
            return found

        set_attribute(owner, function, run)

    watch(RowCollector, "write", "collected")
    watch(direct, "run_direct", "direct")
    watch(shuffled, "run_shuffled", "shuffled")


def close_ways(set_attribute: Callable[[Any, str, Any], None], *names: str) -> None:
    """Makes rows go another way than these."""
    from fencepost.spark.ways import direct
    from fencepost.spark.ways.collected import RowCollector

    for name in names:
        if name == "collected":
            set_attribute(RowCollector, "write", lambda *_: None)
        else:
            assert name == "direct"
            set_attribute(direct, "run_direct", lambda *_: None)
