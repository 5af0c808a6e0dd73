"""Plain sockets under a conversation: the one place of this room that does I/O.

A `Link` is one connection to one endpoint: a socket that never blocks, a frame buffer and a
conversation. A `Network` is the driver of procedures (see `steps.py`): it opens links when they are
first needed, sends, waits on all of them at once, and turns everything that goes wrong with a
connection into `Lost` for whatever was unanswered on it.

A request that is not answered within its own time costs the whole connection, as in Kafka's own
clients: answers come in order, so whoever waits behind it would wait as well.

A process that was forked (as Spark's Python workers are) must not talk on its parent's sockets. The
network notices by its process id, drops the links without a word to the broker, and opens new ones.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import ssl
import time
from typing import TYPE_CHECKING, Final

from fencepost.base.failures import WireError
from fencepost.client.conversation import Chunks, Conversation
from fencepost.client.failures import AuthenticationFailed
from fencepost.client.steps import Answer, Lost, Send
from fencepost.client.tls import tls_context
from fencepost.wire.framing import FrameBuffer

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from fencepost.base.seams import Buffer, Randomness
    from fencepost.client.options import ClientOptions, Endpoint

_MAX_CHUNKS_PER_SEND: Final = 512
_RECEIVE_AT_ONCE: Final = 64
"""Reads from one ready socket before the others have their turn."""
_RESPONSE_OVERHEAD_BYTES: Final = 256 * 1024 * 1024
"""What an answer may have beyond fetch.max.bytes: one batch that is larger than the limit, and
everything that is not a fetch. A broker that claims more is not one."""
_NONCE_BYTES: Final = 24
_PASSING_TLS_TROUBLE: Final = (ssl.SSLEOFError, ssl.SSLZeroReturnError)
"""A broker that goes away in the middle of a handshake; it may come back."""
_LIFETIME_USED: Final = 0.85
"""The part of a login's lifetime after which the connection is replaced (Kafka's clients choose 85
to 95 %)."""
_Selector: Final = getattr(selectors, "PollSelector", selectors.DefaultSelector)
"""For a single question: an epoll would be a descriptor to open and to close (8 us; this one 3)."""


class MonotonicClock:
    """Milliseconds that never jump: for deadlines, not for timestamps."""

    def now_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000


class Link:
    """One connection."""

    def __init__(self, endpoint: Endpoint, options: ClientOptions, randomness: Randomness) -> None:
        self.endpoint = endpoint
        self.conversation = Conversation(
            options.client_id, options.login, randomness.bytes(_NONCE_BYTES)
        )
        self.deadlines: dict[int, int] = {}
        """Unanswered requests by correlation id, each with the moment at which we stop waiting."""
        self.replace_after_ms: int | None = None
        self._frames = FrameBuffer(options.fetch_max_bytes + _RESPONSE_OVERHEAD_BYTES)
        self._socket: socket.socket | None = None

    def __repr__(self) -> str:
        return f"<link to {self.endpoint}: {self.conversation!r}>"

    def fileno(self) -> int:
        assert self._socket is not None
        return self._socket.fileno()

    def open(self, context: ssl.SSLContext | None, timeout_ms: int, clock: MonotonicClock) -> None:
        """Connects, greets and logs in; OSError or ClientError when that does not succeed in time."""
        end_ms = clock.now_ms() + timeout_ms
        raw = socket.create_connection(self.endpoint, timeout=timeout_ms / 1000)
        self._socket = raw
        try:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if context is not None:
                self._socket = context.wrap_socket(raw, server_hostname=self.endpoint.host)
            self._socket.setblocking(False)
            self._converse(end_ms, clock)
        except BaseException:
            self.close()
            raise
        if lifetime_ms := self.conversation.session_lifetime_ms:
            self.replace_after_ms = clock.now_ms() + int(lifetime_ms * _LIFETIME_USED)

    def _converse(self, end_ms: int, clock: MonotonicClock) -> None:
        self.send(self.conversation.greet(), end_ms, clock)
        while not self.conversation.is_open:
            self._await(selectors.EVENT_READ, end_ms, clock)
            try:
                replies = [self.conversation.receive(frame)[0] for frame in self.receive()]
            except (ConnectionError, WireError) as problem:
                raise ConnectionResetError(_greeting_advice(problem)) from problem
            for chunks in replies:
                self.send(chunks, end_ms, clock)

    def send(self, chunks: Chunks, end_ms: int, clock: MonotonicClock) -> None:
        """Writes everything, or raises."""
        assert self._socket is not None
        views = [memoryview(chunk).cast("B") for chunk in chunks if len(chunk)]
        while views:
            try:
                sent = self._send_some(views)
            except (BlockingIOError, ssl.SSLWantWriteError):
                self._await(selectors.EVENT_WRITE, end_ms, clock)
                continue
            except ssl.SSLWantReadError:
                self._await(selectors.EVENT_READ, end_ms, clock)
                continue
            while views and sent >= len(views[0]):
                sent -= len(views.pop(0))
            if sent:
                views[0] = views[0][sent:]

    def _send_some(self, views: list[memoryview]) -> int:
        assert self._socket is not None
        if isinstance(self._socket, ssl.SSLSocket):
            return self._socket.send(views[0])
        return self._socket.sendmsg(views[:_MAX_CHUNKS_PER_SEND])

    def receive(self) -> list[memoryview]:
        """The frames that are whole by now. ConnectionError when the broker has hung up.

        What it said before it hung up comes first: a broker that refuses a login says why, and
        closes.
        """
        assert self._socket is not None
        frames: list[memoryview] = []
        for _ in range(_RECEIVE_AT_ONCE):
            room = self._frames.get_buffer()
            try:
                count = self._socket.recv_into(room)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                break
            except OSError:
                if frames:
                    break
                raise
            if count == 0:
                if frames:
                    break
                raise ConnectionResetError("the broker closed the connection")
            frames += self._frames.buffer_updated(count)
            # What is left inside the TLS layer does not wake a selector, so a short read ends plain
            # sockets only.
            if count < len(room) and not isinstance(self._socket, ssl.SSLSocket):
                break
        return frames

    def has_decrypted(self) -> bool:
        """Whether bytes wait inside the TLS layer, where no selector sees them."""
        return isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0

    def _await(self, events: int, end_ms: int, clock: MonotonicClock) -> None:
        left_ms = end_ms - clock.now_ms()
        with _Selector() as selector:
            selector.register(self, events)
            if left_ms <= 0 or not selector.select(left_ms / 1000):
                raise TimeoutError("the broker did not answer in time")

    def close(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.close()
            self._socket = None

    def abandon(self) -> None:
        """Gives up the descriptor without a word: the connection belongs to the parent process."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                os.close(self._socket.detach())
            self._socket = None


