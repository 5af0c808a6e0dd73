"""One connection through the tap: bytes in, bytes and lines out.

`from_client` and `from_broker` take what has arrived. Requests pass unchanged, so `from_client`
returns nothing; `from_broker` returns what to send. Both only note what they saw. `drain` decodes
it and returns the lines: the caller sends first and decodes then, so decoding delays no one.

A frame is followed in one of three ways:

    copied    small frames: the whole frame is kept until `drain` decodes it
    walked    large frames: they stream through a `Walk`, which keeps a skeleton
    held      replies with addresses: sent when they are complete and rewritten

Brokers answer the requests of a connection in order. A reply belongs to the first waiting request
with its correlation id; requests before that one get no reply (Produce with acks 0).

Bytes that cannot be Kafka's end the decoding of the connection: the rest passes as it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from fencepost.base.seams import Buffer
from fencepost.forensics.tap.decoding.exchange import Exchange
from fencepost.forensics.tap.decoding.replies import Replies
from fencepost.forensics.tap.decoding.requests import Requests
from fencepost.forensics.tap.decoding.rewriting import Translate
from fencepost.records.trace import Body


class Conversation:
    """Both directions of one connection."""

    def __init__(self, translate: Translate, *, keeps_bytes: bool = False) -> None:
        self.translate = translate
        """Gives the address under which the client shall reach a broker."""
        self.keeps_bytes = keeps_bytes
        """Whether lines of requests have their first bytes."""
        self._waiting: deque[Exchange] = deque()
        self._notes: list[Callable[[], Body]] = []
        self._requests = Requests(self)
        self._replies = Replies(self)
        self.expects_tokens = False
        self.is_opaque = False
        """Whether the bytes are not Kafka's, and pass as they are."""

    @property
    def unanswered(self) -> int:
        """Requests that wait for a reply."""
        return sum(exchange.gets_reply for exchange in self._waiting)

    def from_client(self, data: memoryview, now_us: int) -> None:
        """Looks at bytes of the client, which pass unchanged."""
        if not self.is_opaque:
            self._requests.feed(data, now_us)

    def from_broker(self, data: memoryview, now_us: int) -> list[Buffer]:
        """Returns what to send for bytes of the broker, perhaps later."""
        if self.is_opaque:
            return [*self._replies.release(), data]
        return self._replies.feed(data, now_us)

    def end_of_broker(self) -> list[Buffer]:
        """Returns the bytes of an incomplete reply, after the broker's last ones."""
        return self._replies.release()

    def drain(self) -> list[Body]:
        """Decodes what was noted since the last call, and returns its lines."""
        notes, self._notes = self._notes, []
        return [note() for note in notes]

    def note(self, make: Callable[[], Body]) -> None:
        """Notes a line for the next `drain`."""
        self._notes.append(make)

    def give_up(self, reason: str, now_us: int) -> None:
        """Stops decoding."""
        self.is_opaque = True
        line = {"time_us": now_us, "kind": "connection", "event": "not_decoded", "reason": reason}
        self.note(lambda: line)

    # Requests and their replies.

    def wait_for(self, exchange: Exchange) -> None:
        """Expects a reply."""
        self._waiting.append(exchange)

    def expect_none(self, exchange: Exchange) -> None:
        """Produce with acks 0 gets no reply."""
        exchange.gets_reply = False
        if self._waiting and self._waiting[-1] is exchange:
            self._waiting.pop()

    def match(self, correlation_id: int | None) -> Exchange | None:
        """Takes the request that a reply belongs to."""
        waiting = self._waiting
        if waiting and (waiting[0].is_token or waiting[0].correlation_id == correlation_id):
            return waiting.popleft()
        if not any(each.correlation_id == correlation_id for each in waiting):
            return None
        while (first := waiting.popleft()).correlation_id != correlation_id:
            pass
        return first
