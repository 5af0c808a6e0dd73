"""The frames of a broker: each is copied, walked, or held until its addresses are rewritten."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from fencepost.base.failures import FencepostError, WireError
from fencepost.base.seams import Buffer
from fencepost.forensics.tap.decoding.exchange import (
    COPIED_BYTES,
    MAX_FRAME_BYTES,
    Exchange,
    decode_skeleton,
    request_line,
    undecoded,
)
from fencepost.forensics.tap.decoding.rewriting import HIDDEN_TAG, rewrite
from fencepost.forensics.tap.decoding.walk import Steps, Walk, holds_endpoints, walk_message
from fencepost.records.trace import Body, describe_message
from fencepost.wire.apis import Api, ApiKey
from fencepost.wire.codec import decode_response
from fencepost.wire.shapes import RAISE_RESPONSE, change_of

if TYPE_CHECKING:
    from fencepost.forensics.tap.decoding.conversation import Conversation


MAX_HELD_BYTES: Final = 256 * 1024 * 1024
"""The largest reply that waits until it is complete, such as a Metadata reply."""

_SIZE: Final = struct.Struct(">i")
_STREAMED_REPLIES: Final = frozenset({ApiKey.FETCH})
"""Replies that are walked although they may hold addresses: those are in a tagged field, which can
be hidden."""


class Replies:
    """The frames of a broker."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._frame = bytearray()
        """The frame in progress: its first 8 bytes, or all of it if it is copied or held."""
        self._wanted = _SIZE.size
        self._left = 0
        self._walk: Walk | None = None
        self._exchange: Exchange | None = None
        self._is_held = False
        self._is_open = False
        """Whether size and correlation id of the frame are known."""
        self._now_us = 0

    def feed(self, data: memoryview, now_us: int) -> list[Buffer]:
        """Returns what to send for the next bytes."""
        self._now_us = now_us
        out: list[Buffer] = []
        start, end = 0, len(data)
        sent = 0  # What of `data` is in `out`, or waits in the frame.
        while start < end and not self._conversation.is_opaque:
            if not self._is_open:
                # The first bytes wait until it is known what to do with the frame.
                out.append(data[sent:start])
                start = sent = start + self._collect_head(data[start:], out)
                continue
            count = min(self._left, end - start)
            piece = data[start : start + count]
            start += count
            if self._is_held:
                sent = start
                self._frame += piece
            elif self._walk is not None:
                hidden = self._follow(self._walk, piece)
                if hidden is not None:
                    out.append(data[sent : start - count])
                    out.append(hidden)
                    sent = start
            else:
                self._frame += piece
            self._left -= count
            if not self._left:
                self._finish(out)
        out.append(data[sent:])
        return [piece for piece in out if len(piece)]

    def release(self) -> list[Buffer]:
        """The bytes that wait, when no more will come."""
        waits = self._is_held or not self._is_open
        frame, self._frame = self._frame, bytearray()
        return [bytes(frame)] if waits and frame else []

    def _collect_head(self, data: memoryview, out: list[Buffer]) -> int:
        """Takes bytes up to the correlation id; a frame may be too short to have one."""
        frame = self._frame
        taken = 0
        while taken < len(data):
            count = min(self._wanted - len(frame), len(data) - taken)
            frame += data[taken : taken + count]
            taken += count
            if len(frame) < _SIZE.size:
                continue
            (size,) = _SIZE.unpack_from(frame)
            if not 0 <= size <= MAX_FRAME_BYTES:
                reason = (
                    f"{bytes(frame[:4])!r} is not the size of a reply: this is not Kafka's protocol"
                )
                self._conversation.give_up(reason, self._now_us)
                out += self.release()
                break
            self._wanted = _SIZE.size + min(size, _SIZE.size)
            if len(frame) == self._wanted:
                self._left = size - (len(frame) - _SIZE.size)
                self._is_open = True
                self._start_frame(out)
                break
        return taken

    def _start_frame(self, out: list[Buffer]) -> None:
        """Decides how the frame is followed."""
        frame = self._frame
        has_id = len(frame) == 2 * _SIZE.size
        correlation_id = _SIZE.unpack_from(frame, 4)[0] if has_id else None
        exchange = self._exchange = self._conversation.match(correlation_id)
        api = None if exchange is None else exchange.api
        is_large = self._left > COPIED_BYTES
        if exchange is not None and api is not None:
            form, version = api.response, exchange.version
            self._is_held = holds_endpoints(form, version) and not (
                is_large and api.key in _STREAMED_REPLIES
            )
            if self._is_held and self._left > MAX_HELD_BYTES:
                raise WireError(f"a reply to {api.name} of {self._left} bytes is too large to hold")
            if is_large and not self._is_held:
                has_tags = api.response_header_version(version) == 1
                self._walk = Walk(walk_message(form, version, has_header_tags=has_tags))
        elif is_large:
            self._walk = Walk(_nothing)
        if not self._is_held:
            out.append(bytes(frame))
        if not self._left:
            self._finish(out)

    def _follow(self, walk: Walk, piece: memoryview) -> bytes | None:
        """Walks on; returns the piece with a tag of addresses hidden, if its number is in it."""
        before = walk.position + walk.pending
        known = walk.endpoint_tag
        walk.feed(piece)
        if walk.endpoint_tag == known or walk.endpoint_tag is None:
            return None
        changed = bytearray(piece)
        changed[walk.endpoint_tag - before] = HIDDEN_TAG
        return bytes(changed)

    def _finish(self, out: list[Buffer]) -> None:
        frame, walk, exchange = self._frame, self._walk, self._exchange
        size_bytes = _SIZE.unpack_from(frame)[0] + _SIZE.size
        now_us = self._now_us
        conversation = self._conversation
        if self._is_held:
            assert exchange is not None
            assert exchange.api is not None
            out.append(self._rewritten(exchange.api, exchange.version, frame))
        if exchange is None:
            if not conversation.is_opaque:
                conversation.note(lambda: _unexpected(size_bytes, now_us))
        else:
            conversation.note(lambda: _reply_line(exchange, frame, walk, size_bytes, now_us))
        self._frame, self._walk, self._exchange = bytearray(), None, None
        self._wanted = _SIZE.size
        self._is_held = self._is_open = False

    def _rewritten(self, api: Api, version: int, frame: bytearray) -> bytes:
        has_tags = api.response_header_version(version) == 1
        walk = Walk(walk_message(api.response, version, has_header_tags=has_tags))
        base = 2 * _SIZE.size
        walk.feed(memoryview(frame)[base:])
        if not walk.spots:
            return bytes(frame)
        return rewrite(frame, walk.spots, base, self._conversation.translate)


def _nothing(walk: Walk) -> Steps:
    """The walk of a message that we cannot read."""
    yield from ()


def _reply_line(
    exchange: Exchange, frame: bytearray, walk: Walk | None, size_bytes: int, now_us: int
) -> Body:
    line = request_line(exchange, size_bytes)
    line["time_us"] = now_us
    line["kind"] = "reply"
    line["duration_us"] = now_us - exchange.time_us
    api, version = exchange.api, exchange.version
    if api is None:
        return undecoded(line, exchange)
    try:
        if walk is None:
            _, form = decode_response(api, version, memoryview(frame)[4:])
            summaries = None
        else:
            raise_shape = change_of(RAISE_RESPONSE, api.key, version)
            form = decode_skeleton(api.response, version, walk, raise_shape)
            summaries = iter(walk.summaries)
    except FencepostError as problem:
        return undecoded(line, exchange, str(problem))
    body, line["errors"] = describe_message(form, summaries)
    line["body"] = body
    return line


def _unexpected(size_bytes: int, now_us: int) -> Body:
    return {
        "time_us": now_us,
        "kind": "reply",
        "api": None,
        "size_bytes": size_bytes,
        "decoded": False,
        "reason": "no request waits for it",
    }
