"""Three brokers that do nothing, beside one: memory, and the time until they are ready.

Ready is the line that `fencepost serve` prints when every broker serves. The memory of several
processes is counted in proportion: a page that four of them share counts a quarter for each.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench.clusters import proportional_bytes, running
from bench.load import Load, Measure, Round, Scale, Values
from bench.sides import Side

BROKERS: Final = 3
LARGEST_MEGABYTES: Final = 150.0
LONGEST_SECONDS: Final = 1.0


@contextmanager
def _session(side: Side, _: Scale, folder: Path) -> Iterator[Round]:
    def run(number: int) -> Values:
        data = folder / str(number)
        with running(side, data, BROKERS) as cluster:
            ready = cluster.process.seconds_since_start()
            parent = proportional_bytes(cluster.process.pid)
            brokers = sum(map(proportional_bytes, cluster.pids().values()))
        shutil.rmtree(data)
        with side.start(data) as broker:
            ready_alone = broker.process.seconds_since_start()
            alone = proportional_bytes(broker.process.pid)
        shutil.rmtree(data)
        return {
            "ready": ready,
            "memory": (parent + brokers) / 1e6,
            "parent": parent / 1e6,
            "each": brokers / BROKERS / 1e6,
            "one ready": ready_alone,
            "one memory": alone / 1e6,
        }

    yield run


LOAD: Final = Load(
    "idle",
    f"{BROKERS} idle brokers",
    (
        Measure("ready", "s until all are ready", "less", limit=LONGEST_SECONDS),
        Measure("memory", "MB, brokers and parent (Pss)", "less", limit=LARGEST_MEGABYTES),
        Measure("parent", "MB, the parent (Pss)", "less"),
        Measure("each", "MB, each broker (Pss)", "less"),
        Measure("one ready", "one broker: s until it is ready", "less"),
        Measure("one memory", "one broker: MB (Pss)", "less"),
    ),
    _session,
    rounds=5,
    quick_rounds=3,
    # The first start reads Python's files from the disk, or compiles them.
    warmup_seconds=1,
    quick_warmup_seconds=1,
    only_ours=True,
)
