"""Requests between the brokers of one cluster: markers, and questions about transactions.

The messages are Kafka's own (WriteTxnMarkers, AddPartitionsToTxn), with their headers, on a link to
each of the other brokers. Both ends of a link send requests and answer those of the other.

A request is sent once and never repeated by this module. It is answered with a form, or with None
when the link ends, which happens only when the peer's process is dead. Whether the request had an
effect is then in the peer's log, and the next leader knows. Requests do not wait for each other:
each is served when it arrives and answered when it is ready, so two brokers can ask each other at
the same time.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from fencepost.base.failures import WireError
from fencepost.cluster.link import Link
from fencepost.wire.apis import ApiKey
from fencepost.wire.codec import (
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    read_correlation_id,
    read_request_header,
)

REQUEST: Final = 1
REPLY: Final = 2

CLIENT_ID: Final = "fencepost-peer"
_SIZE_BYTES: Final = 4

Done = Callable[[Any], None]
"""Called with the reply, or with None if the peer's process has ended."""

Serve = Callable[[ApiKey, int, Any, Done], None]
"""Serves a request of a peer: the API, its version, the form, and where the reply goes."""


class Peers:
    """The links of one broker to the others."""

    def __init__(self, loop: asyncio.AbstractEventLoop, serve: Serve) -> None:
        self._loop: Final = loop
        self._serve: Final = serve
        self._links: Final[dict[int, _PeerLink]] = {}

    def connect(self, broker_id: int, end: socket.socket) -> None:
        """Adds a link to a peer, in place of the one to its dead predecessor."""
        before = self._links.pop(broker_id, None)
        if before is not None:
            # Its end may not have been read yet; what it still holds is older than the new process.
            before.end()
        self._links[broker_id] = _PeerLink(
            self._loop, end, self._serve, partial(self._ended, broker_id)
        )

    def request(self, broker_id: int, api: ApiKey, version: int, form: Any, done: Done) -> None:
        """Sends a request; calls `done` once, at once if there is no such peer."""
        link = self._links.get(broker_id)
        if link is None:
            done(None)
        else:
            link.request(api, version, form, done)

    def connected(self) -> list[int]:
        """The peers that have a link, by id."""
        return sorted(self._links)

    def close(self) -> None:
        """Ends all links; requests that are not answered yet get None."""
        links = list(self._links.values())
        self._links.clear()
        for each in links:
            each.end()

    def _ended(self, broker_id: int, ended: _PeerLink) -> None:
        if self._links.get(broker_id) is ended:
            del self._links[broker_id]


class _PeerLink:
    """One link, and the requests that wait for their replies."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        end: socket.socket,
        serve: Serve,
        ended: Callable[[_PeerLink], None],
    ) -> None:
        self._serve: Final = serve
        self._ended: Final = ended
        self._ids: Final = itertools.count(1)
        self._waiting: dict[int, tuple[ApiKey, int, Done]] = {}
        self._link: Final = Link(loop, end, on_message=self._on_message, on_end=self._on_end)

    def request(self, api: ApiKey, version: int, form: Any, done: Done) -> None:
        correlation_id = next(self._ids)
        self._waiting[correlation_id] = api, version, done
        self._link.send(REQUEST, encode_request(api, version, correlation_id, CLIENT_ID, form))

    def end(self) -> None:
        self._link.close()
        self._on_end()

    def _on_message(self, kind: int, body: memoryview, files: list[int]) -> None:
        assert not files, "peers send no files"
        frame = body[_SIZE_BYTES:]
        if kind == REQUEST:
            self._on_request(frame)
        elif kind == REPLY:
            self._on_reply(frame)
        else:
            raise WireError(f"a peer sent a message of kind {kind}")

    def _on_request(self, frame: memoryview) -> None:
        header = read_request_header(frame)
        form = decode_request(header.api, header.api_version, frame, header.body_offset)
        answer = partial(self._answer, header.api.key, header.api_version, header.correlation_id)
        self._serve(header.api.key, header.api_version, form, answer)

    def _answer(self, api: ApiKey, version: int, correlation_id: int, reply: Any) -> None:
        # The peer may have ended meanwhile; then the answer is dropped.
        self._link.send(REPLY, encode_response(api, version, correlation_id, reply))

    def _on_reply(self, frame: memoryview) -> None:
        api, version, done = self._waiting.pop(read_correlation_id(frame))
        done(decode_response(api, version, frame)[1])

    def _on_end(self) -> None:
        self._ended(self)
        waiting, self._waiting = self._waiting, {}
        for _, _, done in waiting.values():
            done(None)
