"""All connections of a run on one epoll.

A script is a Python generator, one per producer. It sends requests itself and yields to wait: a
bare `yield` waits for the next reply (and is resumed with its bytes), `yield seconds` waits for a
time (and is resumed with None). It is also resumed with None when the rest of a request has been
sent that the socket did not accept at once. While there is such a rest nothing may be sent, because
its frame is changed in place for the next request; so replies are not read until then, and scripts
that send ahead check `rest` first.

A run has three parts: the scripts run until the warm-up is over; then the tally starts from zero;
when the time is up the figures are taken, and every script ends what it has begun, so that no
transaction stays open.
"""

from __future__ import annotations

import heapq
import select
import socket
import struct
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Final

from bench.generator.answers import RefusedError
from bench.generator.frames import CORRELATION_AT
from bench.generator.job import Job
from bench.generator.tally import Figures, Stopwatch, Tally, figures

Script = Generator[float | None, bytes | None, None]

RECEIVE_BYTES: Final = 256 * 1024
SILENCE_SECONDS: Final = 60.0
"""A broker that answers no connection for longer has failed."""
WARMUP_SHARE: Final = 0.25
"""The part of the bytes that may be written before the measured time."""
_received = memoryview(bytearray(RECEIVE_BYTES))
"""Receives every reply first: a buffer for each would cost more than the call itself."""
_READ: Final = getattr(select, "EPOLLIN", 1)
_WRITE: Final = getattr(select, "EPOLLOUT", 4)
_MAX_CORRELATION: Final = 0x7FFFFFFF
_unpack_head = struct.Struct(">ii").unpack_from
"""The header of a reply: its size and correlation id."""
_HEAD_BYTES: Final = 8
_pack_correlation = struct.Struct(">i").pack_into


