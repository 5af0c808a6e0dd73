"""The brokers of a run: one of our own that may be killed, or a given cluster that may not."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection
from pathlib import Path
from typing import Final

from fencepost.base.failures import FencepostError
from fencepost.base.ids import TopicPartition
from fencepost.client.blocking import Cluster, connect
from fencepost.client.failures import RetriesExhausted
from fencepost.client.reading import LATEST
from fencepost.demo.processes import Program, Supervisor, await_line
from fencepost.examples.refunds.spark.fill import PARTITIONS
from fencepost.examples.refunds.spark.settlements import Topics

SHORT_TIMEOUTS: Final = {"default.api.timeout.ms": 2_000, "request.timeout.ms": 1_000}
"""For looking on: an answer that comes late is of no use."""

CONNECT_TIMEOUTS: Final = {"default.api.timeout.ms": 10_000, "request.timeout.ms": 5_000}
"""For brokers that somebody has named and that may not be there."""

READY: Final = "fencepost is ready at "


class OwnBroker:
    """`fencepost serve` as a process that can be killed and comes back at the same address."""

    def __init__(self, supervisor: Supervisor, data: Path) -> None:
        self._supervisor = supervisor
        self._data = data
        self._program: Program | None = None
        self.address = "127.0.0.1:0"

    def start(self) -> None:
        command = [sys.executable, "-m", "fencepost", "serve", "--listen", self.address]
        log = self._supervisor.log_of("broker")
        position = log.stat().st_size if log.exists() else 0
        self._program = self._supervisor.start("broker", [*command, "--data", str(self._data)])
        self.address = await_line(self._program, READY, position).removeprefix(READY).strip()

    def kill(self) -> None:
        assert self._program is not None
        self._program.kill()


def require_brokers(address: str) -> None:
    """FencepostError when nobody answers there."""
    try:
        with connect(address, CONNECT_TIMEOUTS) as cluster:
            cluster.metadata()
    except RetriesExhausted as problem:
        raise FencepostError(
            f"no broker answers at {address} ({problem}): start it, or correct --bootstrap-servers"
        ) from problem


def delete_topics(cluster: Cluster, topics: Collection[Topics], ledger: str) -> None:
    """Leaves a given cluster as it was."""
    names = {name for group in topics for name in group.schemas}
    # The sink makes it when it starts.
    if cluster.find_topic(ledger) is not None:
        names.add(ledger)
    cluster.delete_topics(sorted(names))


class TopicWatcher:
    """Sees when a topic is being written to, committed or not."""

    def __init__(self, address: str) -> None:
        self._cluster = connect(address, SHORT_TIMEOUTS)

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
