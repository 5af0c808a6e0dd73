"""A whole broker on a virtual loop and a disk in memory, for crashes at any point, without waiting.

    stage = Stage(durability="fsync")
    stage.call(ApiKey.PRODUCE, 11, request)     a request as frames, through the handler and back
    stage.lose_power()                          everything that was not synced is lost
    stage = stage.again()                       the next run on the same disk

Requests pass through the real `Connection`; only its transport is simulated. Time passes when
nothing is left to do.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import struct
from collections.abc import Mapping
from typing import Any, Final, Self, cast

from fencepost.base.failures import FencepostError
from fencepost.base.seams import Disk, Randomness
from fencepost.broker.network.connection import Connection
from fencepost.broker.network.limits import ConnectionLimits
from fencepost.broker.network.server import Server
from fencepost.broker.node import Node
from fencepost.broker.settings.config import BrokerConfig
from fencepost.broker.trace import Trace
from fencepost.partition.partition import Partition
from fencepost.simulation.disk import PowerLost, UnsyncedDisk
from fencepost.wire.apis import ApiKey
from fencepost.wire.codec import decode_response
from tests.broker.controller.topics_stage import CountingRandomness
from tests.broker.raw import ClosedError, frame_of
from tests.broker.requests import NOW_MS
from tests.broker.virtual_loop import VirtualLoop

FOLDER: Final = "/data"
PATIENCE_SECONDS: Final = 24 * 3600.0
"""In the loop's time: a reply that takes a day will never arrive."""
SETTINGS: Final = {
    "listeners": "PLAINTEXT://127.0.0.1:0",
    "log.dirs": FOLDER,
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "group.initial.rebalance.delay.ms": "0",
}


class DiedError(Exception):
    """The broker stopped by itself."""


class LoopClock:
    """The wall clock of a stage, which follows the loop's time."""

    def __init__(self, loop: VirtualLoop, start_ms: int) -> None:
        self._loop = loop
        self._start_ms = start_ms

    def now_ms(self) -> int:
        return self._start_ms + int(self._loop.time() * 1000)

    def jump(self, milliseconds: int) -> None:
        """Sets the clock forward, or back."""
        self._start_ms += milliseconds


class DiskOfOneLife:
    """The disk as one process sees it: after its end, nothing of it reaches a file."""

    def __init__(self, disk: UnsyncedDisk) -> None:
        self._disk = disk
        self.is_over = False

    def __getattr__(self, name: str) -> Any:
        if self.is_over:
            raise OSError(errno.EBADF, "the process has ended")
        return getattr(self._disk, name)


class Wire(asyncio.Transport):
    """The transport of a connection, in place of a socket."""

    def __init__(self, line: Line) -> None:
        super().__init__()
        self._line = line
        self._closing = False
        self._unread: list[bytes] = []
        self._most_unread = 0
        self.is_deaf = False
        """Whether the client does not read; sent bytes then stay here."""
        self.is_reading_paused = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 50_000) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._most_unread = high or 0

    def get_write_buffer_size(self) -> int:
        return sum(map(len, self._unread))

    def writelines(self, list_of_data: Any) -> None:
        if self._closing:
            return
        if not self.is_deaf:
            self._line.arrived(b"".join(list_of_data))
            return
        was_paused = self.get_write_buffer_size() > self._most_unread
        self._unread += map(bytes, list_of_data)
        if not was_paused and self.get_write_buffer_size() > self._most_unread:
            self._line.connection.pause_writing()

    def hear_some(self, count: int) -> None:
        """The client reads some of it."""
        unread = b"".join(self._unread)
        self._unread = [unread[count:]]
        self._line.arrived(unread[:count])

    def hear(self) -> None:
        """The client reads what has been sent, and all that follows."""
        unread, self._unread = self._unread, []
        self.is_deaf = False
        self._line.arrived(b"".join(unread))
        if sum(map(len, unread)) > self._most_unread:
            self._line.connection.resume_writing()

    def pause_reading(self) -> None:
        self.is_reading_paused = True

    def resume_reading(self) -> None:
        self.is_reading_paused = False
        self._line.deliver_soon()

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._line.lost()

    def abort(self) -> None:
        self.close()


