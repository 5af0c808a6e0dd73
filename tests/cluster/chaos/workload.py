"""What runs under the faults: a feeder, copiers, and a reader that follows the copies."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Producer

from fencepost.base.failures import FencepostError
from fencepost.base.ids import TopicPartition
from fencepost.client.admin import NewTopic
from fencepost.client.blocking import Cluster, connect
from fencepost.client.groups import CommittedOffset
from tests.cluster.chaos.audit import Seen
from tests.cluster.chaos.checked_confluent import GAVE_UP
from tests.cluster.chaos.cluster_process import fencepost_environment
from tests.cluster.chaos.copier import (
    CLIENTS,
    COPIES,
    SOURCE,
    TRANSACTION_TIMEOUT_MS,
    decode_copy,
    group_of,
)
from tools.processes import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Callable

COPY_PARTITIONS: Final = 6
PARTITIONS_PER_COPIER: Final = 2
KEYS_PER_PARTITION: Final = 12
LAG: Final = 60
"""How many records a copier may be behind before its partitions get no more."""

FEED_SECONDS: Final = 0.05
"""Every partition gets one record in this time: enough for transactions without a pause, and the
brokers of a machine with two cores are not busy with it."""
STUCK_SECONDS: Final = 60.0
"""A copier without progress for so long has lost its way, and that is a problem."""

FORGETFUL: Final = {"kafka-python": 15.0, "aiokafka": 15.0}
"""Clients that can hang by themselves; after so many seconds without progress they are restarted,
as an operator would do. kafka-python 3.0 drops a request of a transaction when it cannot connect to
the coordinator that it knows, and waits for the answer (`_maybe_send_pending_request`)."""


class Feeder(threading.Thread):
    """Writes numbered records to `source` with an idempotent producer, which retries for ever."""

    def __init__(self, servers: str, partitions: int, wants: Callable[[int], bool]) -> None:
        super().__init__(name="feeder", daemon=True)
        self._producer = Producer(
            {
                "bootstrap.servers": servers,
                "metadata.recovery.strategy": "none",
                "enable.idempotence": True,
                "message.timeout.ms": 0,
                "reconnect.backoff.max.ms": 1_000,
                "linger.ms": 2,
            }
        )
        self._partitions = partitions
        self._wants = wants
        self._stopping = threading.Event()
        self.fed: dict[int, list[str]] = {index: [] for index in range(partitions)}
        self.problems: list[str] = []

    def run(self) -> None:
        while not self._stopping.is_set() and not self.problems:
            for index, values in self.fed.items():
                if self._wants(index):
                    number = len(values)
                    values.append(f"{index}.{number % KEYS_PER_PARTITION}/{number}")
                    self._producer.produce(
                        SOURCE, values[-1], partition=index, on_delivery=self._delivered
                    )
            self._producer.poll(FEED_SECONDS)

    def _delivered(self, error: Any, _: Any) -> None:
        if error is not None:
            self.problems.append(f"the idempotent producer of the source lost a record: {error}")

    def stop(self, seconds: float) -> None:
        """Writes no more; returns when everything is acknowledged."""
        self._stopping.set()
        self.join()
        left = self._producer.flush(seconds)
        if left:
            self.problems.append(f"{left} records of the source were not acknowledged in time")


class Reader(threading.Thread):
    """Follows `copies` with read_committed, from the first record to the last."""

    def __init__(self, servers: str) -> None:
        super().__init__(name="reader", daemon=True)
        self._cluster = connect(
            servers, {"default.api.timeout.ms": 5_000, "request.timeout.ms": 5_000}
        )
        self._stopping = threading.Event()
        self._moved = threading.Condition()
        self.seen: list[Seen] = []
        self.count_of_partition: defaultdict[int, int] = defaultdict(int)
        """How many copies were seen, per partition of the source."""
        self.failures = 0

    def run(self) -> None:
        positions = {TopicPartition(COPIES, index): 0 for index in range(COPY_PARTITIONS)}
        while not self._stopping.is_set():
            try:
                self._read(positions)
            except FencepostError:
                self.failures += 1  # Nobody leads a partition at the moment; read on.

    def _read(self, positions: dict[TopicPartition, int]) -> None:
        fetched = self._cluster.fetch(positions, isolation="read_committed", max_wait_ms=200)
        with self._moved:
            for partition, part in fetched.items():
                for record in part.records():
                    assert record.value is not None
                    copy = decode_copy(record.value)
                    self.seen.append(Seen(partition.partition, record.offset, copy))
                    self.count_of_partition[copy.partition] += 1
                positions[partition] = part.next_offset
            self._moved.notify_all()

    def count(self, partitions: range) -> int:
        """How many copies of some source partitions were seen."""
        return sum(self.count_of_partition[index] for index in partitions)

    def wait_for(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Returns whether a condition on what was seen holds in time."""
        with self._moved:
            return self._moved.wait_for(condition, seconds)

    def stop(self) -> None:
        self._stopping.set()
        self.join()
        self._cluster.close()


def partitions_of(number: int) -> range:
    """The source partitions of a copier."""
    return range(number * PARTITIONS_PER_COPIER, (number + 1) * PARTITIONS_PER_COPIER)


