"""A client on a socket, plain or TLS, which can send any bytes and returns any reply."""

from __future__ import annotations

import contextlib
import itertools
import socket
import ssl
import struct
from typing import TYPE_CHECKING, Any, Final, Self

from fencepost.wire.apis import API
from fencepost.wire.codec import decode_response, encode_request
from fencepost.wire.compile import encode

if TYPE_CHECKING:
    from fencepost.wire.apis import ApiKey

PATIENCE_SECONDS: Final = 30.0
"""After this time a missing reply is a failure; a test that passes never waits so long."""


class ClosedError(Exception):
    """The broker has closed the connection."""


class RawClient:
    """One connection, which reads only when a test asks for a reply."""

    def __init__(
        self,
        address: str,
        *,
        receive_buffer_bytes: int | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        host, _, port = address.rpartition(":")
        self._socket: socket.socket = socket.socket(
            socket.AF_INET6 if ":" in host else socket.AF_INET
        )
        if receive_buffer_bytes is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self._socket.settimeout(PATIENCE_SECONDS)
        self._socket.connect((host.strip("[]"), int(port)))
        if tls is not None:
            self._socket = tls.wrap_socket(self._socket, server_hostname=host.strip("[]"))
        self._correlation_ids = itertools.count(1)

    def call(self, api: ApiKey, version: int, form: Any) -> Any:
        """Sends a request and waits for its reply."""
        return self.reply(api, version, self.send(api, version, form))

    def send(self, api: ApiKey, version: int, form: Any) -> int:
        """Sends a request; returns its correlation id."""
        correlation_id = next(self._correlation_ids)
        self.send_bytes(frame_of(api, version, form, correlation_id))
        return correlation_id

    def reply(self, api: ApiKey, version: int, correlation_id: int | None = None) -> Any:
        """The next reply, which must belong to that request."""
        answered, form = decode_response(api, version, memoryview(self.read_frame()))
        assert correlation_id in (None, answered), f"reply to {answered}, not {correlation_id}"
        return form

    def send_bytes(self, data: bytes) -> None:
        self._socket.sendall(data)

    def send_frame(self, body: bytes) -> None:
        """Sends any bytes, with their size in front."""
        self.send_bytes(struct.pack(">i", len(body)) + body)

    def read_frame(self) -> bytes:
        """The next frame without its size; raises ClosedError if there is none."""
        (size,) = struct.unpack(">i", self._read(4))
        return self._read(size)

    def _read(self, count: int) -> bytes:
        parts = []
        while count:
            try:
                part = self._socket.recv(min(count, 1 << 20))
            except (ConnectionError, ssl.SSLError) as problem:
                raise ClosedError from problem
            if not part:
                raise ClosedError
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def is_closed_by_broker(self) -> bool:
        """Waits for a frame or the end of the connection; True if it was closed."""
        try:
            self.read_frame()
        except ClosedError:
            return True
        return False

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def frame_of(
    api: ApiKey, version: int, form: Any, correlation_id: int = 1, client_id: str = "raw"
) -> bytes:
    """A request as sent, with its size in front."""
    return b"".join(encode_request(api, version, correlation_id, client_id, form))


def frame_as_written(api: ApiKey, version: int, form: Any, correlation_id: int = 1) -> bytes:
    """The same for a form that already has the shape of its version."""
    tags = b"\x00" if API[api].is_flexible(version) else b""
    header = struct.pack(">hhih3s", api, version, correlation_id, 3, b"raw") + tags
    body = header + encode(form, version)
    return struct.pack(">i", len(body)) + body
