"""The frames of a client: each is copied or walked, and none is changed."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

from fencepost.base.failures import FencepostError, WireError
from fencepost.forensics.tap.decoding.exchange import (
    COPIED_BYTES,
    MAX_FRAME_BYTES,
    Exchange,
    decode_skeleton,
    request_line,
    undecoded,
)
from fencepost.forensics.tap.decoding.kept_bytes import KEPT_APIS, KEPT_BYTES, pieces
from fencepost.forensics.tap.decoding.walk import Steps, Walk, walk_message
from fencepost.records.trace import Body, describe_message
from fencepost.wire.apis import BY_NUMBER, ApiKey
from fencepost.wire.codec import decode_request, read_request_header
from fencepost.wire.shapes import RAISE_REQUEST, change_of

if TYPE_CHECKING:
    from fencepost.forensics.tap.decoding.conversation import Conversation


_TLS_HANDSHAKE: Final = b"\x16\x03"
_SIZE: Final = struct.Struct(">i")
_HEADER: Final = struct.Struct(">hhih")
_LARGEST_NUMBER: Final = 255
"""API keys and versions above it are taken for bytes of another protocol."""
_LARGEST_KNOWN: Final = max(api.max_version for api in BY_NUMBER.values())


class Requests:
    """The frames of a client."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._frame = bytearray()
        self._size = -1
        self._is_first = True
        self._time_us = 0
        self._walk: Walk | None = None
        self._left = 0
        self._exchange: Exchange | None = None
        self._head = bytearray()
        """The first bytes of a large frame, if bytes are kept."""

    def feed(self, data: memoryview, now_us: int) -> None:
        """Looks at the next bytes."""
        start, end = 0, len(data)
        while start < end and not self._conversation.is_opaque:
            if self._walk is not None:
                count = min(self._left, end - start)
                self._follow(data[start : start + count], count)
                start += count
                continue
            if not self._frame:
                self._time_us = now_us
            wanted = _SIZE.size if self._size < 0 else _SIZE.size + self._size
            count = min(wanted - len(self._frame), end - start)
            self._frame += data[start : start + count]
            start += count
            if len(self._frame) == wanted:
                self._filled()

    def _filled(self) -> None:
        if self._size < 0:
            self._begin()
            if self._size != 0 or self._walk is not None:
                return
        frame, self._frame, self._size = bytes(self._frame), bytearray(), -1
        self._complete(frame)

    def _begin(self) -> None:
        """Looks at the size of the next frame."""
        head = bytes(self._frame)
        (size,) = _SIZE.unpack(head)
        is_first, self._is_first = self._is_first, False
        if is_first and head.startswith(_TLS_HANDSHAKE):
            reason = "the client begins TLS, which the tap does not speak to clients: set its "
            reason += "security.protocol to PLAINTEXT, or SASL_PLAINTEXT if it logs in"
            self._conversation.give_up(reason, self._time_us)
            return
        if not 0 <= size <= MAX_FRAME_BYTES:
            reason = f"{head!r} is not the size of a request: this is not Kafka's protocol"
            self._conversation.give_up(reason, self._time_us)
            return
        self._size = size
        if size > COPIED_BYTES:
            self._left = size
            self._walk = Walk(self._walk_request)
            self._head = bytearray(head)

    # Small requests.

    def _complete(self, frame: bytes) -> None:
        conversation = self._conversation
        exchange = self._read_header(frame)
        if exchange is None:
            return
        conversation.wait_for(exchange)
        if exchange.api is not None and exchange.api.key is ApiKey.SASL_HANDSHAKE:
            conversation.expects_tokens = exchange.version == 0
        conversation.note(lambda: self._line(exchange, frame))

    def _read_header(self, frame: bytes) -> Exchange | None:
        key = version = -1
        if len(frame) >= 14:
            key, version, correlation_id, length = _HEADER.unpack_from(frame, 4)
        if self._conversation.expects_tokens and (key not in BY_NUMBER or version > _LARGEST_KNOWN):
            token = Exchange(-1, 0, 0, None, self._time_us)
            token.is_token = True
            return token
        if not (0 <= key <= _LARGEST_NUMBER and 0 <= version <= _LARGEST_NUMBER):
            self._conversation.give_up(
                f"a frame of {len(frame) - 4} bytes has no header of a request", self._time_us
            )
            return None
        client_id = frame[14 : 14 + length].decode("utf-8", "replace") if length >= 0 else None
        return Exchange(key, version, correlation_id, client_id, self._time_us)

    def _line(self, exchange: Exchange, frame: bytes) -> Body:
        api = exchange.api
        line = request_line(exchange, len(frame))
        if api is None:
            return undecoded(line, exchange)
        try:
            view = memoryview(frame)[4:]
            start = read_request_header(view).body_offset
            form = decode_request(api, exchange.version, view, start)
        except FencepostError as problem:
            return undecoded(line, exchange, str(problem))
        self._look(exchange, form)
        line["body"], _ = describe_message(form)
        if self._conversation.keeps_bytes and api.key in KEPT_APIS:
            walk = Walk(walk_message(api.request, exchange.version, has_header_tags=False))
            walk.feed(view[start:])
            _keep(line, walk, frame[:KEPT_BYTES], _SIZE.size + start)
        return line

    def _look(self, exchange: Exchange, form: Any) -> None:
        if exchange.api_key == ApiKey.PRODUCE and form.acks == 0:
            self._conversation.expect_none(exchange)

    # Large requests.

    def _walk_request(self, walk: Walk) -> Steps:
        key, version, correlation_id, length = _HEADER.unpack((yield _HEADER.size))
        if not (0 <= key <= _LARGEST_NUMBER and 0 <= version <= _LARGEST_NUMBER):
            raise WireError("it has no header of a request")
        name = (yield length) if length > 0 else b""
        client_id = name.decode("utf-8", "replace") if length >= 0 else None
        exchange = Exchange(key, version, correlation_id, client_id, self._time_us)
        self._exchange = exchange
        self._conversation.wait_for(exchange)
        api = exchange.api
        if api is not None:
            has_tags = api.is_flexible(version)
            yield from walk_message(api.request, version, has_header_tags=has_tags)(walk)

    def _follow(self, data: memoryview, count: int) -> None:
        walk = self._walk
        assert walk is not None
        if self._conversation.keeps_bytes and len(self._head) < KEPT_BYTES:
            self._head += data[: KEPT_BYTES - len(self._head)]
        walk.feed(data)
        if self._exchange is None and walk.is_complete:
            reason = f"a frame of {self._size} bytes has no header of a request"
            self._conversation.give_up(reason, self._time_us)
        self._left -= count
        if self._left:
            return
        exchange, size, head = self._exchange, self._size, bytes(self._head)
        self._walk = self._exchange = None
        self._frame.clear()
        self._size = -1
        if exchange is not None:
            size_bytes = size + _SIZE.size
            self._conversation.note(lambda: self._walked_line(exchange, walk, size_bytes, head))

    def _walked_line(self, exchange: Exchange, walk: Walk, size_bytes: int, head: bytes) -> Body:
        line = request_line(exchange, size_bytes)
        api = exchange.api
        if api is None:
            return undecoded(line, exchange)
        try:
            raise_shape = change_of(RAISE_REQUEST, api.key, exchange.version)
            form = decode_skeleton(api.request, exchange.version, walk, raise_shape)
        except FencepostError as problem:
            return undecoded(line, exchange, str(problem))
        self._look(exchange, form)
        line["body"], _ = describe_message(form, iter(walk.summaries))
        if self._conversation.keeps_bytes and api.key in KEPT_APIS:
            _keep(line, walk, head, _SIZE.size)
        return line


def _keep(line: Body, walk: Walk, head: bytes, offset: int) -> None:
    """Adds the first bytes of a frame to its line; the walk began at `offset`."""
    if walk.is_complete and walk.problem is None:
        spans = [*walk.hidden, (walk.position, line["size_bytes"])]
        line["bytes"] = pieces(head, [(start + offset, end + offset) for start, end in spans])
