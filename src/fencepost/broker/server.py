"""Sockets: frames in, replies out, in order, with bounded memory.

Theory of operation ------------------- A connection cuts its bytes into frames and hands each to
the dispatcher in the order of arrival. A reply may be there at once or come later; a slot per
unanswered request keeps the order.

A turn of the loop has three parts: all sockets that have something are read, then all requests are
served, then all replies are sent. Served one by one between a read and a write of the system,
requests find the caches and the branch predictor full of the kernel's network code: 64 clients then
cost the broker 1.6 times the processor time. A large request is best served as soon as it is whole,
while its bytes are in the cache. But a turn does that for `LARGE_SECONDS` only; then large requests
wait in line, one of each connection, until the small ones are served. So a connection that sends
one large request after the other keeps nobody waiting for more than one of them.

Three things stop the reading of a connection, and with it the memory that it can cost:

- too many requests wait for their answers (`MAX_REQUESTS_IN_FLIGHT`), or one of them holds its
  followers back because it has not taken effect yet;
- the replies that wait for their turn are large, or may become so: behind one long poll other
  requests are served, behind several large ones they are not;
- too many bytes of replies have not been read by the client (`MAX_UNSENT_BYTES`).

Frames that were read before the stop wait in a queue, at most what one turn reads. Whatever is not
the protocol closes the connection with one line in the log; the others are served on.

All connections together ------------------------ Two rooms (`memory.py`) bound what all of them
hold: unread replies, and large requests. A connection takes room for

- replies that wait for their turn, and what its transport holds once the client has fallen behind;
- the buffer of a large request, before it grows, and until the request has taken effect.

While the replies' room is full, fetches bring nothing (`handlers/fetch.py`) and requests that may
have large answers (`LARGE_REPLIES`) wait; everything else is served. While the requests' room is
full, large requests are not read on. If all that hold some of it wait for more, one of them is
favoured and read to its end, so that they cannot block each other. Whoever holds room that others
wait for and does not move (`STUCK_SECONDS`) is closed.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, cast

from fencepost.base.allocator import return_freed_memory
from fencepost.base.failures import WireError
from fencepost.base.limits import (
    FETCH_RESPONSE_MAX_BYTES,
    MAX_REQUESTS_IN_FLIGHT,
    MAX_UNSENT_BYTES,
    STUCK_BYTES,
    STUCK_SECONDS,
)
from fencepost.base.mapping import Mapping
from fencepost.base.seams import Buffer
from fencepost.broker.memory import MemoryBudget
from fencepost.wire.apis import ApiKey
from fencepost.wire.framing import INBOX_BYTES, FrameBuffer, LargeBuffers

if TYPE_CHECKING:
    from fencepost.broker.dispatch import Dispatcher

log = logging.getLogger(__name__)

Chunks = list[Buffer]

SMALL_REPLY_BYTES: Final = 1024
"""Replies up to this size to requests that came with one read go out with one write."""

LARGE_SECONDS: Final = 0.005
"""How long a turn serves large requests before all small ones are served."""

LARGE_REPLIES: Final = frozenset(
    {
        ApiKey.METADATA,
        ApiKey.OFFSET_FETCH,
        ApiKey.DESCRIBE_GROUPS,
        ApiKey.LIST_GROUPS,
        ApiKey.DESCRIBE_CONFIGS,
        ApiKey.DESCRIBE_LOG_DIRS,
        ApiKey.DESCRIBE_PRODUCERS,
        ApiKey.DESCRIBE_TRANSACTIONS,
        ApiKey.LIST_TRANSACTIONS,
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
    }
)
"""What is not served while unread replies take all of their memory. A fetch sees to that itself."""

WATCH_SECONDS: Final = 0.25
"""How often it is looked who keeps others waiting for memory, while somebody waits."""

RETURN_SECONDS: Final = 1.0
"""How long after much of the shared memory became free it is given back to the system."""

LINGER_SECONDS: Final = 0.5
"""How long a stop waits for clients to read the replies that were sent to them."""


class Slot:
    """The place of one reply among the replies of its connection."""

    __slots__ = ("abandon", "chunks", "owed_bytes", "taken_bytes")

    def __init__(self, owed_bytes: int) -> None:
        self.chunks: Chunks | None = None
        self.abandon: Callable[[], None] | None = None
        """Whom to tell that nobody waits for the reply any more."""
        self.owed_bytes = owed_bytes
        """Its size or, while it is not there, what it may become."""
        self.taken_bytes = 0
        """What it takes of the room for replies while it waits for its turn."""


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
        self._large_buffers = large_buffers
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
        self._unread_bytes = 0
        self._whole_bytes = 0
        self._request_bytes = 0
        self._received_bytes = 0
        self._seen_at = 0.0
        self._seen_bytes = 0
        self.is_short = False
        """Whether the rest of a large request waits for room."""
        self.client_host = "?"
        self.client_name = "?"
        self.last_active = 0.0

    # -- asyncio's side
    # -----------------------------------------------------------------------------------

    def descriptor(self) -> int:
        """That of its socket; -1 once it is closed."""
        found = None if self._transport is None else self._transport.get_extra_info("socket")
        return -1 if found is None else int(found.fileno())

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
        self._give_all_back()
        self._slots.clear()
        self._server.left(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._frames.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        self.last_active = self._server.time()
        self._received_bytes += nbytes
        try:
            frames = self._frames.buffer_updated(nbytes)
        except WireError as problem:
            self.close(str(problem))
            return
        if frames:
            self._queue.extend(frames)
            if len(frames[0]) > INBOX_BYTES:
                self._whole_bytes += len(frames[0])
                self._take_for_requests()
                self._server.work_large(self)
            else:
                self._server.work_soon(self)
        if self._frames.large_bytes:
            self._make_room()
        if self._frames.broken is not None:  # Behind the good frames of this read comes a bad one.
            self.work_alone()
            self.close(str(self._frames.broken))

    def eof_received(self) -> bool:
        # Close: what a client asked for and does not want to hear need not be sent, least of all if
        # it does not read.
        if self._unread:
            self.abort()
        return False

    def pause_writing(self) -> None:
        self._unread = True
        self._set_reading()

    def resume_writing(self) -> None:
        self._unread = False
        self._server.replies.give(self._unread_bytes)
        self._unread_bytes = 0
        self.work_alone()

    # -- our side
    # -----------------------------------------------------------------------------------------

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

    def work_alone(self) -> None:
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
                if self._server.replies.is_full and _may_be_answered_at_length(queue[0]):
                    self._server.replies.when_free(self.work_alone)
                    break
                frame = queue.popleft()
                self._dispatcher.dispatch(self, frame)
                if len(frame) > INBOX_BYTES and self._held == 0:
                    self._has_taken_effect()
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
                self._write(self._replies)
            self._replies = []

    def _set_reading(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        wanted = not self._stopped and not self._queue and not self.is_short
        if wanted is not self._reading:
            self._reading = wanted
            transport.resume_reading() if wanted else transport.pause_reading()

    def hold(self) -> None:
        """The request just dispatched has not taken effect: nothing after it may start."""
        self._held += 1

    def release(self) -> None:
        """It has taken effect now."""
        self._held -= 1
        if self._held == 0:
            self._has_taken_effect()
        self.work_alone()

    def send(self, chunks: Chunks) -> None:
        """A reply that was there at once."""
        if self._slots:
            slot = self.reserve(_size_of(chunks))
            slot.chunks = chunks
            self._take_for_slot(slot, chunks)
        elif self._working:
            self._replies += chunks
            if len(chunks) > 1 or len(chunks[0]) > SMALL_REPLY_BYTES:
                self._flush()  # The transport must know how much the client has not read.
        elif self._transport is not None:
            self._flush()
            self._write(chunks)

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
        if slots[0] is not slot:
            self._take_for_slot(slot, chunks)
        while slots and (ready := slots[0].chunks) is not None:
            first = slots.popleft()
            self._owed_bytes -= first.owed_bytes
            if first.taken_bytes:
                self._server.replies.give(first.taken_bytes)
            if ready:
                self._write(ready)
        self.work_alone()

    # -- memory
    # -------------------------------------------------------------------------------------------

    def _write(self, chunks: Chunks) -> None:
        assert self._transport is not None
        self._transport.writelines(chunks)
        if self._unread:  # The transport has just said so, or had before.
            size = _memory_of(chunks)
            self._unread_bytes += size
            self._server.replies.take(size)

    def _take_for_slot(self, slot: Slot, chunks: Chunks) -> None:
        if self._transport is not None:  # Else nobody would give it back.
            slot.taken_bytes = _memory_of(chunks)
            self._server.replies.take(slot.taken_bytes)

    def _take_for_requests(self) -> None:
        """Takes as much room as the large requests of this connection need now, or gives back what they do not."""
        if self._transport is None:
            return  # A request has taken effect whose client is gone: all was given back then.
        wanted = self._frames.large_bytes + self._whole_bytes
        more = wanted - self._request_bytes
        self._request_bytes = wanted
        if more > 0:
            self._server.requests.take(more)
        elif more < 0:
            self._server.requests.give(-more)
            self._large_buffers.is_scarce = self._server.requests.is_full
            if wanted == 0:
                self._server.is_done(self)

    def _make_room(self) -> None:
        """Before the buffer of a large request grows: takes the room for it, or waits for some."""
        if self._frames.large_bytes + self._whole_bytes <= self._request_bytes:
            return
        if self._server.requests.is_full and not self._server.is_favoured(self):
            self._large_buffers.is_scarce = True
            self.is_short = True
            self._set_reading()
            self._server.requests.when_free(self.read_on)
        else:
            self._take_for_requests()

    def read_on(self) -> None:
        """There is room for the rest of a large request, or this one may do without."""
        if self.is_short:
            self.is_short = False
            self._server.requests.forget(self.read_on)
            self._take_for_requests()
            self._set_reading()

    def _has_taken_effect(self) -> None:
        """The large request that was dispatched is not needed any more; those in the queue are."""
        self._whole_bytes = sum(len(frame) for frame in self._queue if len(frame) > INBOX_BYTES)
        self._take_for_requests()

    def _give_all_back(self) -> None:
        server = self._server
        server.replies.forget(self.work_alone)
        server.replies.give(self._unread_bytes + sum(slot.taken_bytes for slot in self._slots))
        self._unread_bytes = 0
        server.requests.forget(self.read_on)
        self.is_short = False
        server.requests.give(self._request_bytes)
        self._request_bytes = 0
        self._large_buffers.is_scarce = server.requests.is_full
        server.is_done(self)

    @property
    def request_bytes(self) -> int:
        """What it holds of the room for requests."""
        return self._request_bytes

    def keeps_others_waiting(self) -> bool:
        """Whether it holds room that somebody waits for, and could do something about it itself."""
        server = self._server
        if server.replies.is_waited_for and (
            self._unread_bytes or any(slot.taken_bytes for slot in self._slots)
        ):
            return True
        return (
            server.requests.is_waited_for
            and self._request_bytes > 0
            and self._held == 0
            and not self.is_short
        )

    def is_stuck(self, now: float) -> bool:
        """Whether it has hardly moved since it began to keep others waiting; asked again and again."""
        if self._transport is None or not self.keeps_others_waiting():
            self._seen_at = 0.0
            return False
        moved = self._received_bytes - self._transport.get_write_buffer_size()
        if self._seen_at and now - self._seen_at < STUCK_SECONDS:
            return False
        was_seen, before = self._seen_at > 0, self._seen_bytes
        self._seen_at, self._seen_bytes = now, moved
        return was_seen and moved - before < STUCK_BYTES


def _size_of(chunks: Chunks) -> int:
    return sum(map(len, chunks))


def _memory_of(chunks: Chunks) -> int:
    """What they take of our own memory: a view of a file lies in the page cache."""
    size = 0
    for chunk in chunks:
        if not (isinstance(chunk, memoryview) and isinstance(chunk.obj, Mapping)):
            size += len(chunk)
    return size


_api_key = struct.Struct(">h").unpack_from


def _may_be_answered_at_length(frame: memoryview) -> bool:
    return len(frame) >= 2 and _api_key(frame)[0] in LARGE_REPLIES


class Server:
    """The listening socket and the connections behind it."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        dispatcher: Dispatcher,
        *,
        replies: MemoryBudget,
        requests: MemoryBudget,
        max_request_bytes: int,
        max_connections: int,
        max_idle_ms: int,
    ) -> None:
        self._loop = loop
        self.replies = replies
        self.requests = requests
        for budget in (replies, requests):
            budget.attach(loop)
            budget.on_wait = self._watch_soon
            budget.on_emptied = self._return_memory_soon
        self._watch: asyncio.TimerHandle | None = None
        self._returning: asyncio.TimerHandle | None = None
        self._favoured: Connection | None = None
        self._dispatcher = dispatcher
        self._max_request_bytes = max_request_bytes
        self._large_buffers = LargeBuffers()
        self._ready: list[Connection] = []
        self._large: deque[Connection] = deque()
        self._large_until = 0.0
        self._is_scheduled = False
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

    def descriptors(self) -> list[int]:
        """The descriptors of all sockets: a process that was forked from this one must let go of them."""
        opened: Any = self._servers
        found = [sock.fileno() for server in opened for sock in server.sockets]
        found += [connection.descriptor() for connection in list(self._connections)]
        return [descriptor for descriptor in found if descriptor >= 0]

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
        self._schedule_work()
        self._ready.append(connection)

    def work_large(self, connection: Connection) -> None:
        """Serves its large request at once, where this turn has time for it, else behind the others."""
        self._schedule_work()
        now = perf_counter()
        if not self._large and (self._large_until == 0.0 or now < self._large_until):
            if self._large_until == 0.0:
                self._large_until = now + LARGE_SECONDS
            connection.work_alone()
        else:
            self._large.append(connection)
            connection.end_turn()  # It is not read on before it was served.

    def _schedule_work(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._work_all)

    def _work_all(self) -> None:
        self._is_scheduled = False
        ready, self._ready = self._ready, []
        for connection in ready:
            connection.work()
        for connection in ready:
            connection.end_turn()
        if self._large:
            self._work_some_large()
        self._large_until = 0.0

    def _work_some_large(self) -> None:
        """Unless this turn has served some already: then the others get the next, after all that has come meanwhile."""
        now = perf_counter()
        until = self._large_until or now + LARGE_SECONDS
        while self._large and now < until:
            self._large.popleft().work_alone()
            now = perf_counter()
        if self._large:
            self._schedule_work()

    # -- memory that all connections share
    # ----------------------------------------------------------------

    def is_favoured(self, connection: Connection) -> bool:
        return connection is self._favoured

    def is_done(self, connection: Connection) -> None:
        """It holds no room for requests any more."""
        if connection is self._favoured:
            self._favoured = None

    def _return_memory_soon(self) -> None:
        # Not at once: whoever has just read so much may do so again.
        if self._returning is None:
            self._returning = self._loop.call_later(RETURN_SECONDS, self._return_memory)

    def _return_memory(self) -> None:
        self._returning = None
        self._loop.run_in_executor(None, return_freed_memory)

    def _watch_soon(self) -> None:
        if self._watch is None:
            self._watch = self._loop.call_later(WATCH_SECONDS, self._look_who_waits)

    def _look_who_waits(self) -> None:
        """While somebody waits for room: lets it go on somehow."""
        self._watch = None
        if not self.replies.is_waited_for and not self.requests.is_waited_for:
            return
        self._favour_one()
        now = self.time()
        for connection in list(self._connections):
            if connection.is_stuck(now):
                connection.close(
                    f"it moved fewer than {STUCK_BYTES} bytes in {STUCK_SECONDS:.0f} s and "
                    "holds memory "
                    "that others wait for (queued.max.response.bytes, queued.max.request.bytes)"
                )
        self._watch_soon()

    def _favour_one(self) -> None:
        """If all that hold room for requests wait for more of it, one of them is read to its end."""
        if self._favoured is not None or not self.requests.is_waited_for:
            return
        holders = [connection for connection in self._connections if connection.request_bytes]
        short = [connection for connection in self._connections if connection.is_short]
        if short and all(connection.is_short for connection in holders):
            self._favoured = max(short, key=lambda connection: connection.request_bytes)
            self._favoured.read_on()

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
        for timer in (self._sweep, self._watch, self._returning):
            if timer is not None:
                timer.cancel()
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
