"""kill -9 of a coordinator with open transactions: the time until each of them is committed.

Three brokers, replication factor 3, and partitions that already hold a gigabyte each, one led by
each broker. The killed broker coordinates all transactions and leads a third of what they wrote to.
See `bench/generator/failover.py` for what the producers do.

The parent of fencepost's brokers learns of the death from the kernel at once. The controller of
Apache Kafka learns of it when the broker's session times out, after 9 s by default: most of its
figure is that timeout, not work. It also keeps three copies, and survives the loss of a machine;
fencepost has one copy on one disk.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench.clusters import Cluster, running
from bench.generate import Figures, generate, run_generator
from bench.load import Load, Measure, Round, Scale, Values
from bench.sides import Side

BROKERS: Final = 3
VICTIM: Final = 2
"""Not the first, which is the controller of Apache Kafka."""
TRANSACTIONS: Final = 1_000
BACKOFF_MS: Final = 100
MEGABYTES: Final = 1_000
QUICK_MEGABYTES: Final = 50
SIZE_VARIABLE: Final = "FAILOVER_MEGABYTES"
TOPIC: Final = "failover"
MEDIAN_SECONDS: Final = 0.5
SLOWEST_SECONDS: Final = 1.5


@contextmanager
def _session(side: Side, scale: Scale, folder: Path) -> Iterator[Round]:
    megabytes = int(os.environ.get(SIZE_VARIABLE) or scale.of(MEGABYTES, QUICK_MEGABYTES))

    def run(number: int) -> Values:
        data = folder / str(number)
        try:
            with running(side, data, BROKERS) as cluster:
                _fill(cluster, megabytes * 1_000_000)
                return _kill(cluster)
        finally:
            # Gigabytes: not to be kept until the end of the load.
            shutil.rmtree(data, ignore_errors=True)

    yield run


def _fill(cluster: Cluster, partition_bytes: int) -> None:
    """Writes the partitions in transactions of a megabyte, one producer for each."""
    generate(
        cluster,
        "tv2",
        topic=TOPIC,
        partitions=BROKERS,
        producers=BROKERS,
        records=1000,
        seconds=3600,
        max_bytes=partition_bytes * BROKERS,
    )


def _kill(cluster: Cluster) -> Figures:
    return run_generator(
        "bench.generator.failover",
        {
            "bootstrap": cluster.bootstrap_servers,
            "topic": TOPIC,
            "victim": VICTIM,
            "victim-pid": cluster.pids()[VICTIM],
            "count": TRANSACTIONS,
            "backoff-ms": BACKOFF_MS,
        },
    )


LOAD: Final = Load(
    "failover",
    f"kill -9 of the coordinator of {TRANSACTIONS:,} open transactions, partitions of 1 GB",
    (
        Measure("p50", "s from the kill to the commit, p50", "less", limit=MEDIAN_SECONDS),
        Measure("p99", "s from the kill to the commit, p99", "less", limit=SLOWEST_SECONDS),
        Measure("first", "s to the first commit", "less"),
        Measure("worst", "s to the last commit", "less"),
        Measure("retries", "retries per transaction", "less"),
        Measure("generator", "processors of the generator", "less"),
    ),
    _session,
    rounds=3,
    quick_rounds=1,
    # A broker that has written gigabytes is warm.
    warmup_seconds=0,
    quick_warmup_seconds=0,
    quick_note=f"{QUICK_MEGABYTES} MB",
)
