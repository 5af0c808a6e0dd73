"""Frames for a `Conversation`, and what comes out of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, Final

from fencepost.base.seams import Buffer
from fencepost.forensics.tap.decoding.conversation import Conversation
from fencepost.records.trace import Body
from fencepost.wire.apis import Api, ApiKey
from fencepost.wire.codec import encode_request
from fencepost.wire.compile import encode
from fencepost.wire.forms.end_txn import EndTxnRequest

LOCAL: Final = "127.0.0.1"


def local_port(port: int) -> int:
    """The port under which the tap offers a broker of that port."""
    return port % 1000 + 20_000


def translate(host: str, port: int, node_id: int) -> tuple[str, int]:
    return LOCAL, local_port(port)


def framed(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "big") + payload


def request_frame(api: Api, version: int, body: bytes, correlation_id: int = 1) -> bytes:
    header = b"".join(
        [
            int(api.key).to_bytes(2, "big"),
            version.to_bytes(2, "big"),
            correlation_id.to_bytes(4, "big"),
            b"\x00\x03abc",
        ]
    )
    tags = b"\x00" if api.is_flexible(version) else b""
    return framed(header + tags + body)


def reply_frame(api: Api, version: int, form: Any, correlation_id: int = 1) -> bytes:
    """The frame of a form in the shape of its version."""
    tags = b"\x00" if api.response_header_version(version) == 1 else b""
    return framed(correlation_id.to_bytes(4, "big") + tags + encode(form, version))


class Talk:
    """One connection whose bytes arrive in chosen pieces."""

    def __init__(self, *, keeps_bytes: bool = False) -> None:
        self.conversation = Conversation(translate, keeps_bytes=keeps_bytes)
        self.lines: list[Body] = []
        self.now_us = 0

    def ask(self, data: bytes, cuts: Sequence[int] = ()) -> None:
        for piece in pieces(data, cuts):
            self.now_us += 1
            self.conversation.from_client(memoryview(piece), self.now_us)
        self.lines += self.conversation.drain()

    def answer(self, data: bytes, cuts: Sequence[int] = ()) -> bytes:
        """What the client gets."""
        out: list[Buffer] = []
        for piece in pieces(data, cuts):
            self.now_us += 1
            # The buffer is used again, so nothing may keep a view of it.
            buffer = bytearray(piece)
            out += [
                bytes(each)
                for each in self.conversation.from_broker(memoryview(buffer), self.now_us)
            ]
            buffer[:] = bytes(len(buffer))
        self.lines += self.conversation.drain()
        return b"".join(out)

    def exchange(
        self, api: Api, version: int, reply: bytes, cuts: Sequence[int] = ()
    ) -> tuple[bytes, Body]:
        """Sends a request without a readable body, and returns what its reply becomes."""
        self.ask(request_frame(api, version, b""))
        got = self.answer(reply, cuts)
        return got, self.lines[-1]


def pieces(data: bytes, cuts: Iterable[int]) -> list[bytes]:
    positions = [0, *sorted(cuts), len(data)]
    return [data[a:b] for a, b in pairwise(positions) if a < b]


def asked(number: int, api: ApiKey = ApiKey.END_TXN, form: object = None) -> bytes:
    form = form or EndTxnRequest(transactional_id=f"id-{number}")
    return b"".join(encode_request(api, 3, number, "c", form))
