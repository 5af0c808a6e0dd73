"""The listening sockets, and how its connections take turns and share memory.

Theory of operation
-------------------
A turn of the loop has three parts: the server reads all sockets that have data, serves all
requests, and sends all replies. If each request were served between a read and a write, the
kernel's network code would evict it from the caches and the branch predictor: with 64 clients the
broker then needs 1.6 times the processor time.

A large request is served as soon as it is complete, while its bytes are in the cache, but a turn
spends only one `Turn` on large requests. Then they wait in line, one of each connection, until the
small ones are served. So a connection that sends one large request after another delays the others
by one of them at most.

Shared memory
-------------
Two budgets (`memory.py`) limit what all connections hold together: unread replies, and large
requests. A connection takes from them for

- replies that wait for their turn, and bytes in its transport once the client has fallen behind;
- the buffer of a large request, before it grows, and until the request has taken effect.

While the budget for replies is used up, fetches return no records (`handlers/fetch.py`) and
requests that may have large replies (`LARGE_REPLIES`) wait; everything else is served. While the
budget for requests is used up, the server does not continue to read large requests. If every
connection that holds some of that budget waits for more, one of them is favoured and read to its
end, so that they cannot block each other. A connection that holds memory which others wait for, and
makes no progress for `STUCK_SECONDS`, is closed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from fencepost.base.limits import STUCK_BYTES, STUCK_SECONDS
from fencepost.base.system import return_freed_memory
from fencepost.broker.network.connection import Connection
from fencepost.broker.network.memory import MemoryBudget
from fencepost.broker.network.tls_filter import RECEIVE_BYTES, TlsFilter
from fencepost.broker.turns import Line, Turn
from fencepost.wire.framing import LargeBuffers

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from socket import socket

    from fencepost.broker.dispatch import Dispatcher
    from fencepost.broker.network.limits import ConnectionLimits
    from fencepost.broker.security.logins import Logins
    from fencepost.broker.security.tls import Certificates
    from fencepost.broker.settings.listener import BrokerListener

log = logging.getLogger(__name__)

BACKLOG: Final = 1024
"""Connections that the kernel accepts before the server does."""

WATCH_SECONDS: Final = 0.25
"""How often the server looks for connections that hold back others, while some wait for memory."""

RETURN_SECONDS: Final = 1.0
"""How long after much shared memory became free the process returns it to the system."""

LINGER_SECONDS: Final = 0.5
"""How long a stop waits for clients to read the replies that were sent to them."""


class Server:
    """The listening sockets and their connections."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        dispatcher: Dispatcher,
        *,
        replies: MemoryBudget,
        requests: MemoryBudget,
        max_request_bytes: int,
        limits: ConnectionLimits,
        max_idle_ms: int,
        now_ms: Callable[[], int],
        line: Line,
        certificates: Mapping[str, Certificates] | None = None,
        logins: Logins | None = None,
    ) -> None:
        """`certificates` are those of each listener that uses TLS; `logins` are for SASL.

        `now_ms` is the broker's clock.
        """
        self._loop = loop
        self._now_ms = now_ms
        self.line = line
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
        self._logins = logins
        self._max_request_bytes = max_request_bytes
        self._large_buffers = LargeBuffers()
        self._ready: list[Connection] = []
        self._large: deque[Connection] = deque()
        self._large_turn: Turn | None = None
        self._is_scheduled = False
        self._limits = limits
        self._certificates = certificates or {}
        self._handshakes: dict[TlsFilter, None] = {}
        self.tls_inbox: Final = memoryview(bytearray(RECEIVE_BYTES))
        """Where the connections of this loop read ciphertext, one after the other. Another loop of
        this process reads at the same time: Python does not lock it out of a call of the system."""
        self._max_idle_seconds = max_idle_ms / 1000
        self._servers: list[asyncio.AbstractServer] = []
        self._connections: dict[Connection, None] = {}
        self.accepted_count = 0
        """Connections since the start."""
        self._sweep: asyncio.TimerHandle | None = None
        self._empty: asyncio.Event | None = None
        self._stale_until = 0.0
        self.time = loop.time
        self.call_soon = loop.call_soon
        self.call_later = loop.call_later

    async def listen(self, listener: BrokerListener) -> int:
        """Starts to accept connections; returns the port, a free one if that of `at` is 0."""
        server = await self._loop.create_server(
            partial(self._accept, listener), listener.at.host, listener.at.port, backlog=BACKLOG
        )
        self._accepting(server)
        opened: Any = server  # `sockets` is a tuple in asyncio, and a list in uvloop.
        return int(opened.sockets[0].getsockname()[1])

    async def listen_on(self, sockets: Iterable[socket], listener: BrokerListener) -> None:
        """Starts to accept connections on sockets that are bound."""
        accept = partial(self._accept, listener)
        for bound in sockets:
            server = await self._loop.create_server(accept, sock=bound, backlog=BACKLOG)
            self._accepting(server)

    def _accepting(self, server: asyncio.AbstractServer) -> None:
        self._servers.append(server)
        if self._sweep is None and self._max_idle_seconds > 0:
            self._schedule_sweep()

    def descriptors(self) -> list[int]:
        """The file descriptors of all sockets, which a forked process has to close."""
        opened: Any = self._servers
        found = [sock.fileno() for server in opened for sock in server.sockets]
        found += [connection.descriptor() for connection in list(self._connections)]
        return [descriptor for descriptor in found if descriptor >= 0]

    @property
    def client_addresses(self) -> set[str]:
        """Host and port of every client that is connected."""
        return {connection.client_name for connection in self._connections}

    def _accept(self, listener: BrokerListener) -> Connection | TlsFilter:
        """The protocol of a new socket."""
        connection = Connection(
            self, self._dispatcher, self._max_request_bytes, self._large_buffers
        )
        connection.listener = listener.name
        connection.listener_protocol = listener.protocol
        if listener.protocol.startswith("SASL"):
            assert self._logins is not None, "a listener with SASL has logins"
            self._logins.begin(connection)
        if not listener.is_tls:
            return connection
        return TlsFilter(self, connection, self._certificates[listener.name])

    def joined(self, connection: Connection) -> None:
        """Registers a new connection."""
        connection.last_active = self.time()
        self._connections[connection] = None
        self.accepted_count += 1
        refused = self._limits.joined(connection.listener, connection.client_host)
        if self._empty is not None:  # Accepted while the server was closing.
            connection.abort()
        elif connection.last_active < self._stale_until:
            connection.close("the broker was suspended while this connection waited")
        elif refused is not None:
            connection.close(refused)
        else:
            seconds = self._limits.wait_seconds(connection.listener, self.time())
            if seconds is None:
                connection.close("too many wait for their turn (max.connection.creation.rate)")
            elif seconds > 0:
                connection.wait_to_begin(seconds)

    def cut_off(self, reason: str, *, stale_until: float = 0.0) -> None:
        """Closes every connection, unserved; those accepted before `stale_until` follow."""
        self._stale_until = stale_until
        for connection in list(self._connections):
            connection.close(reason)

    async def stop_listening(self) -> None:
        """Refuses new connections, until it listens again."""
        servers, self._servers = self._servers, []
        for server in servers:
            server.close()

    def abort(self) -> None:
        """Closes all connections now, without their last replies, and accepts no more."""
        self._empty = self._empty or asyncio.Event()
        for server in self._servers:
            server.close()
        for connection in list(self._connections):
            connection.abort()

    def left(self, connection: Connection) -> None:
        """Forgets a closed connection."""
        if connection in self._connections:
            del self._connections[connection]
            connection.presence.gone_at_ms = self._now_ms()
            self._limits.left(connection.listener, connection.client_host)
        if not self._connections and self._empty is not None:
            self._empty.set()

    def work_soon(self, connection: Connection) -> None:
        """Serves its requests in this turn of the loop, after all sockets have been read."""
        self._schedule_work()
        self._ready.append(connection)

    def work_large(self, connection: Connection) -> None:
        """Serves its large request at once if this turn has time for it, otherwise after others."""
        self._schedule_work()
        if not self._large and (self._large_turn is None or not self._large_turn.is_over()):
            if self._large_turn is None:
                self._large_turn = Turn()
            connection.work_alone()
        else:
            self._large.append(connection)
            connection.end_turn()  # Reading continues when the request is served.

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
        self._large_turn = None

    def _work_some_large(self) -> None:
        """Serves large requests until this turn's time for them is used up; the rest wait."""
        turn = self._large_turn
        if turn is None:
            turn = Turn()
            self._large.popleft().work_alone()
        while self._large and not turn.is_over():
            self._large.popleft().work_alone()
        if self._large:
            self._schedule_work()

    def shake_hands_soon(self, tls: TlsFilter) -> None:
        """Goes on with a handshake, in its turn."""
        if not self._handshakes:
            self._loop.call_soon(self._shake_hands)
        self._handshakes[tls] = None

    def _shake_hands(self) -> None:
        """Goes on with handshakes for one turn; requests are served before the rest of them."""
        turn = Turn(is_short=True)
        handshakes = self._handshakes
        while handshakes:
            tls = next(iter(handshakes))
            del handshakes[tls]
            tls.shake_hands()
            if turn.is_over():
                break
        if handshakes:
            self._loop.call_soon(self._shake_hands)

    # -- memory that all connections share
    # ----------------------------------------------------------------

    def is_favoured(self, connection: Connection) -> bool:
        """Whether the connection may exceed the budget for requests."""
        return connection is self._favoured

    def is_done(self, connection: Connection) -> None:
        """The connection no longer holds memory for requests."""
        if connection is self._favoured:
            self._favoured = None

    def _return_memory_soon(self) -> None:
        # Not at once: the next large reply or request may need it again.
        if self._returning is None:
            self._returning = self._loop.call_later(RETURN_SECONDS, self._return_memory)

    def _return_memory(self) -> None:
        self._returning = None
        self._loop.run_in_executor(None, return_freed_memory)

    def _watch_soon(self) -> None:
        if self._watch is None:
            self._watch = self._loop.call_later(WATCH_SECONDS, self._close_stuck)

    def _close_stuck(self) -> None:
        """Favours one connection or closes stuck ones, so that those waiting for memory proceed."""
        self._watch = None
        if not self.replies.is_waited_for and not self.requests.is_waited_for:
            return
        self._favour_one()
        now = self.time()
        for connection in list(self._connections):
            if connection.is_stuck(now):
                connection.close(
                    f"it moved fewer than {STUCK_BYTES} bytes in {STUCK_SECONDS:.0f} s and "
                    "holds memory that others wait for "
                    "(queued.max.response.bytes, queued.max.request.bytes)"
                )
        self._watch_soon()

    def _favour_one(self) -> None:
        """Reads one request to its end if all that hold memory for requests wait for more."""
        if self._favoured is not None or not self.requests.is_waited_for:
            return
        holders = [connection for connection in self._connections if connection.request_bytes]
        short = [connection for connection in self._connections if connection.is_short]
        if short and all(connection.is_short for connection in holders):
            self._favoured = max(short, key=lambda connection: connection.request_bytes)
            self._favoured.read_on()

    @property
    def connection_count(self) -> int:
        """The number of open connections."""
        return len(self._connections)

    def _schedule_sweep(self) -> None:
        # An idle connection is closed at most a fifth of the limit too late.
        self._sweep = self._loop.call_later(self._max_idle_seconds / 5, self._close_idle)

    def _close_idle(self) -> None:
        oldest = self.time() - self._max_idle_seconds
        for connection in list(self._connections):
            if connection.last_active < oldest:
                connection.close_idle()
        self._schedule_sweep()

    async def close(self) -> None:
        """Stops accepting and closes every connection."""
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
        """Gives clients a moment to read their last replies, then aborts their connections."""
        self._empty = asyncio.Event()
        await self._linger(self._empty)
        for connection in list(self._connections):
            connection.abort()
        await self._linger(self._empty)

    async def _linger(self, empty: asyncio.Event) -> None:
        if self._connections:
            with suppress(TimeoutError):
                await asyncio.wait_for(empty.wait(), LINGER_SECONDS)
