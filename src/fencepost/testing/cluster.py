"""Several brokers for a Python program: processes over one temporary directory, on free ports.

    with fencepost.Cluster(brokers=3) as cluster:
        producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers})
        cluster.kill(cluster.coordinator_of("transactional", "refunds-0"))

It runs `fencepost serve --brokers N` as a child process (`cluster_process.py`) and commands it over
its control socket. What Kafka's wire can do (finding and moving leaders) goes over the wire. A
method returns when it has taken effect.

Any thread may use a cluster. It belongs to the process that started it. A forked child
(`multiprocessing`) may use it as a client; there, `stop` and `close` do nothing. A cluster that is
not closed is closed when the interpreter exits, and a cluster whose program is killed stops by
itself.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, Self

from fencepost.base.arguments import checked
from fencepost.base.failures import ConfigError, FencepostError
from fencepost.cluster.parent.control import send_command
from fencepost.testing.arguments import (
    bracketed,
    in_words_of_arguments,
    path_or_none,
)
from fencepost.testing.cluster_faults import ClusterFaults
from fencepost.testing.cluster_process import ClusterProcess
from fencepost.testing.folders import delete_folder, make_folder
from fencepost.testing.security import Secured, SecuredContents, Security

if TYPE_CHECKING:
    from fencepost.client.blocking import Cluster as Client

Kind = Literal["transactional", "group"]
"""What a coordinator is found by: a transactional id or a group id."""

START_TIMEOUT_SECONDS: Final = 60
"""Enough for a large log after a crash; an empty directory takes about a second."""

_COMMAND_SECONDS: Final = 60.0
_FAULT_SECONDS: Final = 10.0
"""A broker that is paused does not answer."""
_ROLL_SECONDS: Final = 180.0
_SPREAD_SECONDS: Final = 5.0
"""Longer than a broker may take to close many partitions and to load them again."""

_CLIENT: Final = {
    "client.id": "fencepost-cluster",
    # A test may have paused the broker that is asked; another one is asked then.
    "request.timeout.ms": "5000",
    "default.api.timeout.ms": "60000",
}


@dataclass(frozen=True, slots=True)
class BrokerView:
    """One broker of a cluster at one moment."""

    id: int
    pid: int | None
    """None if it has no process."""
    address: str | None
    """None until it listens."""
    state: str
    """`starting`, `serving`, `paused`, `down`, `stopping`, `killed`, `suspended` or `dead`."""
    leads: int
    """How many partitions it leads."""
    coordinates: int
    """How many of them are partitions of the coordinators' topics."""
    restarts: int


