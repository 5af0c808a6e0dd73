"""Requests between the brokers of one cluster: verifications of first writes, and markers.

Each broker has a link to each of the others. Both ends of a link send requests and answer those of
the other (see Layout). A request is about one transaction, and begins with an offset: how
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

Layout
------
    VERIFY   request  int64 producer id, int16 epoch, int8 add, string transactional id, partitions
    MARKER   request  int64 producer id, int16 epoch, int8 commit, int32 coordinator epoch,
                      int8 transaction version, partitions
    REPLY             int32 number of the request, int16 error for each partition

    request           int64 offset of the metadata log that the sender has applied, int32 number
    partitions        to the end of the message: int32 index, string topic
    string            int32 length, UTF-8

These are Kafka's AddPartitionsToTxn and WriteTxnMarkers for one transaction. A transaction takes
two of them with their replies for each remote leader, so what they cost counts: Kafka's layout of
the two takes five times as long to write and read. Both ends of a link are the same release.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

from fencepost.base.errors import ErrorCode
from fencepost.base.failures import WireError
from fencepost.base.ids import TopicPartition
from fencepost.broker.peers import Answer, Done, FirstWrite
from fencepost.broker.peers import Peers as NoPeers
from fencepost.broker.transactions.markers import EndMarker
from fencepost.cluster.link import Link, OnMessage

VERIFY: Final = 1
MARKER: Final = 2
REPLY: Final = 3

_REQUEST: Final = struct.Struct(">qi")
_VERIFY: Final = struct.Struct(">qiqh?i")
_MARKER: Final = struct.Struct(">qiqh?ib")
_PARTITION: Final = struct.Struct(">ii")
_NUMBER: Final = struct.Struct(">i")
_NUMBER_AND_ERROR: Final = struct.Struct(">ih")
_ERROR: Final = struct.Struct(">h")
_CODES: Final[dict[int, ErrorCode]] = {int(code): code for code in ErrorCode}

_MAX_NUMBER: Final = 0x7FFFFFFF
"""Numbers of requests are int32, and begin again after the largest."""


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


class Peers(NoPeers):
    """The links of one broker to the others."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        requests: Callable[[], Requests],
        applied_offset: Callable[[], int],
    ) -> None:
        """`requests` returns what serves peers, which is made after this.

        `applied_offset` returns how much of the metadata log this broker has applied.
        """
        super().__init__()
        self.is_cluster = True
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
        """Closes the link to a broker that is fenced; nothing from it is served after that.

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
        self._link.post(VERIFY, _encode_verify(self._applied_offset(), number, write))

    def write_marker(self, marker: EndMarker, names: Sequence[TopicPartition], done: Done) -> None:
        number = self._next_number(done)
        self._link.post(MARKER, _encode_marker(self._applied_offset(), number, marker, names))

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
            number, errors = _decode_reply(body)
            self._unanswered.pop(number)(errors)
        elif kind in (VERIFY, MARKER):
            self._on_request(kind, body)
        else:
            raise WireError(f"a peer sent a message of kind {kind}")

    def _on_request(self, kind: int, body: bytes) -> None:
        offset, number = _decode_request(body)
        if self._waiting or offset > self._applied_offset():
            self._waiting.append((offset, kind, body))
        else:
            self._serve(kind, number, body)

    def serve_waiting(self, applied: int) -> None:
        while self._waiting and self._waiting[0][0] <= applied:
            _, kind, body = self._waiting.popleft()
            self._serve(kind, _decode_request(body)[1], body)

    def _serve(self, kind: int, number: int, body: bytes) -> None:
        answer = partial(self._answer, number)
        if kind == VERIFY:
            self._requests.verify(number, _decode_verify(body), answer)
            return
        marker, names = _decode_marker(body)
        stop = self._requests.write_marker(number, marker, names, answer)
        if stop is None:
            return
        if self._is_open:
            self._serving[number] = stop
        else:
            stop()

    def _answer(self, number: int, errors: list[ErrorCode]) -> None:
        # Once the link is closed there is no one to answer.
        if self._is_open:
            self._serving.pop(number, None)
            self._link.post(REPLY, _encode_reply(number, errors))

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


# -- bytes
# ------------------------------------------------------------------------


def _encode_verify(offset: int, number: int, write: FirstWrite) -> bytes:
    """The body of VERIFY."""
    name = write.transactional_id.encode()
    head = _VERIFY.pack(
        offset, number, write.producer_id, write.producer_epoch, write.add, len(name)
    )
    return _with_partitions(head + name, write.names)


def _encode_marker(
    offset: int, number: int, marker: EndMarker, names: Sequence[TopicPartition]
) -> bytes:
    """The body of MARKER."""
    head = _MARKER.pack(
        offset,
        number,
        marker.producer_id,
        marker.producer_epoch,
        marker.commit,
        marker.coordinator_epoch,
        marker.transaction_version,
    )
    return _with_partitions(head, names)


def _encode_reply(number: int, errors: Sequence[ErrorCode]) -> bytes:
    """The body of REPLY."""
    if len(errors) == 1:  # Nearly always.
        return _NUMBER_AND_ERROR.pack(number, errors[0])
    return struct.pack(f">i{len(errors)}h", number, *errors)


def _decode_request(body: bytes) -> tuple[int, int]:
    """The offset and the number of a request."""
    offset, number = _REQUEST.unpack_from(body)
    return offset, number


def _decode_verify(body: bytes) -> FirstWrite:
    """The rest of VERIFY."""
    _, _, producer_id, epoch, add, size = _VERIFY.unpack_from(body)
    end = _VERIFY.size + size
    name = body[_VERIFY.size : end].decode()
    return FirstWrite(_partitions(body, end), name, producer_id, epoch, add)


def _decode_marker(body: bytes) -> tuple[EndMarker, list[TopicPartition]]:
    """The rest of MARKER."""
    _, _, producer_id, epoch, commit, coordinator_epoch, version = _MARKER.unpack_from(body)
    marker = EndMarker(producer_id, epoch, commit, coordinator_epoch, version)
    return marker, _partitions(body, _MARKER.size)


def _decode_reply(body: bytes) -> tuple[int, list[ErrorCode]]:
    """The number of the request, and its errors."""
    if len(body) == _NUMBER_AND_ERROR.size:
        number, error = _NUMBER_AND_ERROR.unpack(body)
        return number, [_CODES[error]]
    (number,) = _NUMBER.unpack_from(body)
    return number, [_CODES[code] for (code,) in _ERROR.iter_unpack(body[_NUMBER.size :])]


def _with_partitions(head: bytes, names: Sequence[TopicPartition]) -> bytes:
    parts = [head]
    for topic, index in names:
        name = topic.encode()
        parts.append(_PARTITION.pack(index, len(name)))
        parts.append(name)
    return b"".join(parts)


def _partitions(body: bytes, position: int) -> list[TopicPartition]:
    names = []
    while position < len(body):
        index, size = _PARTITION.unpack_from(body, position)
        position += _PARTITION.size + size
        names.append(TopicPartition(body[position - size : position].decode(), index))
    return names
