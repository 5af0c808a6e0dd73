"""Sockets: frames in, replies out, in order, with bounded memory.

Theory of operation
-------------------
A connection cuts its bytes into frames and hands each to the dispatcher in the order of arrival. A reply may be
there at once or come later; a slot per unanswered request keeps the order.

A turn of the loop has three parts: all sockets that have something are read, then all requests are served, then all
replies are sent. Served one by one between a read and a write of the system, requests find the caches and the branch
predictor full of the kernel's network code: 64 clients then cost the broker 1.6 times the processor time. A large
request is the exception: it is served as soon as it is whole, while its bytes are in the cache.

Three things stop the reading of a connection, and with it the memory that it can cost:

- too many requests wait for their answers (`MAX_REQUESTS_IN_FLIGHT`), or one of them holds its followers back
  because it has not taken effect yet;
- the replies that wait for their turn are large, or may become so: behind one long poll other requests are served,
  behind several large ones they are not;
- too many bytes of replies have not been read by the client (`MAX_UNSENT_BYTES`).

Frames that were read before the stop wait in a queue, at most what one turn reads. Whatever is not the protocol
closes the connection with one line in the log; the others are served on.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, cast

from fencepost.base.failures import WireError
from fencepost.base.limits import (
    FETCH_RESPONSE_MAX_BYTES,
    MAX_REQUESTS_IN_FLIGHT,
    MAX_UNSENT_BYTES,
)
from fencepost.base.seams import Buffer
from fencepost.wire.framing import INBOX_BYTES, FrameBuffer, LargeBuffers

if TYPE_CHECKING:
    from fencepost.broker.dispatch import Dispatcher

log = logging.getLogger(__name__)

Chunks = list[Buffer]

SMALL_REPLY_BYTES: Final = 1024
"""Replies up to this size to requests that came with one read go out with one write."""

LINGER_SECONDS: Final = 0.5
"""How long a stop waits for clients to read the replies that were sent to them."""


class Slot:
    """The place of one reply among the replies of its connection."""

    __slots__ = ("abandon", "chunks", "owed_bytes")

    def __init__(self, owed_bytes: int) -> None:
        self.chunks: Chunks | None = None
        self.abandon: Callable[[], None] | None = None
        """Whom to tell that nobody waits for the reply any more."""
        self.owed_bytes = owed_bytes
        """Its size or, while it is not there, what it may become."""


class Connection(asyncio.BufferedProtocol):
    """One client."""

    def __init__(
        self,
        server: Server,
        dispatcher: Dispatcher,
        max_request_bytes: int,
        large_buffers: LargeBuffers,
    ) -> None:
        self._server = server
        self._dispatcher = dispatcher
        self._frames = FrameBuffer(max_request_bytes, large_buffers)
        self._queue: deque[memoryview] = deque()
        self._slots: deque[Slot] = deque()
        self._owed_bytes = 0
        self._held = 0
        self._replies: Chunks = []
        self._unread = False
        self._reading = True
        self._working = False
        self._transport: asyncio.Transport | None = None
        self.client_host = "?"
        self.client_name = "?"
        self.last_active = 0.0

    # -- asyncio's side -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods of asyncio.Transport without being one.
        self._transport = transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(high=MAX_UNSENT_BYTES)
        peer = transport.get_extra_info("peername")
        if peer:
            self.client_host = str(peer[0])
            self.client_name = f"{peer[0]}:{peer[1]}"
        self._server.joined(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._queue.clear()
        for slot in self._slots:
            if slot.abandon is not None:
                slot.abandon()
        self._slots.clear()
        self._server.left(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._frames.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        self.last_active = self._server.time()
        try:
            frames = self._frames.buffer_updated(nbytes)
        except WireError as problem:
            self.close(str(problem))
            return
        if frames:
            self._queue.extend(frames)
            if len(frames[0]) > INBOX_BYTES:
                self._work()  # Now it is in the cache, and before its turn others would come in.
            else:
                self._server.work_soon(self)
        if self._frames.broken is not None:  # Behind the good frames of this read comes a bad one.
            self._work()
            self.close(str(self._frames.broken))

    def eof_received(self) -> bool:
        return False  # Close: what a client asked for and does not want to hear need not be sent.

    def pause_writing(self) -> None:
        self._unread = True
        self._set_reading()

    def resume_writing(self) -> None:
        self._unread = False
        self._work()

    # -- our side -----------------------------------------------------------------------------------------

    def close(self, reason: str | None = None) -> None:
        """Ends the connection; a reason is a line in the log, and only the first one counts."""
        self._queue.clear()
        transport = self._transport
        if transport is None:
            return
        if reason is None:
            self._flush()
            transport.close()
            return
        if not transport.is_closing():
            log.warning("closing the connection of %s: %s", self.client_name, reason)
        transport.abort()

    def abort(self) -> None:
        """Ends the connection now, whatever lies there unread."""
        if self._transport is not None:
            self._transport.abort()

    def close_idle(self) -> None:
        """Ends a connection that nobody uses, even if replies lie there unread."""
        if self._transport is not None and not self._transport.is_closing():
            log.info("closing the connection of %s: it is idle", self.client_name)
            self.abort()

    @property
    def _stopped(self) -> bool:
        return (
            self._held > 0
            or self._unread
            or len(self._slots) >= MAX_REQUESTS_IN_FLIGHT
            or self._owed_bytes > FETCH_RESPONSE_MAX_BYTES
        )

    def _work(self) -> None:
        """A turn of this connection alone."""
        self.work()
        self.end_turn()

    def work(self) -> None:
        """Dispatches what is queued until something stops it; `end_turn` has to follow."""
        if self._working:
            return  # A reply that came at once has called us back: the loop below goes on.
        self._working = True
        queue = self._queue
        try:
            while queue and not self._stopped and self._transport is not None:
                self._dispatcher.dispatch(self, queue.popleft())
        finally:
            self._working = False

    def end_turn(self) -> None:
        """Sends what there is to be sent, and reads on or not."""
        if not self._working:
            self._flush()
            self._set_reading()

    def _flush(self) -> None:
        """Hands the replies of one turn to the transport, all at once."""
        if self._replies:
            if self._transport is not None:
                self._transport.writelines(self._replies)
            self._replies = []

    def _set_reading(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        wanted = not self._stopped and not self._queue
        if wanted is not self._reading:
            self._reading = wanted
            transport.resume_reading() if wanted else transport.pause_reading()

    def hold(self) -> None:
        """The request just dispatched has not taken effect: nothing after it may start."""
        self._held += 1

    def release(self) -> None:
        """It has taken effect now."""
        self._held -= 1
        self._work()

    def send(self, chunks: Chunks) -> None:
        """A reply that was there at once."""
        if self._slots:
            self.reserve(_size_of(chunks)).chunks = chunks
        elif self._working:
            self._replies += chunks
            if len(chunks) > 1 or len(chunks[0]) > SMALL_REPLY_BYTES:
                self._flush()  # The transport must know how much the client has not read.
        elif self._transport is not None:
            self._flush()
            self._transport.writelines(chunks)

    def reserve(self, owed_bytes: int) -> Slot:
        """The place of a reply that will come later, and how large it may be."""
        slot = Slot(owed_bytes)
        self._slots.append(slot)
        self._owed_bytes += owed_bytes
        return slot

    def fill(self, slot: Slot, chunks: Chunks) -> None:
        """The reply for `slot` is there; it goes out when those before it have."""
        slots = self._slots
        transport = self._transport
        if transport is None:
            return
        slot.chunks = chunks
        self._owed_bytes -= slot.owed_bytes
        slot.owed_bytes = _size_of(chunks)
        self._owed_bytes += slot.owed_bytes
        self._flush()
        while slots and (ready := slots[0].chunks) is not None:
            self._owed_bytes -= slots.popleft().owed_bytes
            if ready:
                transport.writelines(ready)
        self._work()


def _size_of(chunks: Chunks) -> int:
    return sum(map(len, chunks))


class Server:
    """The listening socket and the connections behind it."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        dispatcher: Dispatcher,
        *,
        max_request_bytes: int,
        max_connections: int,
        max_idle_ms: int,
    ) -> None:
        self._loop = loop
        self._dispatcher = dispatcher
        self._max_request_bytes = max_request_bytes
        self._large_buffers = LargeBuffers()
        self._ready: list[Connection] = []
        self._max_connections = max_connections
        self._max_idle_seconds = max_idle_ms / 1000
        self._servers: list[asyncio.AbstractServer] = []
        self._connections: dict[Connection, None] = {}
        self._sweep: asyncio.TimerHandle | None = None
        self._empty: asyncio.Event | None = None
        self.time = loop.time

    async def listen(self, host: str, port: int) -> int:
        """Starts to accept; the port, which is a free one where 0 was asked for."""
        server = await self._loop.create_server(self._connection, host, port, backlog=1024)
        self._servers.append(server)
        if self._sweep is None and self._max_idle_seconds > 0:
            self._schedule_sweep()
        opened: Any = server  # Its sockets are a tuple by asyncio's word, and a list with uvloop.
        return int(opened.sockets[0].getsockname()[1])

    def _connection(self) -> Connection:
        return Connection(self, self._dispatcher, self._max_request_bytes, self._large_buffers)

    def joined(self, connection: Connection) -> None:
        connection.last_active = self.time()
        self._connections[connection] = None
        if self._empty is not None:  # It was on its way when we stopped to accept.
            connection.abort()
        elif len(self._connections) > self._max_connections:
            connection.close(f"there are {self._max_connections} connections (max.connections)")

    def left(self, connection: Connection) -> None:
        self._connections.pop(connection, None)
        if not self._connections and self._empty is not None:
            self._empty.set()

    def work_soon(self, connection: Connection) -> None:
        """Its requests are served in this turn of the loop, once all sockets have been read."""
        if not self._ready:
            self._loop.call_soon(self._work_all)
        self._ready.append(connection)

    def _work_all(self) -> None:
        ready, self._ready = self._ready, []
        for connection in ready:
            connection.work()
        for connection in ready:
            connection.end_turn()

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    def _schedule_sweep(self) -> None:
        # Often enough that an idle connection lives at most a fifth too long.
        self._sweep = self._loop.call_later(self._max_idle_seconds / 5, self._close_idle)

    def _close_idle(self) -> None:
        oldest = self.time() - self._max_idle_seconds
        for connection in list(self._connections):
            if connection.last_active < oldest:
                connection.close_idle()
        self._schedule_sweep()

    async def close(self) -> None:
        """Stops to accept and ends every connection."""
        if self._sweep is not None:
            self._sweep.cancel()
        for server in self._servers:
            server.close()
        for connection in list(self._connections):
            connection.close()
        await self._let_go()
        for server in self._servers:
            await server.wait_closed()

    async def _let_go(self) -> None:
        """Waits a moment for replies that are on their way; whoever does not read them is not waited for."""
        self._empty = asyncio.Event()
        await self._linger(self._empty)
        for connection in list(self._connections):
            connection.abort()
        await self._linger(self._empty)

    async def _linger(self, empty: asyncio.Event) -> None:
        if self._connections:
            with suppress(TimeoutError):
                await asyncio.wait_for(empty.wait(), LINGER_SECONDS)