@checked
class Cluster(SecuredContents):
    """Several broker processes. After `stop` they can be started again, on the same data and ports.

    Broker ids go from 1 to `brokers`.
    """

    def __init__(
        self,
        brokers: int = 3,
        *,
        data: str | os.PathLike[str] | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        durability: str = "os",
        config: Mapping[str, object] | None = None,
        trace: str | os.PathLike[str] | None = None,
        metrics: str | None = None,
        security: Security | None = None,
    ) -> None:
        """`metrics` is the address for Prometheus and health checks; broker K is K ports above."""
        self.data = path_or_none(data)
        self._count = brokers
        self._host = host
        self._port = port
        self._durability = durability
        self._config = dict(config or {})
        self._secured = None
        if security is not None:
            self._secured = Secured(security, host=host, config=self._config)
            self._secured.refuse_kept_data(self.data)
        self._trace = path_or_none(trace)
        self._metrics = metrics
        self._is_data_temporary = data is None
        self._folder: str | None = None
        """A temporary folder for the log, and for the data unless the caller has named a place."""
        self._last_log = ""
        self._last_ports: list[str] = []
        self._address = ""
        self._process: ClusterProcess | None = None
        self._process_id = os.getpid()
        self._changing = threading.RLock()
        """Held by the thread that starts or stops the cluster."""
        self.faults = ClusterFaults(self._ask)
        """What goes wrong on demand."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = f"at {self._address}" if self._process else "stopped"
        return f"<fencepost.Cluster {state}>"

    # -- life -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the brokers and returns when all of them accept requests."""
        if self._is_inherited:
            # A thread of the parent process may have held the lock during the fork.
            self._changing = threading.RLock()
            self._process = None
        with self._changing:
            if self._process is not None:
                raise FencepostError("The cluster is already running.")
            self._process_id = os.getpid()
            _running.add(self)
            try:
                self._start()
            except BaseException as problem:
                _running.discard(self)
                self._delete_temporary()
                if isinstance(problem, ConfigError):
                    raise ConfigError(in_words_of_arguments(str(problem))) from problem
                raise

    def _start(self) -> None:
        if self._folder is None:
            self._folder = make_folder("fencepost-cluster-")
        if self.data is None:
            self.data = os.path.join(self._folder, "data")
        if self._secured is not None:
            self._secured.prepare()
        process = self._process = ClusterProcess(
            self._arguments(self.data), os.path.join(self._folder, "log")
        )
        try:
            self._address = process.wait_until_ready(START_TIMEOUT_SECONDS)
            if self._secured is not None:
                self._secured.establish(self._address)
        except BaseException:
            # Interrupted, refused or timed out: no part of it may keep running.
            process.kill()
            self._process = None
            raise
        self._last_ports = [each.rpartition(":")[2] for each in self._address.split(",")]

    def _arguments(self, data: str) -> list[str]:
        from fencepost.broker.process import parse_overrides
        from fencepost.broker.settings.refusals import refuse_optimised_python, refuse_remote

        refuse_optimised_python()
        arguments = ["--brokers", str(self._count), "--data", data]
        if self._secured is not None:
            for setting in self._secured.settings(self._port):
                arguments += ["--config", setting]
            arguments += ["--init-admin", self._secured.administrator.user]
            arguments += ["--init-admin-password", self._secured.password_file]
        elif "listeners" not in self._config:
            refuse_remote(self._host, allow_remote=False)
            arguments += ["--listen", f"{bracketed(self._host)}:{self._port}"]
        arguments += ["--durability", self._durability]
        for setting in parse_overrides(self._config):
            arguments += ["--config", setting]
        if self._trace is not None:
            arguments += ["--trace", self._trace]
        if self._metrics is not None:
            arguments += ["--metrics", self._metrics]
        if self._port == 0 and self._last_ports:
            arguments += ["--last-ports", ",".join(self._last_ports)]
        return arguments

    def stop(self) -> None:
        """Stops all brokers cleanly; the data are kept until `close`."""
        if self._is_inherited:
            self._process = None
            _running.discard(self)
            return
        with self._changing:
            self.faults.refresh()
            process, self._process = self._process, None
            _running.discard(self)
            if process is None:
                return
            was_running = process.is_running
            process.stop()
            if not was_running:
                raise FencepostError(f"The cluster stopped by itself: {process.reason()}")

    def close(self) -> None:
        """Stops, and deletes the data if they are in a temporary directory."""
        if self._is_inherited:
            self.stop()
            self._delete_temporary()
            return
        with self._changing:
            try:
                self.stop()
            finally:
                self._delete_temporary()

    def restart(self, broker_id: int | None = None) -> None:
        """Starts a broker that was killed; returns when it serves and may lead.

        Without an id, stops and starts the whole cluster on the same data and ports.
        """
        if broker_id is not None:
            self._order("restart", broker_id)
            return
        self.stop()
        self.start()

    @property
    def _is_inherited(self) -> bool:
        """Whether this object is a copy in a forked child."""
        return os.getpid() != self._process_id

    def _delete_temporary(self) -> None:
        if self._secured is not None:
            self._secured.delete(keeps_files=self._is_inherited)
        if self._folder is not None:
            if not self._is_inherited:
                self._last_log = self.log_text()
                delete_folder(self._folder)
            self._folder = None
        if self._is_data_temporary:
            self.data = None

    # -- state -----------------------------------------------------------------------------------

    @property
    def bootstrap_servers(self) -> str:
        """The value for a client's `bootstrap.servers`: the addresses of all brokers."""
        if self._is_inherited and self._process is not None:
            return self._address
        self._require_running()
        return self._address

    @property
    def brokers(self) -> list[BrokerView]:
        """The brokers as they are now, by id."""
        shown = [each.name for each in fields(BrokerView)]
        return [
            BrokerView(**{name: each[name] for name in shown}) for each in self.status()["brokers"]
        ]

    @property
    def clock(self) -> NoReturn:
        """Its brokers are processes of their own, whose time is real."""
        raise FencepostError(
            "The time of a cluster cannot be moved, because its brokers are processes of their "
            "own: use `fencepost.Broker`, or short timeouts in `config`."
        )

    @property
    def denials(self) -> NoReturn:
        """Its brokers are processes of their own, which only log what they deny."""
        raise FencepostError(
            "What a cluster has denied is in the logs of its brokers: use `fencepost.Broker` to "
            "ask for it."
        )

    def status(self) -> dict[str, Any]:
        """What `fencepost cluster status --json` shows."""
        found: dict[str, Any] = self._command({"do": "status"})
        return found

    def log_text(self) -> str:
        """What all processes have logged, also after a failed start and after `close`."""
        if self._folder is None:
            return self._last_log
        try:
            with open(os.path.join(self._folder, "log"), encoding="utf-8", errors="replace") as log:
                return log.read()
        except FileNotFoundError:
            return ""

    # -- brokers that fail ------------------------------------------------------------------------

    def kill(self, broker_id: int) -> None:
        """Kills a broker with -9; it stays dead until `restart`.

        Returns when its process is gone and others lead its partitions.
        """
        self.faults.refresh()  # What fired is known to its process alone.
        self._order("kill", broker_id)

    def pause(self, broker_id: int) -> None:
        """Stops a broker's process (SIGSTOP).

        It is killed and started again if it is not resumed within broker.session.timeout.ms.
        """
        self._order("pause", broker_id)

    def resume(self, broker_id: int) -> None:
        """Lets a paused broker go on."""
        self._order("resume", broker_id)

    def down(self, broker_id: int) -> None:
        """Cuts a broker off from its clients. It stays alive and leads what it led."""
        self._order("down", broker_id)

    def up(self, broker_id: int) -> None:
        """Lets clients reach a broker again."""
        self._order("up", broker_id)

    def roll(self, broker_id: int | None = None) -> None:
        """Stops a broker cleanly and starts it again; without an id, all of them in turn."""
        self.faults.refresh()
        rolled = [each.id for each in self.brokers] if broker_id is None else [broker_id]
        for each in rolled:
            self._order("roll", each, seconds=_ROLL_SECONDS)

    # -- leaders and coordinators -----------------------------------------------------------------

    def leader_of(self, topic: str, partition: int) -> int:
        """The id of the broker that leads a partition; -1 if none does."""
        with self._client() as client:
            return _leader_of(client, topic, partition)

    def coordinator_of(self, kind: Kind, key: str) -> int:
        """The id of the broker that coordinates a transactional id or a group."""
        from fencepost.client.routes import CoordinatorKey

        with self._client() as client:
            return client.find_coordinator(CoordinatorKey(_coordinator_kind(kind), key))

    def move(self, topic: str, partition: int, to: int) -> None:
        """Makes a broker the leader of a partition, and the preferred one; returns when it is."""
        from fencepost.base.ids import TopicPartition

        with self._client() as client:
            client.move_leader(TopicPartition(topic, partition), to)
        self._await_all(lambda client: _leader_of(client, topic, partition) == to)

    def _await_all(self, has_learned: Callable[[Client], bool]) -> None:
        """Returns when every broker has learned of a move: they do one after the other.

        Gives up after some seconds: another command may have moved the partition on.
        """
        deadline = time.monotonic() + _SPREAD_SECONDS
        for broker in self.brokers:
            address = broker.address
            while broker.state == "serving" and address and time.monotonic() < deadline:
                try:
                    with self._connect_to(address) as client:
                        if has_learned(client):
                            break
                except FencepostError:
                    break  # It has been stopped.
                time.sleep(0.01)

    def move_coordinator(self, kind: Kind, key: str, to: int) -> None:
        """Makes a broker the coordinator of a transactional id or a group.

        All other ids of the same partition of the coordinators' topic move with it. Returns when
        the broker answers as the coordinator, and all others name it.
        """
        from fencepost.client.routes import CoordinatorKey

        moved = CoordinatorKey(_coordinator_kind(kind), key)
        with self._client() as client:
            client.move_coordinator(moved, to)
        self._await_all(lambda client: client.find_coordinator(moved) == to)

    def rebalance(self) -> None:
        """Gives every broker its share of the leaders; returns when they lead."""
        self._command({"do": "rebalance"})

    # -- commands ---------------------------------------------------------------------------------

    def _require_running(self) -> None:
        process = self._process
        if process is None:
            raise FencepostError("The cluster is not running: use `with Cluster() as cluster:`.")
        if not process.is_running:
            raise FencepostError(f"The cluster has stopped by itself: {process.reason()}")

    def _order(self, do: str, broker_id: int, *, seconds: float = _COMMAND_SECONDS) -> None:
        self._command({"do": do, "broker": broker_id}, seconds)

    def _ask(self, broker_id: int, command: dict[str, Any]) -> Any:
        """Asks one broker about its faults."""
        return self._command({"broker": broker_id, **command}, _FAULT_SECONDS)

    def _command(self, command: dict[str, Any], seconds: float = _COMMAND_SECONDS) -> Any:
        if self._is_inherited:
            raise FencepostError(
                f"The cluster runs under process {self._process_id}, the parent of this fork: use "
                "it as a client, or start another cluster here."
            )
        data = self.data
        self._require_running()
        assert data is not None, "a cluster that runs has a directory"
        return send_command(data, command, timeout_seconds=seconds)

    def _client(self) -> Client:
        """A client that begins with brokers that answer."""
        addresses = [each.address for each in self.brokers if each.state == "serving"]
        if not addresses:
            raise FencepostError("No broker of the cluster serves clients now.")
        return self._connect_to(",".join(filter(None, addresses)))

    def _connect_to(self, addresses: str) -> Client:
        from fencepost.client.blocking import connect

        if self._secured is not None:
            return self._secured.connect(addresses, _CLIENT)
        return connect(addresses, _CLIENT)


def _leader_of(client: Client, topic: str, partition: int) -> int:
    for each in client.metadata([topic]).topics[topic].partitions:
        if each.index == partition:
            return each.leader
    raise FencepostError(f"Topic {topic!r} has no partition {partition}.")


def _coordinator_kind(kind: Kind) -> Any:
    from fencepost.client.routes import CoordinatorKind

    kinds = {"transactional": CoordinatorKind.TRANSACTION, "group": CoordinatorKind.GROUP}
    if kind not in kinds:
        raise FencepostError(f"There is no coordinator {kind!r}: use 'transactional' or 'group'.")
    return kinds[kind]


_running: Final[set[Cluster]] = set()


def running_clusters() -> list[Cluster]:
    """The clusters of this process that run, or start."""
    return list(_running)


def _close_all() -> None:
    """Closes all clusters at interpreter exit, so that no temporary folder is left behind."""
    for cluster in list(_running):
        with contextlib.suppress(FencepostError):
            cluster.close()


atexit.register(_close_all)
