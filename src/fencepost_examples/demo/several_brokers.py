"""The demo's own cluster of several brokers, and what it does to one of them at a time.

The cluster is one `fencepost serve --brokers N` program. Its brokers are processes in sessions of
their own; the demo reaches them through the control socket of the cluster.

    kill    kill -9; another broker takes over, and the dead one returns after an outage
    pause   SIGSTOP for less than the session timeout, then SIGCONT: no broker takes over
    roll    others take over, the broker stops cleanly and returns
"""

from __future__ import annotations

import contextlib
import random
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from fencepost.base.failures import FencepostError
from fencepost.base.ids import NO_NODE
from fencepost.client.blocking import Cluster
from fencepost.client.routes import CoordinatorKind
from fencepost.cluster.parent.control import send_command
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.find_coordinator import FindCoordinatorRequest
from fencepost_examples.demo.cluster import READY
from fencepost_examples.demo.plan import Aim
from fencepost_examples.demo.processes import Supervisor, await_line


class Target(NamedTuple):
    """A broker, and why it was chosen."""

    broker_id: int
    role: str = ""

    def __str__(self) -> str:
        return f"broker {self.broker_id}" + (f", {self.role}" if self.role else "")


class OwnCluster:
    """A `fencepost serve --brokers N` program."""

    def __init__(self, supervisor: Supervisor, data: Path, brokers: int) -> None:
        self._supervisor = supervisor
        self._data = data
        self._brokers = brokers
        self.address = "127.0.0.1:0"

    def start(self) -> None:
        """Starts the brokers and waits until all of them serve."""
        command = [sys.executable, "-m", "fencepost", "serve", "--brokers", str(self._brokers)]
        command += ["--listen", self.address, "--data", str(self._data)]
        program = self._supervisor.start("broker", command)
        self.address = await_line(program, READY, 0).removeprefix(READY).strip()

    def serving(self) -> list[int]:
        """The brokers that serve clients."""
        status = self._command("status")
        return [each["id"] for each in status["brokers"] if each["state"] == "serving"]

    def kill(self, broker_id: int, outage_ms: int) -> None:
        """Kills a broker with SIGKILL, and starts it again after the outage."""
        self._command("kill", broker_id)
        time.sleep(outage_ms / 1000)
        self._command("restart", broker_id)

    def pause(self, broker_id: int, pause_ms: int) -> None:
        """Stops the process of a broker for a while."""
        self._command("pause", broker_id)
        time.sleep(pause_ms / 1000)
        # If this machine was suspended, the cluster may have killed the broker already; it
        # then starts it again by itself.
        with contextlib.suppress(FencepostError):
            self._command("resume", broker_id)

    def roll(self, broker_id: int) -> None:
        """Stops a broker cleanly and starts it again."""
        self._command("roll", broker_id)

    def _command(self, name: str, broker_id: int | None = None) -> Any:
        about = {} if broker_id is None else {"broker": broker_id}
        return send_command(str(self._data), {"do": name, **about})


def choose(
    aim: Aim,
    cluster: Cluster,
    serving: list[int],
    *,
    transactional_id: str,
    topic: str,
    rng: random.Random,
) -> Target:
    """Returns the broker that has the role, or any broker if none has it at the moment."""
    with contextlib.suppress(FencepostError):
        if aim is Aim.COORDINATOR:
            found = _coordinator_of(cluster, transactional_id)
            if found in serving:
                return Target(found, f"the transaction coordinator of {transactional_id!r}")
        elif aim is Aim.LEADER:
            partition = rng.choice(cluster.metadata([topic]).topics[topic].partitions)
            if partition.leader in serving:
                return Target(partition.leader, f"the leader of {topic}-{partition.index}")
    return Target(rng.choice(serving))


def _coordinator_of(cluster: Cluster, transactional_id: str) -> int:
    request = FindCoordinatorRequest(
        key_type=int(CoordinatorKind.TRANSACTION), coordinator_keys=[transactional_id]
    )
    reply = cluster.send_request(ApiKey.FIND_COORDINATOR, request)
    (found,) = reply.coordinators
    return NO_NODE if found.error_code else int(found.node_id)
