"""A Spark standalone cluster of real processes: a master, and workers that can be lost.

    with StandaloneCluster(tmp_path, workers=3) as cluster:
        spark = sessions.session(cluster.master_url, cluster.settings())
        cluster.workers[0].kill()                 # the machine is gone, with its executors
        cluster.workers[0].start()                # and back
        cluster.workers[1].kill_executors()       # the worker starts others
        cluster.workers[2].decommission()
        cluster.add_worker()

A worker stands for a machine with one core. Its processes are the Worker, the executors that it
starts, and their Python daemons and workers. The daemons leave the process group, and tests may
make a worker leave its session too, so the processes of a machine are found by a variable in their
environment. Whatever ends the block ends all of them.

Every port is chosen by the system. A method returns when its effect is there; the master notices it
later.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

from tests.spark.conftest import environment
from tools.processes import ServerProcess

START_SECONDS: Final = 180.0
WORKER_MEMORY: Final = "1g"
EXECUTOR_MEMORY: Final = "512m"
"""Spark refuses to start an executor with much less."""

DYNAMIC_ALLOCATION: Final = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.timeout": "2s",
    "spark.dynamicAllocation.executorIdleTimeout": "2s",
    "spark.dynamicAllocation.minExecutors": "0",
}
"""Settings with which executors leave soon after their last task."""

_MARK: Final = "FENCEPOST_TEST_MACHINE"
_MASTER: Final = "org.apache.spark.deploy.master.Master"
_WORKER: Final = "org.apache.spark.deploy.worker.Worker"
EXECUTOR: Final = "CoarseGrainedExecutorBackend"

# The master would remove an application that has lost ten executors in a row. The optimising
# compiler does not pay off in processes that live for a minute.
_DAEMON_OPTIONS: Final = (
    "-Dspark.decommission.enabled=true -Dspark.deploy.maxExecutorRetries=-1 -XX:TieredStopAtLevel=1"
)


class Machine:
    """The processes of one machine: a server of Spark, and everything that it has started."""

    def __init__(
        self,
        command: Sequence[str],
        folder: Path,
        prefix: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self._command = [*prefix, *command]
        self.folder = folder
        self._variables = dict(variables or {})
        self._mark = uuid.uuid4().hex
        self._process: ServerProcess | None = None

    @property
    def process(self) -> ServerProcess:
        """The server; an assertion if it was never started."""
        assert self._process is not None, "the machine has not been started"
        return self._process

    @property
    def is_alive(self) -> bool:
        """Whether its server runs."""
        return self._process is not None and self._process.is_alive

    def start(self) -> None:
        """Starts the server, for the first time or after `kill`."""
        assert not self.is_alive, "the machine runs already"
        self._process = ServerProcess(
            self._command, environment=self._variables | {_MARK: self._mark}, folder=self.folder
        )

    def kill(self) -> None:
        """Kills every process of the machine at once (-9), as if its power was cut."""
        # Processes that are being started now are found the next time.
        while found := self.pids():
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.002)
        if self._process is not None:
            self._process.kill()

    def pids(self, words: str = "") -> list[int]:
        """All its processes, or those with these words in their command."""
        mark = f"{_MARK}={self._mark}".encode()
        return [pid for pid in _running_with(mark) if words in _command_of(pid)]


class Worker(Machine):
    """A machine with a Worker."""

    def start(self) -> None:
        """Starts the worker; returns when the master has it."""
        self.begin()
        self.await_start()

    def begin(self) -> None:
        """Starts the worker without waiting, so that several can start side by side."""
        super().start()

    def await_start(self) -> None:
        """Returns when the master has the worker."""
        self.process.wait_for_line(_found(r"(Successfully registered) with master"), START_SECONDS)

    def kill_worker(self) -> None:
        """Kills the Worker alone (-9). Its executors notice, and exit."""
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait_for_end()

    def kill_executors(self) -> int:
        """Kills its executors (-9), whose Python workers follow; returns their number."""
        found = self.pids(EXECUTOR)
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return len(found)

    def decommission(self) -> None:
        """Asks the Worker to decommission itself and its executors; it stays until `kill`."""
        os.kill(self.process.pid, signal.SIGPWR)
        self.process.wait_for_line(_found("(?i)(decommission)"), START_SECONDS)


class StandaloneCluster:
    """A master and its workers, and what Spark needs to know about them."""

    def __init__(
        self,
        folder: Path,
        workers: int = 3,
        *,
        host: str = "127.0.0.1",
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """`variables` are added to the environment of every process."""
        self.folder = folder
        self.host = host
        self._variables = environment() | _SMALL | dict(variables or {})
        self._wanted = workers
        self.workers: list[Worker] = []
        """In the order in which they were added, dead ones included."""
        self.master_url = ""
        self.master = self._machine(Machine, [_MASTER, "--host", host, "--port", "0"])

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Starts the master and the workers."""
        self.master.start()
        wait = self.master.process.wait_for_line
        self.master_url = wait(_found(r"Starting Spark master at (spark://\S+)"), START_SECONDS)
        added = [self._new_worker(None, (), {}) for _ in range(self._wanted)]
        for worker in added:
            worker.begin()
        for worker in added:
            worker.await_start()

    def close(self) -> None:
        """Kills everything."""
        for machine in (*self.workers, self.master):
            machine.kill()

    def add_worker(
        self,
        host: str | None = None,
        prefix: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
        owner: str | None = None,
    ) -> Worker:
        """Adds a machine with one core; returns when the master has it.

        `prefix` comes before the command: another user, who is the owner, or a network namespace.
        """
        worker = self._new_worker(host, prefix, variables or {})
        if owner is not None:
            shutil.chown(worker.folder, owner)
        worker.start()
        return worker

    def settings(self) -> dict[str, str]:
        """The settings of a session on this cluster: one core and one executor per worker."""
        return {
            "spark.executor.memory": EXECUTOR_MEMORY,
            "spark.executor.cores": "1",
            "spark.decommission.enabled": "true",
        }

    def _new_worker(
        self, host: str | None, prefix: Sequence[str], variables: Mapping[str, str]
    ) -> Worker:
        options = ["--host", host or self.host, "--port", "0", "--cores", "1"]
        options += ["--memory", WORKER_MEMORY]
        folder = self.folder / f"worker-{len(self.workers)}"
        command = [_WORKER, *options, "--work-dir", str(folder / "work"), self.master_url]
        worker: Worker = self._machine(Worker, command, folder, prefix, variables)
        self.workers.append(worker)
        return worker

    def _machine(
        self,
        kind: Any,
        command: Sequence[str],
        folder: Path | None = None,
        prefix: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
    ) -> Any:
        folder = folder or self.folder / "master"
        folder.mkdir(parents=True, exist_ok=True)
        given = (
            self._variables | {"SPARK_LOCAL_DIRS": str(folder / "local")} | dict(variables or {})
        )
        program = str(Path(given["SPARK_HOME"]) / "bin" / "spark-class")
        return kind([program, command[0], "--webui-port", "0", *command[1:]], folder, prefix, given)


_SMALL: Final = {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": _DAEMON_OPTIONS}


def _found(pattern: str) -> Any:
    """A function for `wait_for_line` that returns the first group of a match."""
    compiled = re.compile(pattern)

    def look(line: str) -> str | None:
        match = compiled.search(line)
        return None if match is None else match.group(1)

    return look


def _running_with(mark: bytes) -> Iterator[int]:
    """The processes with this in their environment. One that ends meanwhile is left out."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                if mark in Path("/proc", entry, "environ").read_bytes():
                    yield int(entry)


def _command_of(pid: int) -> str:
    try:
        return Path("/proc", str(pid), "cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""
