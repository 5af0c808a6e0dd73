"""Plain sockets: the only module of this room that does I/O.

A `Link` is one connection to one endpoint: a non-blocking socket, a frame buffer and a
conversation. A `Network` is a driver of procedures (see `steps.py`): it opens links on first use,
sends, waits on all of them at once, and answers `Lost` for every unanswered request of a connection
that fails.

A request that times out closes its connection, as in Kafka's own clients: answers arrive in order,
so the requests behind it would wait too.

A forked process (such as Spark's Python workers) must not use its parent's sockets. The network
detects a fork by its process id, drops the links without sending anything, and opens new ones.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import ssl
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

from fencepost.base.failures import WireError
from fencepost.base.seams import Buffer, Randomness
from fencepost.client.conversation import Chunks, Conversation, Phase
from fencepost.client.failures import AuthenticationFailed
from fencepost.client.options import ClientOptions, Endpoint, Login
from fencepost.client.steps import Answer, Lost, Send
from fencepost.client.tls import tls_context
from fencepost.wire.framing import FrameBuffer

_MAX_CHUNKS_PER_SEND: Final = 512
_RECEIVE_AT_ONCE: Final = 64
"""How many reads one ready socket gets before the others."""
_RESPONSE_OVERHEAD_BYTES: Final = 256 * 1024 * 1024
"""How much larger than fetch.max.bytes a frame may be: room for one batch above the limit, and for
replies other than Fetch. A larger frame is a protocol error."""
_NONCE_BYTES: Final = 24
_CERTIFICATE_EXPIRED: Final = 10
"""OpenSSL's X509_V_ERR_CERT_HAS_EXPIRED."""
_PASSING_TLS_TROUBLE: Final = (ssl.SSLEOFError, ssl.SSLZeroReturnError)
"""The broker closed the connection during the handshake; a retry may succeed."""
_LIFETIME_USED: Final = 0.85
"""The share of a login's lifetime after which the connection is replaced (Kafka's clients use 85 to
95 %)."""
_Selector: Final = getattr(selectors, "PollSelector", selectors.DefaultSelector)
"""Used for one select each, where poll takes 3 us. epoll takes 8: it opens and closes a
descriptor."""


class MonotonicClock:
    """A clock for deadlines, not for timestamps: it never jumps."""

    def now_ms(self) -> int:
        """Returns monotonic milliseconds."""
        return time.monotonic_ns() // 1_000_000


