"""The broker of a run: the demo's own, which it kills, or a given cluster, which it does not."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection
from pathlib import Path
from typing import Final

from fencepost.base.failures import FencepostError
from fencepost.base.ids import TopicPartition
from fencepost.client.blocking import Cluster, connect
from fencepost.client.failures import NoBrokerAnswers
from fencepost.client.reading import LATEST
from fencepost_examples.demo.processes import Program, Supervisor, await_line
from fencepost_examples.refunds.spark.fill import PARTITIONS
from fencepost_examples.refunds.spark.settlements import Topics

SHORT_TIMEOUTS: Final = {"default.api.timeout.ms": 2_000, "request.timeout.ms": 1_000}
"""For watching topics: late answers are useless."""

CONNECT_TIMEOUTS: Final = {"default.api.timeout.ms": 10_000, "request.timeout.ms": 5_000}
"""For the first request to a given cluster, which may be down."""

READY: Final = "fencepost is ready at "


class OwnBroker:
    """A `fencepost serve` process that can be killed and restarted at the same address."""

    def __init__(self, supervisor: Supervisor, data: Path) -> None:
        self._supervisor = supervisor
        self._data = data
        self._program: Program | None = None
        self.address = "127.0.0.1:0"

    def start(self) -> None:
        """Starts the broker and waits until it is ready."""
        command = [sys.executable, "-m", "fencepost", "serve", "--listen", self.address]
        log = self._supervisor.log_of("broker")
        position = log.stat().st_size if log.exists() else 0
        self._program = self._supervisor.start("broker", [*command, "--data", str(self._data)])
        self.address = await_line(self._program, READY, position).removeprefix(READY).strip()

    def kill(self) -> None:
        """Kills the broker with SIGKILL."""
        assert self._program is not None
        self._program.kill()


def require_brokers(address: str) -> None:
    """Raises FencepostError if no broker answers."""
    try:
        with connect(address, CONNECT_TIMEOUTS) as cluster:
            cluster.reach()
    except NoBrokerAnswers as problem:
        raise FencepostError(
            f"no broker answers at {address} ({problem}): start it, or correct --bootstrap-servers"
        ) from problem


def delete_topics(cluster: Cluster, topics: Collection[Topics], ledger: str) -> None:
    """Deletes the demo's topics from a given cluster."""
    names = {name for group in topics for name in group.schemas}
    # The sink creates it when it starts.
    if cluster.find_topic(ledger) is not None:
        names.add(ledger)
    cluster.delete_topics(sorted(names))


class TopicWatcher:
    """Detects writes to a topic, committed or not."""

    def __init__(self, address: str) -> None:
        self.cluster: Final = connect(address, SHORT_TIMEOUTS)

    def close(self) -> None:
        """Closes the connection."""
        self.cluster.close()

    def size(self, topic: str) -> int | None:
        """Returns the sum of a topic's end offsets; None if the brokers do not answer."""
        places = [TopicPartition(topic, index) for index in range(PARTITIONS)]
        try:
            ends = self.cluster.list_offsets(
                dict.fromkeys(places, LATEST), isolation="read_uncommitted"
            )
        except FencepostError:
            return None
        return sum(end.offset for end in ends.values())


def unique_prefix() -> str:
    """Returns a topic prefix for a shared cluster."""
    return f"fencepost-demo-{time.time_ns() // 1_000_000:x}-"
