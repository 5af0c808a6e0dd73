"""Requests between the brokers of one cluster: verifications of first writes, and markers.

Each broker has a link to each of the others. Both ends of a link send requests and answer those of
the other (`peer_messages.py`). A request is about one transaction, and begins with an offset: how
much of the metadata log its sender has applied.

A request is sent once and never repeated by this module. It is answered with one error per
partition, or with None when the link ends, which happens only when the peer's process is dead.
Whether the request had an effect is then in the peer's log, and the next leader knows. Requests do
not wait for each other: each is served when it arrives and answered when it is ready, so two
brokers can ask each other at the same time. Requests and replies of one turn of the loop share a
write on the link (`Link.post`); that is all that they share.

A request is served only when this broker has applied as much of the metadata log as its sender had.
Until then it waits, and so do the requests behind it on the same link, whose sender knew at
least as much. A broker that applies the record that fences another one calls `disconnect` first and
`applied` second. So a request that follows from the death of a broker, such as a marker of the next
coordinator, is never served while requests of the dead broker could still come after it.

When a link is closed, nothing that came on it has further effects: unread and waiting requests are
dropped, and a marker that is being written over several turns of the loop is stopped.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from fencepost.base.failures import WireError
from fencepost.cluster.link import Link
from fencepost.cluster.peer_messages import (
    MARKER,
    REPLY,
    VERIFY,
    decode_marker,
    decode_reply,
    decode_request,
    decode_verify,
    encode_marker,
    encode_reply,
    encode_verify,
)

if TYPE_CHECKING:
    from fencepost.base.errors import ErrorCode
    from fencepost.base.ids import TopicPartition
    from fencepost.broker.peers.others import Done, FirstWrite
    from fencepost.broker.transactions.markers import EndMarker
    from fencepost.cluster.link import OnMessage

Answer = Callable[["list[ErrorCode]"], None]


class Requests(Protocol):
    """Serves the requests of a peer, as `PeerRequests` does."""

    def verify(self, number: int, write: FirstWrite, answer: Answer) -> None: ...

    def write_marker(
        self, number: int, marker: EndMarker, names: Sequence[TopicPartition], answer: Answer
    ) -> Callable[[], None] | None:
        """Returns what stops it if its link is closed before the answer; None if answered."""


class Messages(Protocol):
    """One end of a link, as `Link` is."""

    def post(self, kind: int, body: bytes) -> None: ...

    def close(self) -> None: ...


OpenLink = Callable[["OnMessage", Callable[[], None]], Messages]
"""Opens one end of a link, from what takes its messages and what is called at its end."""


class Peers:
    """The links of one broker to the others."""

    is_cluster: Final = True

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        requests: Callable[[], Requests],
        applied_offset: Callable[[], int],
    ) -> None:
        """`requests` returns what serves peers, which is made after this.

        `applied_offset` returns how much of the metadata log this broker has applied.
        """
        self._loop: Final = loop
        self._requests: Final = requests
        self._applied_offset: Final = applied_offset
        self._links: Final[dict[int, _PeerLink]] = {}

    def connect(self, broker_id: int, end: socket.socket) -> None:
        """Adds a link to a peer, in place of the one to its dead predecessor."""
        self.attach(
            broker_id,
            lambda on_message, on_end: Link(
                self._loop, end, on_message=on_message, on_end=on_end, with_files=False
            ),
        )

    def attach(self, broker_id: int, open_link: OpenLink) -> None:
        """The same with any kind of link."""
        # The end of the old link may not have been read yet; what it holds is older than the peer.
        self.disconnect(broker_id)
        self._links[broker_id] = _PeerLink(
            open_link, self._requests(), self._applied_offset, partial(self._ended, broker_id)
        )

    def disconnect(self, broker_id: int) -> None:
        """Closes the link to a broker that is fenced; nothing of it is served any more.

        Requests to it get None: a broker is fenced after its process is reaped.
        """
        link = self._links.pop(broker_id, None)
        if link is not None:
            link.end()

    def verify(self, broker_id: int, write: FirstWrite, done: Done) -> None:
        """See `broker.peers.Peers`."""
        link = self._links.get(broker_id)
        if link is None:
            done(None)
        else:
            link.verify(write, done)

    def write_marker(
        self, broker_id: int, marker: EndMarker, names: Sequence[TopicPartition], done: Done
    ) -> None:
        """See `broker.peers.Peers`."""
        link = self._links.get(broker_id)
        if link is None:
            done(None)
        else:
            link.write_marker(marker, names, done)

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
        requests: Requests,
        applied_offset: Callable[[], int],
        ended: Callable[[_PeerLink], None],
    ) -> None:
        self._requests: Final = requests
        self._applied_offset: Final = applied_offset
        self._ended: Final = ended
        self._last_number = 0
        self._is_open = True
        self._unanswered: dict[int, Done] = {}
        self._waiting: deque[tuple[int, int, bytes]] = deque()
        """Requests of the peer that need more of the metadata log: the offset, kind and body."""
        self._serving: dict[int, Callable[[], None]] = {}
        """What stops each marker of the peer that is not answered yet."""
        self._link: Final = open_link(self._on_message, self._on_end)

    def verify(self, write: FirstWrite, done: Done) -> None:
        number = self._next_number(done)
        self._link.post(VERIFY, encode_verify(self._applied_offset(), number, write))

    def write_marker(self, marker: EndMarker, names: Sequence[TopicPartition], done: Done) -> None:
        number = self._next_number(done)
        self._link.post(MARKER, encode_marker(self._applied_offset(), number, marker, names))

    def _next_number(self, done: Done) -> int:
        number = self._last_number = self._last_number + 1 & _MAX_NUMBER
        assert number not in self._unanswered, "two billion requests are not answered"
        self._unanswered[number] = done
        return number

    def end(self) -> None:
        self._link.close()
        self._on_end()

    # -- what the peer sends ----------------------------------------------------------------------

    def _on_message(self, kind: int, message: memoryview, files: list[int]) -> None:
        assert not files, "peers send no files"
        body = message.tobytes()
        if kind == REPLY:
            number, errors = decode_reply(body)
            self._unanswered.pop(number)(errors)
        elif kind in (VERIFY, MARKER):
            self._on_request(kind, body)
        else:
            raise WireError(f"a peer sent a message of kind {kind}")

    def _on_request(self, kind: int, body: bytes) -> None:
        offset, number = decode_request(body)
        if self._waiting or offset > self._applied_offset():
            self._waiting.append((offset, kind, body))
        else:
            self._serve(kind, number, body)

    def serve_waiting(self, applied: int) -> None:
        while self._waiting and self._waiting[0][0] <= applied:
            _, kind, body = self._waiting.popleft()
            self._serve(kind, decode_request(body)[1], body)

    def _serve(self, kind: int, number: int, body: bytes) -> None:
        answer = partial(self._answer, number)
        if kind == VERIFY:
            self._requests.verify(number, decode_verify(body), answer)
            return
        marker, names = decode_marker(body)
        stop = self._requests.write_marker(number, marker, names, answer)
        if stop is None:
            return
        if self._is_open:
            self._serving[number] = stop
        else:
            stop()

    def _answer(self, number: int, errors: list[ErrorCode]) -> None:
        # Once the link is closed there is nobody to answer.
        if self._is_open:
            self._serving.pop(number, None)
            self._link.post(REPLY, encode_reply(number, errors))

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
        for done in unanswered.values():
            done(None)


_MAX_NUMBER: Final = 0x7FFFFFFF
"""Numbers of requests are int32, and begin again after the largest."""