class Link:
    """One connection."""

    def __init__(self, endpoint: Endpoint, options: ClientOptions, randomness: Randomness) -> None:
        self.endpoint = endpoint
        self.conversation = Conversation(
            options.client_id, _with_token(options.login), randomness.bytes(_NONCE_BYTES)
        )
        self.deadlines: dict[int, int] = {}
        """The deadlines of unanswered requests, by correlation id."""
        self.replace_after_ms: int | None = None
        self._frames = FrameBuffer(options.fetch_max_bytes + _RESPONSE_OVERHEAD_BYTES)
        self._socket: socket.socket | None = None

    def __repr__(self) -> str:
        return f"<link to {self.endpoint}: {self.conversation!r}>"

    def fileno(self) -> int:
        """Returns the socket's descriptor, for selectors."""
        assert self._socket is not None
        return self._socket.fileno()

    def open(self, context: ssl.SSLContext | None, timeout_ms: int, clock: MonotonicClock) -> None:
        """Connects, exchanges versions and logs in; OSError or ClientError if that fails."""
        end_ms = clock.now_ms() + timeout_ms
        raw = _dial(self.endpoint, end_ms, clock)
        self._socket = raw
        try:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if context is not None:
                raw.settimeout(_seconds_until(end_ms, clock))
                self._socket = context.wrap_socket(raw, server_hostname=self.endpoint.host)
            self._socket.setblocking(False)
            self._converse(end_ms, clock)
        except TimeoutError as problem:
            self.close()
            raise TimeoutError(
                f"it accepts connections, but did not answer within {timeout_ms} ms"
            ) from problem
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
                advice = _advice(self.conversation.phase, problem)
                raise ConnectionResetError(advice) from problem
            for chunks in replies:
                self.send(chunks, end_ms, clock)

    def send(self, chunks: Chunks, end_ms: int, clock: MonotonicClock) -> None:
        """Sends all chunks, or raises."""
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
        """Returns the complete frames; ConnectionError if the broker has closed the connection.

        Frames sent before the close come first: a broker that refuses a login says why, then
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
            # Bytes inside the TLS layer do not wake a selector, so only plain sockets stop after a
            # short read.
            if count < len(room) and not isinstance(self._socket, ssl.SSLSocket):
                break
        return frames

    def has_decrypted(self) -> bool:
        """Whether the TLS layer holds bytes, which no selector sees."""
        return isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0

    def _await(self, events: int, end_ms: int, clock: MonotonicClock) -> None:
        left_ms = end_ms - clock.now_ms()
        with _Selector() as selector:
            selector.register(self, events)
            if left_ms <= 0 or not selector.select(left_ms / 1000):
                raise TimeoutError("the broker did not answer in time")

    def close(self) -> None:
        """Closes the socket."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.close()
            self._socket = None

    def abandon(self) -> None:
        """Closes the descriptor without a TLS shutdown: the connection is the parent process's."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                os.close(self._socket.detach())
            self._socket = None


def _with_token(login: Login | None) -> Login | None:
    """The login with a new token, if its mechanism wants one; AuthenticationFailed without one."""
    if login is None or login.tokens is None:
        return login
    token = login.tokens.get()
    return replace(login, password=token.text, extensions=token.extensions)


class NotConnectedError(OSError):
    """No address of the endpoint accepted a connection; the message says why."""


def _dial(endpoint: Endpoint, end_ms: int, clock: MonotonicClock) -> socket.socket:
    """Connects to the first address of a host that accepts.

    Each address gets its share of the time: one that never answers leaves some for the next.
    """
    limit_ms = end_ms - clock.now_ms()
    try:
        found = socket.getaddrinfo(*endpoint, type=socket.SOCK_STREAM)
    except OSError as problem:
        raise NotConnectedError(_reason(problem)) from problem
    except UnicodeError as problem:  # For instance for an empty part: a..b
        raise NotConnectedError("this is not the name of a host") from problem
    failure: OSError | None = None
    for number, (family, kind, protocol, _, address) in enumerate(found):
        connection = socket.socket(family, kind, protocol)
        try:
            connection.settimeout(_seconds_until(end_ms, clock) / (len(found) - number))
            connection.connect(address)
            return connection
        except OSError as problem:
            connection.close()
            failure = problem
    if isinstance(failure, TimeoutError):
        raise NotConnectedError(f"no connection within {limit_ms} ms") from failure
    raise NotConnectedError("no address" if failure is None else _reason(failure)) from failure


def _seconds_until(end_ms: int, clock: MonotonicClock) -> float:
    """Never 0, which would make a socket non-blocking."""
    return max(1, end_ms - clock.now_ms()) / 1000


class Network:
    """All links of one client; the driver of its procedures."""

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
        """Sends a request. Connection errors become answers; errors that no retry can fix raise."""
        self._notice_fork()
        self._next_ticket += 1
        ticket = self._next_ticket
        end_ms = self._clock.now_ms() + send.timeout_ms
        try:
            link = self._link(send.endpoint, _setup_timeout_ms(send, self._options))
        except ssl.SSLCertVerificationError as problem:
            raise AuthenticationFailed(_certificate_advice(send.endpoint, problem)) from problem
        except (OSError, WireError) as problem:
            if isinstance(problem, ssl.SSLError) and not isinstance(problem, _PASSING_TLS_TROUBLE):
                raise AuthenticationFailed(_tls_advice(send.endpoint, problem)) from problem
            connected = not isinstance(problem, NotConnectedError)
            self._answers[ticket] = Lost(_reason(problem), sent=False, connected=connected)
            return ticket
        correlation_id, chunks = link.conversation.send(send.api, send.request, send.at_most)
        self._remember(ticket, link, correlation_id, end_ms)
        self._write(link, chunks, end_ms)
        return ticket

    def wait(self, tickets: Collection[int], timeout_ms: int) -> Mapping[int, Answer]:
        """Waits for at least one answer; returns nothing only after the timeout."""
        end_ms = self._clock.now_ms() + timeout_ms
        self._poll(0)
        while not (found := [ticket for ticket in tickets if ticket in self._answers]):
            left_ms = end_ms - self._clock.now_ms()
            if left_ms <= 0:
                return {}
            assert any(ticket in self._tickets for ticket in tickets), (
                "these tickets will never be answered"
            )
            self._poll(left_ms)
        return {ticket: self._answers.pop(ticket) for ticket in found}

    def pause(self, pause_ms: int) -> None:
        """Sleeps."""
        time.sleep(pause_ms / 1000)

    # For the shell.

    def forget(self, tickets: Collection[int]) -> None:
        """Drops these tickets; their answers are discarded."""
        for ticket in tickets:
            self._answers.pop(ticket, None)
            where = self._tickets.pop(ticket, None)
            if where is not None:
                self._owners.pop((id(where[0]), where[1]), None)

    def close(self) -> None:
        """Closes all links."""
        self._notice_fork()
        for link in list(self._links.values()):
            self._drop(link, "the client was closed")
        self._answers.clear()

    # Links.

    def _link(self, endpoint: Endpoint, timeout_ms: int) -> Link:
        link = self._links.get(endpoint)
        if link is not None and not link.deadlines:
            # Brokers close idle connections. Detect that before sending.
            self._read(link)
            link = self._links.get(endpoint)
        if link is not None and not self._is_login_ending(link):
            return link
        if link is not None:
            self._retire(link)
        link = Link(endpoint, self._options, self._randomness)
        link.open(self._context, timeout_ms, self._clock)
        self._links[endpoint] = link
        return link

    def _is_login_ending(self, link: Link) -> bool:
        limit_ms = link.replace_after_ms
        return limit_ms is not None and self._clock.now_ms() >= limit_ms

    def _retire(self, link: Link) -> None:
        """Closes a link whose login expires soon, after its pending answers have arrived."""
        while link.deadlines and self._links.get(link.endpoint) is link:
            self._poll(self._options.request_timeout_ms)
        if self._links.get(link.endpoint) is link:
            self._drop(link, "the login has expired")

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
        """Closes a link and answers Lost for its unanswered requests."""
        link.close()
        if self._links.get(link.endpoint) is link:
            del self._links[link.endpoint]
        for correlation_id in list(link.deadlines):
            self._answer(link, correlation_id, Lost(reason, closed_by_broker=closed_by_broker))

    # Tickets.

    def _remember(self, ticket: int, link: Link, correlation_id: int, end_ms: int) -> None:
        link.deadlines[correlation_id] = end_ms
        self._tickets[ticket] = (link, correlation_id)
        self._owners[id(link), correlation_id] = ticket

    def _answer(self, link: Link, correlation_id: int, answer: Answer) -> None:
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
        """Reads what has arrived, and waits for at most `timeout_ms` if nothing has."""
        now_ms = self._clock.now_ms()
        busy = [link for link in self._links.values() if link.deadlines]
        if not busy:
            return
        nearest_ms = min(min(link.deadlines.values()) for link in busy)
        ready = [link for link in busy if link.has_decrypted()]
        if not ready:
            wait_ms = max(0, min(timeout_ms, nearest_ms - now_ms))
            # Without a wait, reading from an empty socket costs less than a select.
            ready = _readable(busy, wait_ms) if wait_ms else busy
        for link in ready:
            self._read(link)
        # After reading: an answer that arrived in time counts, even if the caller was busy then.
        self._expire(self._clock.now_ms())

    def _read(self, link: Link) -> None:
        try:
            for frame in link.receive():
                chunks, answered = link.conversation.receive(frame)
                assert not chunks, "an open conversation sends nothing by itself"
                assert answered is not None
                self._answer(link, *answered)
        except (OSError, WireError) as problem:
            self._drop(
                link, _reason(problem), closed_by_broker=isinstance(problem, ConnectionError)
            )

    def _expire(self, now_ms: int) -> None:
        for link in list(self._links.values()):
            if link.deadlines and min(link.deadlines.values()) <= now_ms:
                self._drop(link, "no answer within the request timeout")


def _setup_timeout_ms(send: Send, options: ClientOptions) -> int:
    limit_ms = send.setup_timeout_ms
    if limit_ms is None:
        limit_ms = options.connection_setup_timeout_ms
    return min(limit_ms, send.timeout_ms)


def _readable(links: list[Link], timeout_ms: int) -> list[Link]:
    with _Selector() as selector:
        for link in links:
            selector.register(link, selectors.EVENT_READ, link)
        return [key.data for key, _ in selector.select(timeout_ms / 1000)]


def _reason(problem: Exception) -> str:
    if isinstance(problem, TimeoutError):
        return str(problem) or "timed out while connecting"
    if isinstance(problem, OSError) and problem.strerror:
        return problem.strerror
    return str(problem) or type(problem).__name__


def _advice(phase: Phase, problem: Exception) -> str:
    """What to do about a connection that ended before it was open."""
    if phase is Phase.LOGIN:
        return f"no answer to the login: {_reason(problem)}; the broker's log may say why"
    return (
        f"no answer to ApiVersions: {_reason(problem)}; if this persists, check that this port "
        "uses security.protocol"
    )


def _certificate_advice(endpoint: Endpoint, problem: ssl.SSLCertVerificationError) -> str:
    if problem.verify_code == _CERTIFICATE_EXPIRED:
        return (
            f"the certificate of {endpoint} has expired, or that of its authority: whoever runs "
            "the broker must renew it, unless the clock of this machine is wrong"
        )
    return (
        f"the certificate of {endpoint} is not trusted: {problem.verify_message}; set "
        "ssl.ca.location to the PEM file of the authority that signed it, or correct the host name"
    )


def _tls_advice(endpoint: Endpoint, problem: ssl.SSLError) -> str:
    return (
        f"TLS with {endpoint} failed: {problem.reason or problem}; check that this port uses TLS "
        "(security.protocol) and which client certificate it requires"
    )