class Network:
    """All links of one client, as a driver of procedures."""

    def __init__(
        self, options: ClientOptions, clock: MonotonicClock, randomness: Randomness
    ) -> None:
        self._options = options
        self._clock = clock
        self._randomness = randomness
        self._context = None if options.tls is None else tls_context(options.tls)
        self._links: dict[Endpoint, Link] = {}
        self._tickets: dict[int, tuple[Link, int]] = {}
        self._owners: dict[tuple[int, int], int] = {}
        self._answers: dict[int, Answer] = {}
        self._next_ticket = 0
        self._process_id = os.getpid()

    def __repr__(self) -> str:
        return f"<network: {len(self._links)} links, {len(self._tickets)} unanswered>"

    # The driver's three calls.

    def start(self, send: Send) -> int:
        """Sends; what fails on the way is an answer, what can never succeed is raised."""
        self._notice_fork()
        self._next_ticket += 1
        ticket = self._next_ticket
        end_ms = self._clock.now_ms() + send.timeout_ms
        try:
            link = self._link(send.endpoint, send.timeout_ms)
        except ssl.SSLCertVerificationError as problem:
            raise AuthenticationFailed(_certificate_advice(send.endpoint, problem)) from problem
        except (OSError, WireError) as problem:
            if isinstance(problem, ssl.SSLError) and not isinstance(problem, _PASSING_TLS_TROUBLE):
                raise AuthenticationFailed(_tls_advice(send.endpoint, problem)) from problem
            self._answers[ticket] = Lost(_reason(problem), sent=False)
            return ticket
        correlation_id, chunks = link.conversation.send(send.api, send.request, send.at_most)
        self._remember(ticket, link, correlation_id, end_ms)
        self._write(link, chunks, end_ms)
        return ticket

    def wait(self, tickets: Collection[int], timeout_ms: int) -> Mapping[int, Answer]:
        """The answers that are there; some at least, unless the time is over."""
        end_ms = self._clock.now_ms() + timeout_ms
        self._poll(0)
        while not (found := [ticket for ticket in tickets if ticket in self._answers]):
            left_ms = end_ms - self._clock.now_ms()
            if left_ms <= 0:
                return {}
            assert any(ticket in self._tickets for ticket in tickets), (
                "nobody will ever answer these tickets"
            )
            self._poll(left_ms)
        return {ticket: self._answers.pop(ticket) for ticket in found}

    def pause(self, pause_ms: int) -> None:
        time.sleep(pause_ms / 1000)

    # For the shell.

    def forget(self, tickets: Collection[int]) -> None:
        """Nobody will ask for these answers any more."""
        for ticket in tickets:
            self._answers.pop(ticket, None)
            where = self._tickets.pop(ticket, None)
            if where is not None:
                self._owners.pop((id(where[0]), where[1]), None)

    def close(self) -> None:
        self._notice_fork()
        for link in list(self._links.values()):
            self._drop(link, "the client was closed")
        self._answers.clear()

    # Links.

    def _link(self, endpoint: Endpoint, timeout_ms: int) -> Link:
        link = self._links.get(endpoint)
        if link is not None and not link.deadlines:
            # A broker closes connections that were idle for long; better to learn of it before we
            # send.
            self._read(link)
            link = self._links.get(endpoint)
        if link is not None and not self._is_login_ending(link):
            return link
        if link is not None:
            self._retire(link)
        link = Link(endpoint, self._options, self._randomness)
        link.open(
            self._context, min(timeout_ms, self._options.connection_setup_timeout_ms), self._clock
        )
        self._links[endpoint] = link
        return link

    def _is_login_ending(self, link: Link) -> bool:
        limit_ms = link.replace_after_ms
        return limit_ms is not None and self._clock.now_ms() >= limit_ms

    def _retire(self, link: Link) -> None:
        """The login will soon be over: lets what is under way come in, then closes."""
        while link.deadlines and self._links.get(link.endpoint) is link:
            self._poll(self._options.request_timeout_ms)
        if self._links.get(link.endpoint) is link:
            self._drop(link, "the login was over")

    def _notice_fork(self) -> None:
        if os.getpid() == self._process_id:
            return
        self._process_id = os.getpid()
        for link in self._links.values():
            link.abandon()
        self._links.clear()
        for ticket in list(self._tickets):
            self._answers[ticket] = Lost("the process was forked")
        self._tickets.clear()
        self._owners.clear()

    def _drop(self, link: Link, reason: str, *, closed_by_broker: bool = False) -> None:
        """Closes a link; everything unanswered on it is lost."""
        link.close()
        if self._links.get(link.endpoint) is link:
            del self._links[link.endpoint]
        for correlation_id in list(link.deadlines):
            self._settle(link, correlation_id, Lost(reason, closed_by_broker=closed_by_broker))

    # Tickets.

    def _remember(self, ticket: int, link: Link, correlation_id: int, end_ms: int) -> None:
        link.deadlines[correlation_id] = end_ms
        self._tickets[ticket] = (link, correlation_id)
        self._owners[id(link), correlation_id] = ticket

    def _settle(self, link: Link, correlation_id: int, answer: Answer) -> None:
        link.deadlines.pop(correlation_id, None)
        ticket = self._owners.pop((id(link), correlation_id), None)
        if ticket is not None:
            del self._tickets[ticket]
            self._answers[ticket] = answer

    # Bytes.

    def _write(self, link: Link, chunks: list[Buffer], end_ms: int) -> None:
        try:
            link.send(chunks, end_ms, self._clock)
        except OSError as problem:
            self._drop(link, _reason(problem))

    def _poll(self, timeout_ms: int) -> None:
        """Reads what has come, waiting at most so long for something to come."""
        now_ms = self._clock.now_ms()
        busy = [link for link in self._links.values() if link.deadlines]
        if not busy:
            return
        nearest_ms = min(min(link.deadlines.values()) for link in busy)
        ready = [link for link in busy if link.has_decrypted()]
        if not ready:
            wait_ms = max(0, min(timeout_ms, nearest_ms - now_ms))
            # Who does not wait need not ask first: to read where nothing is costs less than the
            # question.
            ready = _readable(busy, wait_ms) if wait_ms else busy
        for link in ready:
            self._read(link)
        # After the reading: an answer that came in time counts, though its caller was busy with
        # something else.
        self._expire(self._clock.now_ms())

    def _read(self, link: Link) -> None:
        try:
            for frame in link.receive():
                chunks, answered = link.conversation.receive(frame)
                assert not chunks, "an open conversation does not speak unasked"
                assert answered is not None
                self._settle(link, *answered)
        except (OSError, WireError) as problem:
            self._drop(
                link, _reason(problem), closed_by_broker=isinstance(problem, ConnectionError)
            )

    def _expire(self, now_ms: int) -> None:
        for link in list(self._links.values()):
            if link.deadlines and min(link.deadlines.values()) <= now_ms:
                self._drop(link, "no answer within the time of the request")


def _readable(links: list[Link], timeout_ms: int) -> list[Link]:
    with _Selector() as selector:
        for link in links:
            selector.register(link, selectors.EVENT_READ, link)
        return [key.data for key, _ in selector.select(timeout_ms / 1000)]


def _reason(problem: Exception) -> str:
    if isinstance(problem, TimeoutError):
        return str(problem) or "no connection within the time"
    if isinstance(problem, OSError) and problem.strerror:
        return problem.strerror
    return str(problem) or type(problem).__name__


def _greeting_advice(problem: Exception) -> str:
    return (
        f"no greeting: {_reason(problem)}; if it stays so, check that security.protocol is "
        "what this port speaks"
    )


def _certificate_advice(endpoint: Endpoint, problem: ssl.SSLCertVerificationError) -> str:
    return (
        f"the certificate of {endpoint} is not trusted: {problem.verify_message}; set "
        "ssl.ca.location to the PEM file "
        "of the authority that signed it, or correct the host name"
    )


def _tls_advice(endpoint: Endpoint, problem: ssl.SSLError) -> str:
    return (
        f"TLS with {endpoint} failed: {problem.reason or problem}; check that this port speaks TLS "
        "(security.protocol) and which client certificate it wants"
    )
