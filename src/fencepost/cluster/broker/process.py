"""The process of one broker of a cluster; the parent starts it (`parent/broker_child.py`).

    python -m fencepost.cluster.broker.process FILE ID

FILE is this end of the link to the parent. The first message on it has the settings. The process
ends when the link ends, when the parent dies, and when the parent says so; it ignores Ctrl-C, which
is for the parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from fencepost.base.failures import ConfigError, FencepostError
from fencepost.base.mapping import Mapping
from fencepost.base.system import SystemClock, SystemDisk, SystemRandomness, now_us
from fencepost.broker.core import address_of, cannot_listen, endpoints_of
from fencepost.broker.log_format import TEXT, set_up_log
from fencepost.broker.partitions.partition_host import PartitionHost
from fencepost.broker.process import (
    freeze_garbage_collector,
    kill_at,
    new_event_loop,
    serve_metrics,
    stop_on_failed_callback,
)
from fencepost.broker.settings.config import BrokerConfig
from fencepost.broker.settings.listener import Address
from fencepost.broker.storage.broker_layout import BrokerLayout
from fencepost.broker.storage.descriptors import open_file_limit, raise_open_file_limit, share_out
from fencepost.broker.trace import Trace
from fencepost.cluster import messages
from fencepost.cluster.broker.broker import ClusterBroker, ControllerClient, bind
from fencepost.cluster.broker.controls import Controls
from fencepost.cluster.broker.owners import Owners
from fencepost.cluster.broker.remote_faults import RemoteFaults
from fencepost.cluster.link import Link
from fencepost.cluster.messages import Kind
from fencepost.cluster.parent.supervision import HEARTBEAT_MS

if TYPE_CHECKING:
    from fencepost.broker.metrics.endpoint import MetricsEndpoint

log = logging.getLogger(__name__)

ORPHANED: Final = 71
"""The exit code of a broker whose parent is gone, so no process waits for it."""

TRACE_BUFFER_BYTES: Final = 1024 * 1024
"""More than any line of a trace, which leaves out most of long arrays."""

NOT_STARTED: Final = 1


class BrokerProcess:
    """The broker of this process, and its link to the parent."""

    def __init__(self, loop: asyncio.AbstractEventLoop, end: socket.socket) -> None:
        self._loop = loop
        self._controller: Final = ControllerClient()
        self._broker: ClusterBroker | None = None
        self._sockets: list[list[socket.socket]] = []
        """Those of each listener."""
        self._is_stopping = False
        self._stopped: Final = asyncio.Event()
        self._exit_code = 0
        self._endpoint: MetricsEndpoint | None = None
        self._faults: RemoteFaults | None = None
        self._link: Final = Link(loop, end, on_message=self._on_message, on_end=_end_orphaned)
        self._controller.attach(self._link)
        self._beat()

    async def run(self) -> int:
        """Runs until the parent stops the broker; returns the exit code."""
        await self._stopped.wait()
        return self._exit_code

    def _beat(self) -> None:
        has_offline = self._broker is not None and bool(self._broker.partitions.offline)
        self._controller.send(Kind.HEARTBEAT, messages.encode_heartbeat(has_offline=has_offline))
        self._loop.call_later(HEARTBEAT_MS / 1000, self._beat)

    @property
    def _running(self) -> ClusterBroker:
        assert self._broker is not None, "START is the first message"
        return self._broker

    # -- messages of the parent -------------------------------------------------------------------

    def _on_message(self, kind: int, body: memoryview, files: list[int]) -> None:
        match kind:
            case Kind.START:
                self._start(messages.decode_json(body))
            case Kind.STATE:
                self._running.load(messages.decode_batch(body), self._loaded)
            case Kind.RECORDS:
                self._running.following.receive(messages.decode_batch(body))
            case Kind.OPEN:
                self._running.following.may_open(messages.decode_offset(body))
            case Kind.PEER:
                (file,) = files
                peer = messages.decode_json(body)
                self._running.join(peer["broker"], peer["pid"], socket.socket(fileno=file))
            case Kind.REPLY:
                self._controller.replied(body)
            case Kind.ANSWER:
                self._controller.answered(body)
            case Kind.CONTROL:
                self._loop.create_task(self._control(messages.decode_json(body)))
            case Kind.STOP:
                self._stop()
            case _:
                raise AssertionError(f"the controller sent a message of kind {kind}")

    # -- start and stop ---------------------------------------------------------------------------

    def _start(self, settings: dict[str, Any]) -> None:
        try:
            self._broker = self._build(settings)
            listeners = self._broker.config.client_listeners
            for listener, ports in zip(listeners, settings["ports"], strict=True):
                self._sockets.append(_bind_listener(listener.at.host, ports))
        except FencepostError as problem:
            self._refuse(str(problem))
            return
        self._broker.attach(self._loop)
        ports = [bound[0].getsockname()[1] for bound in self._sockets]
        hello = {
            "address": address_of(self._broker.config.listen_host, ports[0]),
            "ports": ports,
            "endpoints": endpoints_of(self._broker.config, ports),
        }
        if settings["metrics"] is None:
            self._controller.send(Kind.HELLO, messages.encode_json(hello))
        else:
            at = Address(*settings["metrics"])
            self._loop.create_task(self._start_metrics(self._broker, at, hello))

    async def _start_metrics(
        self, broker: ClusterBroker, at: Address, hello: dict[str, Any]
    ) -> None:
        """Serves metrics before the partitions are opened, and says HELLO with the address."""
        try:
            self._endpoint = await serve_metrics(broker, at)
        except FencepostError as problem:
            self._refuse(str(problem))
            return
        assert self._endpoint is not None
        hello["metrics"] = address_of(at.host, self._endpoint.port)
        self._controller.send(Kind.HELLO, messages.encode_json(hello))

    def _refuse(self, reason: str) -> None:
        """Reports why this broker cannot start, and ends."""
        self._controller.send(Kind.HELLO, messages.encode_json({"error": reason}))
        self._exit_code = NOT_STARTED
        self._stopped.set()

    def _build(self, settings: dict[str, Any]) -> ClusterBroker:
        broker_id = int(settings["settings"]["node.id"])
        set_up_log(settings["log_format"], level=settings["log_level"], broker_id=broker_id)
        config = BrokerConfig(
            settings["settings"],
            frozenset(settings["unknown_ok"]),
            broker_count=len(settings["broker_ids"]),
        )
        clock = SystemClock()
        raise_open_file_limit()
        descriptors = share_out(open_file_limit(), config.max_connections)
        Mapping.limit = descriptors.mappings
        host = PartitionHost(
            config,
            lambda disk: BrokerLayout(disk, config.data, config.node_id, settings["broker_ids"]),
            clock=clock,
            disk=SystemDisk(),
            on_fatal=_on_fatal,
            descriptors=descriptors,
            removes_folders=False,
        )
        owners = Owners(config.data)
        owners.claim(config.node_id)
        broker = ClusterBroker(
            config,
            host,
            self._controller,
            owners,
            randomness=SystemRandomness(),
            trace=_open_trace(settings["trace"], config.node_id),
            counts_requests=settings["metrics"] is not None,
        )
        broker.follower.cluster_id = settings["cluster_id"]
        return broker

    def _loaded(self) -> None:
        self._loop.create_task(self._serve())

    async def _serve(self) -> None:
        if self._is_stopping:
            return
        await self._running.listen_on(self._sockets)
        self._running.start_periodic_work()
        freeze_garbage_collector()
        self._controller.send(Kind.SERVING)

    def _stop(self) -> None:
        if not self._is_stopping:
            self._is_stopping = True
            self._loop.create_task(self._close())

    async def _close(self) -> None:
        await self._running.stop()
        if self._endpoint is not None:
            await self._endpoint.stop()
        self._stopped.set()

    # -- commands of operators and tests ----------------------------------------------------------

    async def _control(self, command: dict[str, Any]) -> None:
        number = command.pop("number")
        broker = self._running
        if self._faults is None:
            self._faults = RemoteFaults(broker.faults, SystemClock().now_ms)
        controls = Controls(
            self._faults, die_at=self._die_at, down=broker.go_down, up=broker.come_up
        )
        try:
            result: dict[str, Any] = {"result": await controls.run(command)}
        except (FencepostError, OSError) as problem:
            result = {"error": str(problem)}
        self._controller.send(Kind.CONTROLLED, messages.encode_json({"number": number, **result}))

    def _die_at(self, point: str) -> None:
        """For tests: kills this process at a crash point.

        The environment variable of the single broker would reach every broker, and each of them
        again after its restart.
        """
        self._running.runtime.crash_points = kill_at(point)


def _bind_listener(host: str, ports: Sequence[int]) -> list[socket.socket]:
    try:
        return bind(host, ports)
    except OSError as problem:
        raise cannot_listen(host, ports[-1], problem) from problem


def _open_trace(path: str | None, broker_id: int) -> Trace | None:
    if path is None:
        return None
    try:
        # All brokers write to it: each line in one write, so that lines do not mix.
        file = open(path, "a", buffering=TRACE_BUFFER_BYTES, encoding="utf-8")  # noqa: SIM115
        return Trace(now_us, file, broker_id)
    except OSError as problem:
        raise ConfigError(f"Cannot write the trace to {path}: {problem.strerror}.") from problem


def _on_fatal(reason: str) -> None:
    log.critical("%s", reason)
    # Nothing more may be written; the next leader recovers from the log.
    os._exit(70)


def _end_orphaned() -> None:
    log.error("the controller is gone; this broker ends. What it acknowledged is in its logs")
    os._exit(ORPHANED)


def _die_with_parent() -> None:
    """Asks the kernel to kill this process when the parent dies.

    A process that is stopped (SIGSTOP) cannot notice the end of its link.
    """
    if sys.platform == "linux":
        import ctypes

        set_death_signal = 1
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)


async def _run(file: int) -> int:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(stop_on_failed_callback(_on_fatal))
    return await BrokerProcess(loop, socket.socket(fileno=file)).run()


def main(arguments: list[str]) -> int:
    """Runs one broker; see above."""
    file, broker_id = int(arguments[0]), int(arguments[1])
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    set_up_log(TEXT, broker_id=broker_id)  # Until the parent has said how.
    gc.disable()  # Until everything is loaded: hardly any of it is garbage.
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(_run(file))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
