"""A responder for HTTP on the broker's own loop: small, bounded, one request a connection.

It serves scrapers and health checks. It shares the loop with clients that matter more, so it takes
nothing that it does not need:

- a request has at most `MAX_REQUEST_BYTES` and `REQUEST_SECONDS`;
- GET and HEAD of fixed paths are served, and no body is read. With a handler of its own
  (`fencepost serve --test`), any method is, with a body of at most `MAX_BODY_BYTES`;
- a reply is closed after `REPLY_SECONDS`, whether it was read or not;
- there are at most `MAX_CONNECTIONS`; more are refused with 503;
- every reply ends its connection.

An answer comes from a coroutine, because a scrape takes several turns of the loop. It answers from
the loop itself: if the loop stands still, so do the health checks, and that is their meaning.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any, Final, NamedTuple, cast

log = logging.getLogger(__name__)

MAX_REQUEST_BYTES: Final = 8 * 1024
REQUEST_SECONDS: Final = 5.0
REPLY_SECONDS: Final = 10.0
MAX_BODY_BYTES: Final = 64 * 1024
MAX_CONNECTIONS: Final = 32
BACKLOG: Final = 32

PLAIN_TEXT: Final = "text/plain; charset=utf-8"
_END_OF_HEAD: Final = b"\r\n\r\n"
_LONGEST_LENGTH: Final = 18
"""Digits of a Content-Length."""


class Answer(NamedTuple):
    """What a path answers."""

    body: bytes
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = PLAIN_TEXT


class Request(NamedTuple):
    """What a handler gets."""

    method: str
    path: str
    """With its query."""
    headers: Mapping[str, str]
    """By names in lower case; of a header that occurs twice, the last one."""
    body: bytes


Paths = Mapping[str, Callable[[], Awaitable[Answer]]]
Handler = Callable[[Request], Awaitable[Answer]]
Refuse = Callable[[HTTPStatus, str], Answer]


class Responder:
    """The listening socket and its connections."""

    def __init__(
        self,
        paths: Paths,
        *,
        handler: Handler | None = None,
        refuse: Refuse | None = None,
        answer_seconds: float | None = None,
    ) -> None:
        """`handler` answers instead of `paths`; `answer_seconds` is how long that may take.

        `refuse` makes the answer to what is no request that can be served.
        """
        self.refuse: Final[Refuse] = refuse or _refusal
        self.paths: Final = paths
        self.handler: Final = handler
        self.answer_seconds: Final = answer_seconds
        self.connections: Final[set[_Connection]] = set()
        self._server: asyncio.AbstractServer | None = None

    async def listen(self, host: str, port: int) -> int:
        """Opens the port and returns it, a free one if it is 0; OSError if that fails."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Connection(self), host, port, backlog=BACKLOG
        )
        opened: Any = self._server  # `sockets` is a tuple in asyncio, and a list in uvloop.
        return int(opened.sockets[0].getsockname()[1])

    def descriptors(self) -> list[int]:
        """The file descriptors of all sockets."""
        opened: Any = self._server
        listening = [] if opened is None else [sock.fileno() for sock in opened.sockets]
        return listening + [connection.descriptor() for connection in list(self.connections)]

    async def close(self) -> None:
        """Closes the port and all connections."""
        if self._server is None:
            return
        self._server.close()
        for connection in list(self.connections):
            connection.abort()
        await self._server.wait_closed()
        self._server = None