class Line:
    """One connection to the broker of a stage."""

    def __init__(self, stage: Stage, client_id: str) -> None:
        self._stage = stage
        self._client_id = client_id
        self.wire = Wire(self)
        self.connection = stage.new_connection()
        self.connection.connection_made(self.wire)
        self._correlation_ids = itertools.count(1)
        self._inbox = b""
        self._outbox = b""
        self.replies: dict[int, memoryview] = {}
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self.is_closed = False

    def call(self, api: ApiKey, version: int, form: Any) -> Any:
        """Sends a request and runs the loop until its reply arrives."""
        return self.reply(api, version, self.send(api, version, form))

    def send(self, api: ApiKey, version: int, form: Any) -> int:
        correlation_id = next(self._correlation_ids)
        self.send_bytes(frame_of(api, version, form, correlation_id, self._client_id))
        return correlation_id

    def send_bytes(self, data: bytes) -> None:
        if self._stage.fatal:
            raise DiedError(self._stage.fatal[0])
        self._outbox += data
        self._deliver()

    def reply(self, api: ApiKey, version: int, correlation_id: int) -> Any:
        if correlation_id not in self.replies:
            self._wait_for(correlation_id)
        return decode_response(api, version, self.replies.pop(correlation_id))[1]

    def _wait_for(self, correlation_id: int) -> None:
        if self.is_closed:
            raise ClosedError
        if self._stage.fatal:
            raise DiedError(self._stage.fatal[0])
        loop = self._stage.loop
        future = self._waiting[correlation_id] = loop.create_future()
        self._stage.run(asyncio.wait_for(future, PATIENCE_SECONDS))

    def _deliver(self) -> None:
        while self._outbox and not self.wire.is_reading_paused and not self.is_closed:
            room = self.connection.get_buffer(-1)
            part = self._outbox[: len(room)]
            room[: len(part)] = part
            self._outbox = self._outbox[len(part) :]
            self.connection.buffer_updated(len(part))
            self._stage.serve()

    def deliver_soon(self) -> None:
        self._stage.loop.call_soon(self._deliver)

    def arrived(self, data: bytes) -> None:
        self._inbox += data
        while len(self._inbox) >= 4:
            (size,) = struct.unpack_from(">i", self._inbox)
            if len(self._inbox) < 4 + size:
                return
            frame, self._inbox = memoryview(self._inbox[4 : 4 + size]), self._inbox[4 + size :]
            correlation_id = int.from_bytes(frame[:4], "big", signed=True)
            self.replies[correlation_id] = frame
            if correlation_id in self._waiting:
                self._waiting.pop(correlation_id).set_result(None)

    def lost(self) -> None:
        self.is_closed = True
        self._stage.loop.call_soon(self.connection.connection_lost, None)
        self.give_up(ClosedError())

    def give_up(self, problem: Exception) -> None:
        """No more replies will arrive: fails those that are awaited."""
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            future.set_exception(problem)


