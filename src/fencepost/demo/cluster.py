"""The brokers of a run: one of our own that may be killed, or a given cluster that may not."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection
from pathlib import Path
from typing import Final

from fencepost.base.failures import FencepostError
from fencepost.base.ids import TopicPartition
from fencepost.client.admin import NewTopic
from fencepost.client.blocking import Cluster, connect
from fencepost.client.reading import LATEST
from fencepost.demo.processes import Household, Program, await_line
from fencepost.examples.refunds.settlements import Topics, generate
from fencepost.records.opened import Record

PARTITIONS: Final = 2
"""Of every topic: as many as there are executors, so that each reads and writes one."""

RECORDS_PER_BATCH: Final = 1_000
IMPATIENT: Final = {"default.api.timeout.ms": 2_000, "request.timeout.ms": 1_000}
"""For looking on: an answer that comes late is of no use."""

READY: Final = "fencepost is ready at "


class OwnBroker:
    """`fencepost serve` as a process that can be killed and comes back at the same address."""

    def __init__(self, household: Household, data: Path) -> None:
        self._household = household
        self._data = data
        self._program: Program | None = None
        self.address = "127.0.0.1:0"

    def start(self) -> None:
        command = [sys.executable, "-m", "fencepost", "serve", "--listen", self.address]
        log = self._household.log_of("broker")
        position = log.stat().st_size if log.exists() else 0
        self._program = self._household.start("broker", [*command, "--data", str(self._data)])
        self.address = await_line(self._program, READY, position).removeprefix(READY).strip()

    def kill(self) -> None:
        assert self._program is not None
        self._program.kill()


def create_topics(cluster: Cluster, topics: Collection[Topics]) -> None:
    """Every topic of the run; FencepostError when one is there already, because it would be counted too."""
    names = sorted({name for group in topics for name in group.schemas})
    existing = sorted(cluster.metadata().topics.keys() & set(names))
    if existing:
        raise FencepostError(
            f"the cluster has a topic {existing[0]!r} already: the demo needs its own"
        )
    cluster.create_topics([NewTopic(name, PARTITIONS) for name in names])


def delete_topics(cluster: Cluster, topics: Collection[Topics]) -> None:
    """Leaves a given cluster as it was."""
    cluster.delete_topics(sorted({name for group in topics for name in group.schemas}))


def write_settlements(cluster: Cluster, topic: str, count: int) -> None:
    """Fills the first topic."""
    lanes: list[list[Record]] = [[] for _ in range(PARTITIONS)]
    for number, settlement in enumerate(generate(count)):
        key = settlement.refund_id.encode()
        lanes[number % PARTITIONS].append(Record(key=key, value=settlement.as_json()))
    with cluster.writer(cluster.init_producer_id(None)) as writer:
        for index, lane in enumerate(lanes):
            for start in range(0, len(lane), RECORDS_PER_BATCH):
                part = lane[start : start + RECORDS_PER_BATCH]
                writer.write_records(TopicPartition(topic, index), part)
        writer.flush()


class Onlooker:
    """Sees when a topic is being written to, committed or not."""

    def __init__(self, address: str) -> None:
        self._cluster = connect(address, IMPATIENT)

    def close(self) -> None:
        self._cluster.close()

    def size(self, topic: str) -> int | None:
        """How many offsets a topic spans; None when the brokers do not answer."""
        places = [TopicPartition(topic, index) for index in range(PARTITIONS)]
        try:
            ends = self._cluster.list_offsets(
                dict.fromkeys(places, LATEST), isolation="read_uncommitted"
            )
        except FencepostError:
            return None
        return sum(end.offset for end in ends.values())


def unique_prefix() -> str:
    """For the topics on a cluster that others use too."""
    return f"fencepost-demo-{time.time_ns() // 1_000_000:x}-"