def copier_command(client: str, servers: str, partitions: range, seed: int) -> list[str]:
    """The command of a copier; the one in Java is compiled if need be (`make compat`)."""
    indexes = ",".join(map(str, partitions))
    if client == "java":
        from tools.apache_kafka import java_command

        timeout_ms = str(TRANSACTION_TIMEOUT_MS)
        return java_command("Copier", servers, client, indexes, timeout_ms, str(seed))
    command = [sys.executable, "-m", "tests.cluster.chaos.copier", "--client", client]
    command += ["--servers", servers, "--name", client, "--seed", str(seed)]
    return [*command, "--partitions", indexes]


class CopierProcess:
    """One copier, and how far it has come."""

    def __init__(self, client: str, number: int, servers: str, seed: int) -> None:
        self.name = client
        self.partitions = partitions_of(number)
        self._command = copier_command(client, servers, self.partitions, seed)
        self._earlier = ""
        self.patience_seconds = FORGETFUL.get(client, STUCK_SECONDS)
        self.moved_at = time.monotonic()
        self.count = 0
        self.process: ServerProcess
        self.start()

    def start(self) -> None:
        self.process = ServerProcess(
            self._command, environment=fencepost_environment(), kept_lines=None
        )
        self.moved_at = time.monotonic()

    @property
    def output(self) -> str:
        """What it has printed, before restarts too."""
        return self._earlier + self.process.output

    def restart(self) -> None:
        """Kills it (-9) and starts another one."""
        self.process.kill()
        self._earlier = self.output
        self.start()


class Workload:
    """The feeder, the copiers and the reader of one run."""

    def __init__(self, servers: str, *, seed: int, clients: tuple[str, ...] = CLIENTS) -> None:
        source_partitions = PARTITIONS_PER_COPIER * len(clients)
        with connect(servers) as cluster:
            cluster.create_topics(
                [NewTopic(SOURCE, source_partitions, 3), NewTopic(COPIES, COPY_PARTITIONS, 3)]
            )
            for number, client in enumerate(clients):
                places = [TopicPartition(SOURCE, index) for index in partitions_of(number)]
                cluster.offset_commit(group_of(client), dict.fromkeys(places, CommittedOffset(0)))
        self.source_partitions = source_partitions
        self.reader = Reader(servers)
        self.feeder = Feeder(servers, source_partitions, self._wants_more)
        self.reader.start()
        self.feeder.start()
        self.copiers = [
            CopierProcess(client, number, servers, seed) for number, client in enumerate(clients)
        ]
        self.problems: list[str] = []
        self.stuck: list[str] = []

    def _wants_more(self, index: int) -> bool:
        return len(self.feeder.fed[index]) - self.reader.count_of_partition[index] < LAG

    def wait_for_progress(self, copiers: int, seconds: float) -> bool:
        """Returns when some copiers have copied more, or False; restarts those that are stuck."""
        before = [self.reader.count(each.partitions) for each in self.copiers]
        deadline = time.monotonic() + seconds

        def has_moved() -> bool:
            moved = [
                self.reader.count(each.partitions) > count
                for each, count in zip(self.copiers, before, strict=True)
            ]
            return sum(moved) >= copiers

        while time.monotonic() < deadline:
            if self.reader.wait_for(has_moved, 1.0):
                self.look_after_copiers()
                return True
            self.look_after_copiers()
        return False

    def look_after_copiers(self) -> None:
        """Restarts copiers that have not moved for long although they have work."""
        now = time.monotonic()
        for each in self.copiers:
            count = self.reader.count(each.partitions)
            has_work = count < sum(len(self.feeder.fed[index]) for index in each.partitions)
            if count > each.count or not has_work:
                each.count, each.moved_at = count, now
            elif now - each.moved_at > each.patience_seconds or not each.process.is_alive:
                self._rescue(each, f"{each.name} stood still at {count} copies")

    def _rescue(self, copier: CopierProcess, reason: str) -> None:
        if copier.name in FORGETFUL or copier.process.status == GAVE_UP:
            self.stuck.append(reason)
        else:
            self.problems.append(f"{reason} for {copier.patience_seconds:g} s")
        copier.restart()

    def finish(self, seconds: float) -> None:
        """Feeds no more, and waits until everything is copied; then ends the copiers."""
        self.feeder.stop(seconds)
        wanted = sum(map(len, self.feeder.fed.values()))
        deadline = time.monotonic() + seconds
        everything = range(self.source_partitions)
        while self.reader.count(everything) < wanted and time.monotonic() < deadline:
            self.reader.wait_for(lambda: self.reader.count(everything) >= wanted, 1.0)
            self.look_after_copiers()
        self.problems += self.feeder.problems
        if self.reader.count(everything) < wanted:
            self.problems.append(f"only {len(self.reader.seen)} of {wanted} records were copied")
        for each in self.copiers:
            each.process.stop(10.0)

    def close(self) -> None:
        """Ends everything, however it stands."""
        for each in self.copiers:
            each.process.kill()
        if self.reader.is_alive():
            self.reader.stop()
        if self.feeder.is_alive():
            self.feeder.stop(0.0)

    def save_output(self, folder: Path) -> None:
        """Writes what the copiers have printed to files."""
        for each in self.copiers:
            with contextlib.suppress(OSError):
                (folder / f"copier-{each.name}.log").write_text(each.output)


def read_all(cluster: Cluster, topic: str, partitions: int) -> dict[int, list[Any]]:
    """The committed records of a topic, by partition."""
    return {
        index: list(cluster.records(TopicPartition(topic, index), isolation="read_committed"))
        for index in range(partitions)
    }
