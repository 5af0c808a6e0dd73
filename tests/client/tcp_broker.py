"""A minimal broker on a real socket, for failures that only sockets have."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from typing import Any, Final, Self

from fencepost.wire.apis import API, ApiKey
from fencepost.wire.codec import decode_request, encode_response, read_request_header
from fencepost.wire.forms.api_versions import ApiVersion, ApiVersionsResponse
from fencepost.wire.forms.describe_cluster import DescribeClusterResponse
from fencepost.wire.forms.metadata import MetadataResponse, MetadataResponseBroker

SILENCE: Final = object()
"""Do not answer this request."""
HANG_UP: Final = object()
"""Close the connection instead of answering."""
GARBAGE: Final = object()
"""Answer with bytes that are not a frame."""

Handler = Callable[[ApiKey, Any], Any]


class TcpBroker:
    """Answers ApiVersions, Metadata and DescribeCluster; the handler does the rest."""

    def __init__(
        self,
        handler: Handler | None = None,
        *,
        context: ssl.SSLContext | None = None,
        dribble: bool = False,
    ) -> None:
        self.connections = 0
        self.seen: list[ApiKey] = []
        self._handler = handler
        self._context = context
        self._dribble = dribble
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # Closing does not wake a thread that waits in accept.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.hang_up()
        for thread in self._threads:
            thread.join(5)

    def hang_up(self) -> None:
        """Closes every connection, as a broker does with idle ones."""
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        self._open.clear()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.append(connection)
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, ssl.SSLError, EOFError), connection:
            if self._context is not None:
                connection = self._context.wrap_socket(connection, server_side=True)
                self._open.append(connection)
            while True:
                (size,) = struct.unpack(">i", _read(connection, 4))
                self._answer(connection, memoryview(bytearray(_read(connection, size))))

    def _answer(self, connection: socket.socket, frame: memoryview) -> None:
        header = read_request_header(frame)
        form = decode_request(header.api, header.api_version, frame, header.body_offset)
        self.seen.append(header.api_key)
        reply = None if self._handler is None else self._handler(header.api_key, form)
        if reply is None:
            reply = self._usual(header.api_key)
        if reply is SILENCE:
            return
        if reply is HANG_UP:
            connection.shutdown(socket.SHUT_RDWR)
            raise EOFError
        if reply is GARBAGE:
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            return
        chunks = encode_response(header.api, header.api_version, header.correlation_id, reply)
        data = b"".join(chunks)
        for start in range(0, len(data), 1 if self._dribble else len(data)):
            connection.sendall(data[start : start + (1 if self._dribble else len(data))])

    def _usual(self, api: ApiKey) -> Any:
        if api is ApiKey.API_VERSIONS:
            keys = [
                ApiVersion(api_key=int(a.key), min_version=a.min_version, max_version=a.max_version)
                for a in API.values()
            ]
            return ApiVersionsResponse(api_keys=keys)
        if api is ApiKey.METADATA:
            me = MetadataResponseBroker(node_id=1, host="127.0.0.1", port=self.port)
            return MetadataResponse(brokers=[me], controller_id=1, cluster_id="tcp")
        assert api is ApiKey.DESCRIBE_CLUSTER, api
        return DescribeClusterResponse(cluster_id="tcp")


def _read(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise EOFError
        data += part
    return data