class Stage:
    """One run of one broker, until it stops or crashes."""

    def __init__(
        self,
        *,
        durability: str = "fsync",
        settings: Mapping[str, str] | None = None,
        disk: UnsyncedDisk | None = None,
        now_ms: int = NOW_MS,
        randomness: CountingRandomness | None = None,
        trace: Any = None,
        counts_requests: bool = False,
    ) -> None:
        self._given = {**SETTINGS, **(settings or {}), "durability": durability}
        self.disk = disk or UnsyncedDisk()
        self.loop = VirtualLoop()
        self.loop.set_exception_handler(self._on_problem)
        self.clock = LoopClock(self.loop, now_ms)
        self.randomness = randomness or CountingRandomness()
        self.fatal: list[str] = []
        self.problems: list[BaseException] = []
        self._lines: list[Line] = []
        self._line: Line | None = None
        self._disk_of_life = DiskOfOneLife(self.disk)
        self.node = Node(
            BrokerConfig(self._given),
            clock=self.clock,
            disk=cast("Disk", self._disk_of_life),
            randomness=self.randomness,
            on_fatal=self._on_fatal,
            trace=None if trace is None else Trace(lambda: self.clock.now_ms() * 1000, trace),
            counts_requests=counts_requests,
        )
        self._server: Server | None = None
        self._is_dead = False

    def start(self) -> Self:
        """Loads what the disk has, and serves; after a failure it stops, as the process does."""
        try:
            self.run(self.node.start())
        except BaseException:
            with contextlib.suppress(Exception):  # The power may be off.
                self.run(self.node.stop())
            self.abandon()
            raise
        self._server = Server(
            self.loop,
            self.node.dispatcher,
            replies=self.node.replies,
            requests=self.node.requests,
            max_request_bytes=self.node.config.socket_request_max_bytes,
            limits=ConnectionLimits(most=self.node.config.max_connections, most_of_listener={}),
            max_idle_ms=self.node.config.connections_max_idle_ms,
            logins=self.node.logins,
            now_ms=self.clock.now_ms,
            line=self.node.runtime.line,
        )
        return self

    # -- requests ----------------------------------------------------------------------------------

    def new_connection(self) -> Connection:
        assert self._server is not None, "the stage was not started"
        connection = self._server._accept(self.node.config.client_listeners[0])
        assert isinstance(connection, Connection)
        return connection

    def serve(self) -> None:
        """Serves the bytes that have arrived now, not in the next turn of the loop."""
        assert self._server is not None
        outer = asyncio._get_running_loop()
        asyncio._set_running_loop(self.loop)  # As in a turn: the broker may start threads.
        try:
            self._server._work_all()
        finally:
            asyncio._set_running_loop(outer)

    def connect(self) -> Line:
        return self.connect_as("raw")

    def connect_as(self, client_id: str) -> Line:
        line = Line(self, client_id)
        self._lines.append(line)
        return line

    def call(self, api: ApiKey, version: int, form: Any) -> Any:
        """Sends a request on the stage's connection, or on a new one if that was closed."""
        if self._line is None or self._line.is_closed:
            self._line = self.connect()
        return self._line.call(api, version, form)

    def partition(self, topic: str, index: int) -> Partition:
        """A partition that this broker leads."""
        found = self.node.partitions.get(topic, index)
        assert found is not None
        return found

    def run(self, awaitable: Any) -> Any:
        return self.loop.run_until_complete(awaitable)

    def settle(self) -> None:
        """Runs the loop until nothing is ready; no time passes."""
        self.loop.settle()

    def advance(self, milliseconds: float) -> None:
        """Lets time pass and fires the timers that are due."""
        self.run(asyncio.sleep(milliseconds / 1000))
        self.settle()

    # -- ends --------------------------------------------------------------------------------------

    def stop(self) -> None:
        """A clean stop."""
        self.run(self.node.stop())
        self.abandon()

    def kill(self) -> Self:
        """Kills the process now; the disk keeps everything written."""
        self._die()
        self.disk.kill()
        return self

    def lose_power(self, randomness: Randomness | None = None, *, is_in_order: bool = True) -> Self:
        """Cuts the power now; the disk keeps only what was synced."""
        self._die()
        self.disk.crash(randomness, is_in_order=is_in_order)
        return self

    def again(self, **changes: Any) -> Stage:
        """Starts the next run on the same disk."""
        return self.next_run(**changes).start()

    def next_run(self, **changes: Any) -> Stage:
        """The next run on the same disk, which is not started yet."""
        given: dict[str, Any] = {
            "durability": self._given["durability"],
            "settings": self._given,
            "disk": self.disk,
            "randomness": self.randomness,
            "now_ms": self.clock.now_ms() + 1,
        }
        return Stage(**{**given, **changes})

    def _die(self) -> None:
        """Pending work never reaches the disk, whose power may have failed even earlier."""
        if not self.loop.is_closed():
            self._is_dead = True
            self.disk.lose_power_at(1)
        self.abandon()

    def abandon(self) -> None:
        """Closes the loop once nothing is ready."""
        if self.loop.is_closed():
            return
        server = self.node._server
        for listening in server._servers if server is not None else ():
            listening.close()
        self.loop.settle()
        self.loop.close()
        self._disk_of_life.is_over = True

    def _on_fatal(self, reason: str) -> None:
        if self._is_dead:
            return  # A dead process reports nothing.
        self.fatal.append(reason)
        for line in self._lines:
            line.give_up(DiedError(reason))

    def _on_problem(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        problem = context.get("exception") or FencepostError(str(context["message"]))
        if not isinstance(problem, PowerLost):
            self.problems.append(problem)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: object, value: object, trace: object) -> None:
        self.abandon()
        if kind is None:
            assert not self.fatal, self.fatal
            assert not self.problems, self.problems