class Connection:
    """One socket, the rest of the last request, and the beginning of a reply."""

    __slots__ = (
        "_answered",
        "_correlation",
        "_epoll",
        "_partial",
        "_receive_into",
        "_send",
        "_socket",
        "rest",
        "resume",
    )

    resume: Callable[[bytes | None], float | None]
    """Resumes its script with a reply, or with None."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._socket = socket.create_connection(address)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setblocking(False)
        self._send = self._socket.send
        self._receive_into = self._socket.recv_into
        self._epoll: select.epoll | None = None
        self._partial = bytearray()
        self._correlation = 0
        self._answered = 0
        self.rest: memoryview | None = None

    def join(self, epoll: select.epoll) -> int:
        """Registers with this epoll; returns the file descriptor."""
        self._epoll = epoll
        epoll.register(self._socket, _READ)
        return self._socket.fileno()

    def send(self, frame: bytearray) -> None:
        """Sends a request with the next correlation id."""
        self._correlation = correlation = (self._correlation + 1) & _MAX_CORRELATION
        _pack_correlation(frame, CORRELATION_AT, correlation)
        try:
            sent = self._send(frame)
        except BlockingIOError:
            sent = 0
        if sent < len(frame):
            self.rest = memoryview(frame)[sent:]
            assert self._epoll is not None
            self._epoll.modify(self._socket, _WRITE)

    def flush(self) -> bool:
        """Sends the rest of a request; True when nothing is left."""
        assert self.rest is not None
        assert self._epoll is not None
        sent = self._send(self.rest)
        if sent < len(self.rest):
            self.rest = self.rest[sent:]
            return False
        self.rest = None
        self._epoll.modify(self._socket, _READ)
        return True

    def receive(self) -> list[bytes]:
        """The complete replies, each with its size in front, in the order of the requests."""
        count = self._receive_into(_received)
        if count >= _HEAD_BYTES and not self._partial:
            size, correlation = _unpack_head(_received)
            if size == count - 4:
                # One complete reply: the usual case.
                self._expect(correlation)
                return [bytes(_received[:count])]
        if not count:
            raise RefusedError("the broker closed a connection")
        self._partial += _received[:count]
        return self._cut()

    def _cut(self) -> list[bytes]:
        """Splits off the complete replies."""
        data = self._partial
        replies = []
        start = 0
        while len(data) - start >= _HEAD_BYTES:
            size, correlation = _unpack_head(data, start)
            end = start + 4 + size
            if end > len(data):
                break
            self._expect(correlation)
            replies.append(bytes(data[start:end]))
            start = end
        del data[:start]
        return replies

    def _expect(self, correlation: int) -> None:
        self._answered = answered = (self._answered + 1) & _MAX_CORRELATION
        if correlation != answered:
            raise RefusedError("the broker answered requests out of order")

    def close(self) -> None:
        self._socket.close()


Address = tuple[str, int]
Connections = Mapping[Address, Connection]
"""The connections of one producer: one for each broker that it needs."""


class Engine:
    """Runs scripts on connections until all have ended."""

    def __init__(self) -> None:
        self.tally = Tally()
        self.is_over = False
        """Whether scripts must finish."""
        if not hasattr(select, "epoll"):
            raise RefusedError("the generator needs epoll, which only Linux has")
        self._epoll = select.epoll()
        self._connections: dict[int, Connection] = {}
        self._alarms: list[tuple[float, int, Connection]] = []
        self._alarm_number = 0
        self._running = 0

    def run(
        self,
        producers: Sequence[Connections],
        script: Callable[[Connections, int], Script],
        job: Job,
    ) -> Figures:
        """Runs a script per producer for that time; scripts that end earlier end the run."""
        stages = _Stages(self, job)
        self._running = len(producers)
        for number, connections in enumerate(producers):
            resume = script(connections, number).send
            for connection in connections.values():
                self._connections[connection.join(self._epoll)] = connection
                connection.resume = resume
        for connections in producers:
            self._resume(next(iter(connections.values())), None)
        try:
            self._serve(stages)
        finally:
            self._epoll.close()
            for connection in self._connections.values():
                connection.close()
        return stages.figures()

    def _serve(self, stages: _Stages) -> None:
        """Serves ready connections until all scripts have ended.

        Most of the cost of a request is spent here.
        """
        poll, connections, alarms = self._epoll.poll, self._connections, self._alarms
        while self._running:
            events = poll(self._patience() if alarms else SILENCE_SECONDS)
            if not events and not alarms:
                raise RefusedError(f"the broker was silent for {SILENCE_SECONDS:.0f} s")
            for number, event in events:
                connection = connections[number]
                if event & _WRITE:
                    if connection.flush():
                        self._resume(connection, None)
                    continue
                for reply in connection.receive():
                    self._resume(connection, reply)
            while alarms and alarms[0][0] <= time.perf_counter():
                self._resume(heapq.heappop(alarms)[2], None)
            stages.look()

    def _patience(self) -> float:
        return max(0.0, self._alarms[0][0] - time.perf_counter())

    def _resume(self, connection: Connection, reply: bytes | None) -> None:
        try:
            pause = connection.resume(reply)
        except StopIteration:
            self._running -= 1
            return
        if pause is not None:
            self._alarm_number += 1
            alarm = (time.perf_counter() + pause, self._alarm_number, connection)
            heapq.heappush(self._alarms, alarm)


class _Stages:
    """Warm-up, measured time, end."""

    def __init__(self, engine: Engine, job: Job) -> None:
        self._engine = engine
        self._seconds = job.seconds
        self._max_bytes = job.max_bytes
        self._figures: Figures | None = None
        self._broker_pids = job.broker_pids
        self._watch = Stopwatch(job.broker_pids)
        self._counting_from = time.perf_counter() + job.warmup_seconds
        self._is_warm = job.warmup_seconds == 0

    def look(self) -> None:
        """Enters the next stage when it is time."""
        engine = self._engine
        if self._figures is not None:
            return
        now = time.perf_counter()
        if not self._is_warm:
            if now >= self._counting_from or self._is_full(WARMUP_SHARE):
                self._is_warm = True
                engine.tally = Tally()
                self._watch = Stopwatch(self._broker_pids)
                self._counting_from = now
        elif now - self._counting_from >= self._seconds or self._is_full():
            self._figures = figures(engine.tally, self._watch.elapsed())
            engine.is_over = True

    def _is_full(self, share: float = 1.0) -> bool:
        limit = self._max_bytes
        return limit is not None and self._engine.tally.value_bytes >= limit * share

    def figures(self) -> Figures:
        return self._figures or figures(self._engine.tally, self._watch.elapsed())
