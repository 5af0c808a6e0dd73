"""Several brokers on one machine, as the loads of a cluster use them.

fencepost starts its brokers itself (`serve --brokers N`), and its parent is the controller. Of
Apache Kafka there are as many processes as brokers: the first is the controller as well. Loads kill
another one, so that on both sides the controller survives. Apache Kafka keeps a copy per replica;
fencepost keeps one.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, Protocol

from bench.sides import KAFKA, KAFKA_DELETES_SOON, Side, fencepost_python
from fencepost.cluster.parent.control import send_command
from tools.apache_kafka import ApacheKafka
from tools.fencepost_process import FencepostProcess
from tools.processes import ServerProcess, free_port

KAFKA_HEAP: Final = "512m"
"""Three heaps of 1 GB, as Kafka's start script has it, would leave the page cache too little."""
STARTED_SECONDS: Final = 120.0


class Cluster(Protocol):
    """A running cluster. Loads use it as they use one broker."""

    bootstrap_servers: str
    data: Path

    @property
    def process(self) -> ServerProcess:
        """The process of the controller."""

    def pids(self) -> Mapping[int, int]:
        """The processes of the brokers, by broker id."""

    def stop(self, seconds: float = ...) -> int: ...


class FencepostCluster(FencepostProcess):
    """`fencepost serve --brokers N` on free ports."""

    def __init__(self, data: Path, brokers: int) -> None:
        super().__init__(data, options=["--brokers", str(brokers)], python=fencepost_python())

    def pids(self) -> Mapping[int, int]:
        """The processes of the brokers, by broker id."""
        status = send_command(str(self.data), {"do": "status"})
        return {one["id"]: one["pid"] for one in status["brokers"]}


class KafkaCluster:
    """Apache Kafka in several processes, the first of which is the controller."""

    def __init__(self, data: Path, brokers: int) -> None:
        self.data = data
        controller_port = free_port()
        self._brokers: dict[int, ApacheKafka] = {}
        with ExitStack() as started:
            for broker_id in range(1, brokers + 1):
                port = free_port()
                broker = ApacheKafka(
                    data / str(broker_id),
                    settings=kafka_settings(broker_id, brokers, port, controller_port),
                    heap=KAFKA_HEAP,
                    port=port,
                    wait=False,
                )
                self._brokers[broker_id] = started.enter_context(broker)
            for broker in self._brokers.values():
                broker.process.wait_for_port("127.0.0.1", broker.port, STARTED_SECONDS)
            started.pop_all()
        self.bootstrap_servers = ",".join(each.bootstrap_servers for each in self._brokers.values())

    @property
    def process(self) -> ServerProcess:
        """The process of the controller."""
        return self._brokers[1].process

    def pids(self) -> Mapping[int, int]:
        """The processes of the brokers, by broker id."""
        return {
            broker_id: each.process.pid
            for broker_id, each in self._brokers.items()
            if each.process.is_alive
        }

    def stop(self, seconds: float = 1.0) -> int:
        """Ends all processes. Their data are deleted anyway, so a clean stop has no value."""
        for broker in reversed(self._brokers.values()):
            broker.kill()
        return 0


def kafka_settings(broker_id: int, brokers: int, port: int, controller_port: int) -> dict[str, str]:
    """What differs from one broker alone; everything else is Kafka's default."""
    copies, in_sync = str(min(3, brokers)), str(2 if brokers > 2 else 1)
    plain = f"PLAINTEXT://127.0.0.1:{port}"
    listeners = f"{plain},CONTROLLER://127.0.0.1:{controller_port}" if broker_id == 1 else plain
    return {
        **KAFKA_DELETES_SOON,
        "process.roles": "broker,controller" if broker_id == 1 else "broker",
        "node.id": str(broker_id),
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "listeners": listeners,
        "advertised.listeners": plain,
        "default.replication.factor": copies,
        "offsets.topic.replication.factor": copies,
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": in_sync,
        "share.coordinator.state.topic.replication.factor": copies,
        "share.coordinator.state.topic.min.isr": in_sync,
    }


@contextmanager
def running(side: Side, data: Path, brokers: int) -> Iterator[Cluster]:
    """A cluster of that side on an empty folder; all its processes end with the block."""
    cluster: Cluster = (
        KafkaCluster(data, brokers) if side is KAFKA else FencepostCluster(data, brokers)
    )
    try:
        yield cluster
    finally:
        cluster.stop()


def kill(pid: int) -> None:
    """kill -9 of one process, as the system would do it when memory runs out."""
    os.kill(pid, signal.SIGKILL)


def proportional_bytes(pid: int) -> int:
    """The memory of a process, with its part of what it shares with others (Linux: Pss)."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    (found,) = (line.split()[1] for line in lines if line.startswith("Pss:"))
    return int(found) * 1024