class _Connection(asyncio.Protocol):
    """One connection: one request, one reply."""

    def __init__(self, responder: Responder) -> None:
        self._responder = responder
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._is_answered = False
        self._lingers = False
        self._deadline: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        connections = self._responder.connections
        connections.add(self)
        if len(connections) > MAX_CONNECTIONS:
            refuse = self._responder.refuse
            self._send("GET", refuse(HTTPStatus.SERVICE_UNAVAILABLE, "too many connections"))
        else:
            self._abort_after(REQUEST_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._responder.connections.discard(self)
        if self._deadline is not None:
            self._deadline.cancel()
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        if self._is_answered:
            return  # The rest of a request that is answered already.
        self._received += data
        head, end, body = bytes(self._received).partition(_END_OF_HEAD)
        if not end:
            if len(self._received) > MAX_REQUEST_BYTES:
                self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the request is too large")
            return
        if self._responder.handler is None:
            body = b""
        else:
            headers = _headers(head)
            length = headers.get("content-length", "0")
            if "transfer-encoding" in headers or not _is_length(length):
                self._refuse(HTTPStatus.LENGTH_REQUIRED, "a body needs a Content-Length")
                return
            if int(length) > MAX_BODY_BYTES:
                self._refuse(
                    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                    f"a body has at most {MAX_BODY_BYTES} bytes",
                )
                return
            if len(body) < int(length):
                return
            body = body[: int(length)]
        self._is_answered = True
        self._received.clear()
        if self._responder.answer_seconds is not None:
            self._abort_after(self._responder.answer_seconds)
        self._task = asyncio.get_running_loop().create_task(self._answer(head, body))

    def eof_received(self) -> bool:
        # A client may close its half and still read, unless it was answered in the middle.
        return self._is_answered and not self._lingers

    def descriptor(self) -> int:
        """The file descriptor of the socket; -1 once it is closed."""
        found = None if self._transport is None else self._transport.get_extra_info("socket")
        return -1 if found is None else int(found.fileno())

    def abort(self) -> None:
        """Closes the connection now."""
        if self._transport is not None:
            self._transport.abort()

    def _abort_after(self, seconds: float) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = asyncio.get_running_loop().call_later(seconds, self.abort)

    async def _answer(self, head: bytes, body: bytes) -> None:
        refuse = self._responder.refuse
        method, answer = "GET", refuse(HTTPStatus.BAD_REQUEST, "this is not HTTP")
        parsed = _parse(head)
        handler = self._responder.handler
        if parsed is not None:
            method, path = parsed
            if handler is None:
                answer = await self._find(method, path)
            else:
                answer = await handler(Request(method, path, _headers(head), body))
        self._send(method, answer)

    def _refuse(self, status: HTTPStatus, reason: str) -> None:
        """Refuses a request of which more may come: closing now would lose the reply on its way."""
        self._lingers = True
        self._received.clear()
        self._send("GET", self._responder.refuse(status, reason))

    async def _find(self, method: str, path: str) -> Answer:
        if method not in ("GET", "HEAD"):
            return _refusal(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD are served")
        find = self._responder.paths.get(path.partition("?")[0])
        if find is None:
            known = ", ".join(self._responder.paths)
            return _refusal(HTTPStatus.NOT_FOUND, f"there is only {known}")
        try:
            return await find()
        except Exception:
            log.exception("%s failed", path)
            return _refusal(HTTPStatus.INTERNAL_SERVER_ERROR, "see the log of the broker")

    def _send(self, method: str, answer: Answer) -> None:
        self._is_answered = True
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        allow = "Allow: GET, HEAD\r\n" if answer.status is HTTPStatus.METHOD_NOT_ALLOWED else ""
        head = (
            f"HTTP/1.1 {answer.status.value} {answer.status.phrase}\r\n"
            f"Content-Type: {answer.content_type}\r\n"
            f"Content-Length: {len(answer.body)}\r\n"
            f"{allow}Connection: close\r\n\r\n"
        ).encode()
        transport.write(head if method == "HEAD" else head + answer.body)
        if not self._lingers:
            transport.close()  # Once the client has read all of it, or at the deadline.
        self._abort_after(REPLY_SECONDS)


def _parse(head: bytes) -> tuple[str, str] | None:
    """The method and the path of a request; None if it is not one."""
    words = head.split(b"\r\n", 1)[0].split(b" ")
    if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
        return None
    try:
        return words[0].decode("ascii"), words[1].decode("ascii")
    except UnicodeDecodeError:
        return None


def _headers(head: bytes) -> dict[str, str]:
    lines = head.decode("latin-1").split("\r\n")[1:]
    pairs = (line.partition(":") for line in lines)
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


def _is_length(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _LONGEST_LENGTH


def _refusal(status: HTTPStatus, reason: str) -> Answer:
    return Answer(f"{reason}\n".encode(), status)
