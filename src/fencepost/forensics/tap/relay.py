"""One connection: two sockets, and the bytes between them.

All connections read into one buffer, one after the other. What was read is sent to the other side
at once; only what that socket does not accept is kept, and then the reading side waits. So a slow
receiver slows down its sender, as without a proxy.

A side that ends its stream does not close the other direction: the end is passed on after the last
byte. TLS has no half-open state, so there the connection stays until the last reply has come.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from fencepost.base.failures import FencepostError
from fencepost.base.seams import Buffer
from fencepost.forensics.tap.decoding.conversation import Conversation
from fencepost.records.trace import Body

READ_BYTES: Final = 512 * 1024
_READS_IN_TURN: Final = 4
"""Reads of one connection before the others get their turn."""
_BUFFER: Final = memoryview(bytearray(READ_BYTES))

WOULD_BLOCK: Final = (
    BlockingIOError,
    InterruptedError,
    ssl.SSLWantReadError,
    ssl.SSLWantWriteError,
)


class Relay:
    """A client, its broker, and what they say to each other."""

    def __init__(
        self,
        loop: AbstractEventLoop,
        client: socket.socket,
        broker: socket.socket,
        conversation: Conversation,
        now_us: Callable[[], int],
        on_lines: Callable[[list[Body]], None],
        on_end: Callable[[Relay, str], None],
    ) -> None:
        self.conversation: Final = conversation
        self._now_us = now_us
        self._on_lines = on_lines
        self._on_end = on_end
        self._is_closed = False
        self._reason = ""
        self.client: Final = _Side(loop, client, self._read_client, self._flushed)
        self.broker: Final = _Side(loop, broker, self._read_broker, self._flushed)

    def start(self) -> None:
        """Reads from both sides."""
        self.client.resume()
        self.broker.resume()

    def close(self, reason: str) -> None:
        """Closes both sides, once."""
        if self._is_closed:
            return
        self._is_closed = True
        self.client.close()
        self.broker.close()
        self._on_end(self, reason)

    # Reading.

    def _read_client(self) -> None:
        self._read(self.client, self.broker, self._pass_request, "the client")

    def _read_broker(self) -> None:
        self._read(self.broker, self.client, self._pass_reply, "the broker")

    def _pass_request(self, data: memoryview) -> None:
        self.conversation.from_client(data, self._now_us())
        self.broker.send([data])

    def _pass_reply(self, data: memoryview) -> None:
        self.client.send(self.conversation.from_broker(data, self._now_us()))

    def _read(
        self, source: _Side, target: _Side, pass_on: Callable[[memoryview], None], who: str
    ) -> None:
        for _ in range(_READS_IN_TURN):
            count = source.receive()
            if count is None:
                return
            if count == 0:
                self._ended(source, target, who)
                return
            try:
                pass_on(_BUFFER[:count])
            except (FencepostError, OSError) as problem:
                self._drain()
                self.close(str(problem))
                return
            self._drain()
            self._end_if_done()
            if target.backlog:
                source.pause()
                return
            if count < READ_BYTES and not source.is_tls:
                return
        if source.has_more:
            source.read_soon()

    def _drain(self) -> None:
        lines = self.conversation.drain()
        if lines:
            self._on_lines(lines)

    def _flushed(self, target: _Side) -> None:
        """A receiver has accepted everything, or never will: its sender may go on."""
        source = self.client if target is self.broker else self.broker
        source.resume()
        self._end_if_done()

    # The end.

    def _ended(self, source: _Side, target: _Side, who: str) -> None:
        self._reason = self._reason or f"{who} {source.failure or 'has closed it'}"
        source.pause()
        if source is self.broker:
            target.send(self.conversation.end_of_broker())
        target.finish()
        self._end_if_done()

    def _end_if_done(self) -> None:
        client, broker = self.client, self.broker
        if not client.at_end and not broker.at_end:
            return
        no_more_replies = broker.is_gone or (
            client.at_end
            and (broker.at_end or (broker.is_tls and not self.conversation.unanswered))
        )
        if client.is_gone or (no_more_replies and not client.backlog):
            self.close(self._reason)


class _Side:
    """A socket of the loop, and what it has not accepted yet."""

    def __init__(
        self,
        loop: AbstractEventLoop,
        connection: socket.socket,
        on_readable: Callable[[], None],
        on_flushed: Callable[[_Side], None],
    ) -> None:
        self._loop = loop
        self.connection: Final = connection
        self._on_readable = on_readable
        self._on_flushed = on_flushed
        self._waiting: deque[memoryview] = deque()
        self._is_reading = False
        self._is_closed = False
        self._ends_after = False
        self._is_broken = False
        self.at_end = False
        """Whether nothing more will be read."""
        self.failure: str | None = None
        """Why the socket failed."""
        self.is_tls: Final = isinstance(connection, ssl.SSLSocket)
        self.bytes_read = 0

    @property
    def backlog(self) -> bool:
        """Whether bytes wait to be sent."""
        return bool(self._waiting)

    @property
    def is_gone(self) -> bool:
        """Whether the other end has stopped sending and receiving."""
        return self.at_end and self._is_broken

    @property
    def has_more(self) -> bool:
        """Whether decrypted bytes wait, of which the loop knows nothing."""
        return isinstance(self.connection, ssl.SSLSocket) and self.connection.pending() > 0

    def receive(self) -> int | None:
        """Reads into the shared buffer; None if there is nothing, 0 at the end."""
        if self._is_closed or self.at_end:
            return None
        try:
            count = self.connection.recv_into(_BUFFER)
        except WOULD_BLOCK:
            return None
        except OSError as problem:
            self._break(problem)
            count = 0
        self.bytes_read += count
        self.at_end = count == 0
        return count

    def send(self, pieces: Sequence[Buffer]) -> None:
        """Sends now what the socket accepts, and the rest when it can; it is copied."""
        for piece in pieces:
            if self._is_closed or self._is_broken:
                return
            view = memoryview(piece)
            if not self._waiting:
                view = view[self._send(view) :]
            if len(view):
                if not self._waiting:
                    self._loop.add_writer(self.connection, self._on_writable)
                self._waiting.append(memoryview(bytes(view)))

    def finish(self) -> None:
        """Ends the stream after what waits."""
        self._ends_after = True
        if not self._waiting:
            self._shut_down()

    def resume(self) -> None:
        """Reads again."""
        if not self._is_reading and not self._is_closed and not self.at_end:
            self._is_reading = True
            self._loop.add_reader(self.connection, self._on_readable)
            if self.has_more:
                self.read_soon()

    def pause(self) -> None:
        """Stops reading."""
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self.connection)

    def read_soon(self) -> None:
        """Reads in the next turn of the loop."""
        self._loop.call_soon(self._read_if_reading)

    def close(self) -> None:
        """Closes the socket."""
        if self._is_closed:
            return
        self.pause()
        self._is_closed = True
        if self._waiting:
            self._loop.remove_writer(self.connection)
            self._waiting.clear()
        self.connection.close()

    def _read_if_reading(self) -> None:
        if self._is_reading:
            self._on_readable()

    def _send(self, view: memoryview) -> int:
        sent = 0
        try:
            while sent < len(view):
                sent += self.connection.send(view[sent:])
        except WOULD_BLOCK:
            pass
        except OSError as problem:
            # What the other end sent before it failed may still be read.
            self._break(problem)
            return len(view)
        return sent

    def _break(self, problem: OSError) -> None:
        self._is_broken = True
        self.failure = f"failed: {problem.strerror or problem}"

    def _on_writable(self) -> None:
        waiting = self._waiting
        while waiting:
            view = waiting[0]
            sent = self._send(view)
            if sent < len(view):
                waiting[0] = view[sent:]
                return
            waiting.popleft()
            if self._is_broken:
                waiting.clear()
        self._loop.remove_writer(self.connection)
        if self._ends_after:
            self._shut_down()
        self._on_flushed(self)

    def _shut_down(self) -> None:
        if not self.is_tls:
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_WR)
