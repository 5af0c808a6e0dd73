"""One client's connection: frames in, replies out, in order, with bounded memory.

A connection hands its frames to the dispatcher in the order of arrival. A reply may be ready at
once or come later; a slot per unanswered request keeps the order.

Three things stop a connection from reading, and so limit the memory that it can take:

- too many requests are unanswered (`MAX_REQUESTS_IN_FLIGHT`), or one of them holds back its
  followers because it has not taken effect yet, and there are followers;
- the replies that wait for their turn are large, or may become large: requests behind one long poll
  are served, requests behind several large ones are not;
- the client has left too many bytes of its replies unread (`MAX_UNSENT_BYTES`).

Frames that were read before the stop wait in a queue, which holds at most what one turn reads.
Bytes that are not the protocol close the connection, with one line in the log.

`server.py` says how connections take turns, and how they share memory.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

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
from fencepost.broker.network.presence import Presence
from fencepost.wire.apis import ApiKey
from fencepost.wire.framing import INBOX_BYTES, FrameBuffer, LargeBuffers

if TYPE_CHECKING:
    from fencepost.broker.dispatch import Dispatcher
    from fencepost.broker.network.server import Server
    from fencepost.broker.security.sessions import Session

log = logging.getLogger(__name__)

Chunks = list[Buffer]

SMALL_REPLY_BYTES: Final = 1024
"""Replies up to this size to requests that arrived in one read go out in one write."""

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
"""Requests that wait while unread replies take up all of their memory. Fetches return no records
then."""


class Slot:
    """The place of one reply among the replies of its connection."""

    __slots__ = ("abandon", "chunks", "owed_bytes", "taken_bytes")

    def __init__(self, owed_bytes: int) -> None:
        self.chunks: Chunks | None = None
        self.abandon: Callable[[], None] | None = None
        """Called when the client has left and the reply is no longer needed."""
        self.owed_bytes = owed_bytes
        """The size of the reply, or its largest possible size while it is not ready."""
        self.taken_bytes = 0
        """Bytes taken from the budget for replies while the reply waits for its turn."""


class Connection(asyncio.BufferedProtocol):
    """One client's connection."""

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
        self._max_request_bytes = max_request_bytes
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
        """Whether the rest of a large request waits for memory."""
        self.client_host = "?"
        self.client_name = "?"
        self.client_software = ""
        """The name that the client sent with ApiVersions, v3 and up."""
        self.listener = "PLAINTEXT"
        """The name of the listener that accepted the connection."""
        self.listener_protocol = "PLAINTEXT"
        """The listener's security protocol: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."""
        self.principal = "User:ANONYMOUS"
        """Who the client is, in Kafka's form; what TLS and SASL find out is noted here."""
        self.session: Session | None = None
        """Decides what is served, on a listener with SASL."""
        self.presence = Presence()
        self.ciphertext_bytes = 0
        """Unread bytes that its TLS filter has taken from the budget for replies."""
        self.last_active = 0.0

    # -- called by asyncio
    # -----------------------------------------------------------------------------------

    def descriptor(self) -> int:
        """The file descriptor of the socket; -1 once it is closed."""
        found = None if self._transport is None else self._transport.get_extra_info("socket")
        return -1 if found is None else int(found.fileno())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Registers the new connection."""
        # uvloop's transports have the methods of asyncio.Transport without being one.
        self._transport = transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(high=MAX_UNSENT_BYTES)
        peer = transport.get_extra_info("peername")
        if peer:
            self.client_host = str(peer[0])
            self.client_name = f"{peer[0]}:{peer[1]}"
        self._server.joined(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Abandons unanswered requests and gives back all memory."""
        self._transport = None
        self._queue.clear()
        for slot in self._slots:
            abandon, slot.abandon = slot.abandon, None  # The reply refers to its slot, too.
            if abandon is not None:
                abandon()
        self._give_all_back()
        self._slots.clear()
        if self.session is not None:
            self.session.end()  # It refers to this connection, too.
        self._server.left(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Returns the buffer for the next read."""
        return self._frames.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        """Queues the complete frames of a read for the dispatcher."""
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
        if self._frames.broken is not None:  # A bad frame follows the good ones.
            self.work_alone()
            self.close(str(self._frames.broken))

    def eof_received(self) -> bool:
        """Closes the connection."""
        # The client sends nothing more: close, and drop replies that it does not read.
        if self._unread:
            self.abort()
        return False

    def pause_writing(self) -> None:
        """Stops reading: the client does not read its replies."""
        self._unread = True
        self._set_reading()

    def resume_writing(self) -> None:
        """Continues: the client has read its replies."""
        self._unread = False
        self._server.replies.give(self._unread_bytes)
        self._unread_bytes = 0
        self.work_alone()

    # -- called by the server, the dispatcher and handlers
    # -----------------------------------------------------------------------------------------

    def begin_session(self, session: Session, max_bytes: int) -> None:
        """Requests need a login first, and are at most this large until then."""
        self.session = session
        self._frames.allow(min(max_bytes, self._max_request_bytes))

    def let_in(self, principal: str) -> None:
        """The client has proved who it is."""
        self.principal = principal
        self._frames.allow(self._max_request_bytes)

    def close(self, reason: str | None = None) -> None:
        """Closes the connection; logs the reason, if there is one, once per connection."""
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
        """Closes the connection now, even if replies are unread."""
        if self._transport is not None:
            self._transport.abort()

    def close_idle(self) -> None:
        """Closes an idle connection, even if replies are unread."""
        if self._transport is not None and not self._transport.is_closing():
            log.info("closing the connection of %s: idle", self.client_name)
            self.abort()

    @property
    def _stopped(self) -> bool:
        return self._held > 0 or self._full

    @property
    def _full(self) -> bool:
        """Whether more requests would take too much memory."""
        return (
            self._unread
            or len(self._slots) >= MAX_REQUESTS_IN_FLIGHT
            or self._owed_bytes > FETCH_RESPONSE_MAX_BYTES
        )

    def wait_to_begin(self, seconds: float) -> None:
        """Serves nothing for a while: connections come faster than they may."""
        self.hold()
        self._wait()
        # And again, as uvloop starts to read after `connection_made`, whatever was said in it.
        self._server.call_soon(self._wait)
        self._server.call_later(seconds, self._begin)

    def _wait(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def _begin(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
            self.release()

    def work_alone(self) -> None:
        """Serves this connection and sends its replies."""
        self.work()
        self.end_turn()

    def work(self) -> None:
        """Dispatches queued requests until something stops it; the caller calls `end_turn` next."""
        if self._working:
            return  # Called by a reply that was ready at once: the loop below continues.
        self._working = True
        queue = self._queue
        try:
            while queue and not self._stopped and self._transport is not None:
                if self._server.replies.is_full and _may_have_large_reply(queue[0]):
                    self._server.replies.when_free(self.work_alone)
                    break
                if self._server.line.is_long and _may_be_wide(queue[0]):
                    self._server.line.when_shorter(self.work_alone)
                    break
                frame = queue.popleft()
                self._dispatcher.dispatch(self, frame)
                if len(frame) > INBOX_BYTES and self._held == 0:
                    self._has_taken_effect()
        finally:
            self._working = False

    def end_turn(self) -> None:
        """Sends the replies of this turn, and resumes or pauses reading."""
        if not self._working:
            self._flush()
            self._set_reading()

    def _flush(self) -> None:
        """Hands the replies of one turn to the transport in one call."""
        if self._replies:
            if self._transport is not None:
                self._write(self._replies)
            self._replies = []

    def _set_reading(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        # Behind a request that holds back its followers, reading stops with the first of them. Most
        # clients send none, and to stop and to read on are two calls of the system.
        wanted = not self._full and not self._queue and not self.is_short
        if wanted is not self._reading:
            self._reading = wanted
            transport.resume_reading() if wanted else transport.pause_reading()

    def hold(self) -> None:
        """Keeps later requests waiting until the current one has taken effect."""
        self._held += 1

    def release(self) -> None:
        """Lets later requests start: the current one has taken effect."""
        self._held -= 1
        if self._held == 0:
            self._has_taken_effect()
        self.work_alone()

    def send(self, chunks: Chunks) -> None:
        """Sends the reply to the request that is being dispatched."""
        if self._slots:
            slot = self.reserve(_size_of(chunks))
            slot.chunks = chunks
            self._take_for_slot(slot, chunks)
        elif self._working:
            self._replies += chunks
            if len(chunks) > 1 or len(chunks[0]) > SMALL_REPLY_BYTES:
                self._flush()  # The transport has to count what the client has not read.
        elif self._transport is not None:
            self._flush()
            self._write(chunks)

    def reserve(self, owed_bytes: int) -> Slot:
        """Reserves the place of a later reply of at most this size."""
        slot = Slot(owed_bytes)
        self._slots.append(slot)
        self._owed_bytes += owed_bytes
        return slot

    def fill(self, slot: Slot, chunks: Chunks) -> None:
        """Takes the reply for `slot`; it is sent when all replies before it are."""
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
        if self._unread:  # The client is behind, or this write has made it so.
            size = _memory_of(chunks)
            self._unread_bytes += size
            self._server.replies.take(size)

    def _take_for_slot(self, slot: Slot, chunks: Chunks) -> None:
        if self._transport is not None:  # Otherwise it would never be given back.
            slot.taken_bytes = _memory_of(chunks)
            self._server.replies.take(slot.taken_bytes)

    def _take_for_requests(self) -> None:
        """Takes or gives back memory, so that the large requests have what they need now."""
        if self._transport is None:
            return  # The client has left, and everything was given back.
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
        """Takes the memory for a growing large request, or waits for it."""
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
        """Reads the rest of a large request: there is memory, or this connection is favoured."""
        if self.is_short:
            self.is_short = False
            self._server.requests.forget(self.read_on)
            self._take_for_requests()
            self._set_reading()

    def _has_taken_effect(self) -> None:
        """Gives back the memory of the large request that was dispatched."""
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
        """Bytes taken from the budget for requests."""
        return self._request_bytes

    def keeps_others_waiting(self) -> bool:
        """Whether its client could free memory that other connections wait for."""
        server = self._server
        if server.replies.is_waited_for and (
            self._unread_bytes
            or self.ciphertext_bytes
            or any(slot.taken_bytes for slot in self._slots)
        ):
            return True
        return (
            server.requests.is_waited_for
            and self._request_bytes > 0
            and self._held == 0
            and not self.is_short
        )

    def is_stuck(self, now: float) -> bool:
        """Whether it made hardly any progress while others waited; called periodically."""
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
    """The bytes in the memory of this process; views of a file are in the page cache."""
    size = 0
    for chunk in chunks:
        if not (isinstance(chunk, memoryview) and isinstance(chunk.obj, Mapping)):
            size += len(chunk)
    return size


_api_key = struct.Struct(">h").unpack_from


def _may_have_large_reply(frame: memoryview) -> bool:
    return len(frame) >= 2 and _api_key(frame)[0] in LARGE_REPLIES


def _may_be_wide(frame: memoryview) -> bool:
    """Whether it may name very many items: large requests of other APIs carry records."""
    return len(frame) > INBOX_BYTES and _api_key(frame)[0] not in (ApiKey.PRODUCE, ApiKey.FETCH)
