"""Requests between the brokers of one cluster: markers, and questions about transactions.

The messages are Kafka's own (WriteTxnMarkers, AddPartitionsToTxn), with their headers, on a link to
each of the other brokers. Both ends of a link send requests and answer those of the other. A
request begins with an int64: the offset of the metadata log that its sender has applied.

A request is sent once and never repeated by this module. It is answered with a form, or with None
when the link ends, which happens only when the peer's process is dead. Whether the request had an
effect is then in the peer's log, and the next leader knows. Requests do not wait for each other:
each is served when it arrives and answered when it is ready, so two brokers can ask each other at
the same time.

A request is served only when this broker has applied as much of the metadata log as its sender had.
Until then it waits, and so do the requests behind it on the same link, whose sender knew at
least as much. A broker that applies the record that fences another one calls `disconnect` first and
`applied` second. So a request that follows from the death of a broker, such as a marker of the next
coordinator, is never served while requests of the dead broker could still come after it.

When a link is closed, nothing that came on it has further effects: unread and waiting requests are
dropped, and a request that is being served over several turns of the loop is stopped.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from fencepost.base.failures import WireError
from fencepost.broker.peers import CLIENT_ID
from fencepost.cluster.link import Link
from fencepost.wire.codec import (
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    read_correlation_id,
    read_request_header,
)

if TYPE_CHECKING:
    from fencepost.base.seams import Buffer
    from fencepost.broker.peers import Done
    from fencepost.cluster.link import OnMessage
    from fencepost.wire.apis import ApiKey

REQUEST: Final = 1
REPLY: Final = 2

_OFFSET_BYTES: Final = 8
_SIZE_BYTES: Final = 4

Serve = Callable[["ApiKey", int, Any, "Done"], Callable[[], None]]
"""Serves a request of a peer: the API, its version, the form, and where the reply goes. Returns
what stops the request if its link is closed before the reply."""


class Messages(Protocol):
    """One end of a link, as `Link` is."""

    def send(self, kind: int, body: Sequence[Buffer]) -> None: ...

    def close(self) -> None: ...


OpenLink = Callable[["OnMessage", Callable[[], None]], Messages]
"""Opens one end of a link, from what takes its messages and what is called at its end."""


class Peers:
    """The links of one broker to the others."""

    is_cluster: Final = True

    def __init__(
        self, loop: asyncio.AbstractEventLoop, serve: Serve, applied_offset: Callable[[], int]
    ) -> None:
        """`applied_offset` returns how much of the metadata log this broker has applied."""
        self._loop: Final = loop
        self._serve: Final = serve
        self._applied_offset: Final = applied_offset
        self._links: Final[dict[int, _PeerLink]] = {}

    def connect(self, broker_id: int, end: socket.socket) -> None:
        """Adds a link to a peer, in place of the one to its dead predecessor."""
        self.attach(
            broker_id,
            lambda on_message, on_end: Link(self._loop, end, on_message=on_message, on_end=on_end),
        )

    def attach(self, broker_id: int, open_link: OpenLink) -> None:
        """The same with any kind of link."""
        # The end of the old link may not have been read yet; what it holds is older than the peer.
        self.disconnect(broker_id)
        self._links[broker_id] = _PeerLink(
            open_link, self._serve, self._applied_offset, partial(self._ended, broker_id)
        )

    def disconnect(self, broker_id: int) -> None:
        """Closes the link to a broker that is fenced; nothing of it is served any more.

        Requests to it get None: a broker is fenced after its process is reaped.
        """
        link = self._links.pop(broker_id, None)
        if link is not None:
            link.end()

    def request(self, broker_id: int, api: ApiKey, version: int, form: Any, done: Done) -> None:
        """Sends a request; calls `done` once, at once if there is no such peer."""
        link = self._links.get(broker_id)
        if link is None:
            done(None)
        else:
            link.request(api, version, form, done)

    def applied(self, offset: int) -> None:
        """Serves what has waited until this broker applied the metadata log up to `offset`."""
        for link in list(self._links.values()):
            link.serve_waiting(offset)

    def connected(self) -> list[int]:
        """The peers that have a link, by id."""
        return sorted(self._links)

    def close(self) -> None:
        """Ends all links; requests that are not answered yet get None."""
        for broker_id in list(self._links):
            self.disconnect(broker_id)

    def _ended(self, broker_id: int, ended: _PeerLink) -> None:
        if self._links.get(broker_id) is ended:
            del self._links[broker_id]


class _PeerLink:
    """One link: the requests that wait for replies, and those of the peer."""

    def __init__(
        self,
        open_link: OpenLink,
        serve: Serve,
        applied_offset: Callable[[], int],
        ended: Callable[[_PeerLink], None],
    ) -> None:
        self._serve: Final = serve
        self._applied_offset: Final = applied_offset
        self._ended: Final = ended
        self._ids: Final = itertools.count(1)
        self._is_open = True
        self._unanswered: dict[int, tuple[ApiKey, int, Done]] = {}
        self._waiting: deque[tuple[int, memoryview]] = deque()
        """Requests of the peer that need more of the metadata log, each with its offset."""
        self._serving: dict[int, Callable[[], None]] = {}
        """What stops each request of the peer that is not answered yet."""
        self._link: Final = open_link(self._on_message, self._on_end)

    def request(self, api: ApiKey, version: int, form: Any, done: Done) -> None:
        correlation_id = next(self._ids)
        self._unanswered[correlation_id] = api, version, done
        offset = self._applied_offset().to_bytes(_OFFSET_BYTES, "big", signed=True)
        frame = encode_request(api, version, correlation_id, CLIENT_ID, form)
        self._link.send(REQUEST, (offset, *frame))

    def end(self) -> None:
        self._link.close()
        self._on_end()

    # -- what the peer sends ----------------------------------------------------------------------

    def _on_message(self, kind: int, body: memoryview, files: list[int]) -> None:
        assert not files, "peers send no files"
        if kind == REQUEST:
            offset = int.from_bytes(body[:_OFFSET_BYTES], "big", signed=True)
            self._on_request(offset, body[_OFFSET_BYTES + _SIZE_BYTES :])
        elif kind == REPLY:
            self._on_reply(body[_SIZE_BYTES:])
        else:
            raise WireError(f"a peer sent a message of kind {kind}")

    def _on_request(self, offset: int, frame: memoryview) -> None:
        if self._waiting or offset > self._applied_offset():
            self._waiting.append((offset, frame))
        else:
            self._serve_one(frame)

    def serve_waiting(self, applied: int) -> None:
        while self._waiting and self._waiting[0][0] <= applied:
            self._serve_one(self._waiting.popleft()[1])

    def _serve_one(self, frame: memoryview) -> None:
        header = read_request_header(frame)
        api, version, correlation_id = header.api.key, header.api_version, header.correlation_id
        form = decode_request(header.api, version, frame, header.body_offset)
        self._serving[correlation_id] = _not_begun
        stop = self._serve(api, version, form, partial(self._answer, api, version, correlation_id))
        if not self._is_open:
            stop()
        elif correlation_id in self._serving:
            self._serving[correlation_id] = stop

    def _answer(self, api: ApiKey, version: int, correlation_id: int, reply: Any) -> None:
        # Once the link is closed there is nobody to answer.
        if self._serving.pop(correlation_id, None) is not None:
            self._link.send(REPLY, encode_response(api, version, correlation_id, reply))

    def _on_reply(self, frame: memoryview) -> None:
        api, version, done = self._unanswered.pop(read_correlation_id(frame))
        done(decode_response(api, version, frame)[1])

    def _on_end(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        self._ended(self)
        self._waiting.clear()
        serving, self._serving = self._serving, {}
        for stop in serving.values():
            stop()
        unanswered, self._unanswered = self._unanswered, {}
        for _, _, done in unanswered.values():
            done(None)


def _not_begun() -> None:
    """The request is being served for the first time; there is nothing to stop yet."""
