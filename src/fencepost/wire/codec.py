"""Whole requests and responses: size, header and body.

    request   int32 size | int16 key, int16 version, int32 correlation id, client id, [tags] | body
    response  int32 size | int32 correlation id, [tags] | body

A header has tags from the first flexible version of the API on. The client id keeps the old string
layout in every version, so that a broker can read the header of a request whose version it does not
support.

Decoders return and encoders accept forms in the newest shape (`shapes.py`), whatever the version.
Encoders return a list of buffers: one bytes object, or several if records are large.

ApiVersions comes before versions are negotiated, and has special rules. Its response header never
has tags. A broker answers an unsupported version in the layout of version 0 with
UNSUPPORTED_VERSION (`encode_response(api, 0, ...)`), and `decode_response` reads such an answer.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from fencepost.base.errors import ErrorCode
from fencepost.base.failures import WireError
from fencepost.base.seams import Buffer
from fencepost.wire.apis import API, BY_NUMBER, Api, ApiKey
from fencepost.wire.compile import reader, writer
from fencepost.wire.reading import skip_tags
from fencepost.wire.shapes import (
    LOWER_REQUEST,
    LOWER_RESPONSE,
    RAISE_REQUEST,
    RAISE_RESPONSE,
    Changes,
    change_of,
)

_KEY_AND_VERSION: Final = struct.Struct(">hh")
_CLIENT: Final = struct.Struct(">ih")
_SIZED_HEADER: Final = struct.Struct(">ihhih")
_CORRELATION: Final = struct.Struct(">i")
_SIZED_CORRELATION: Final = struct.Struct(">ii")
_ROOM_FOR_HEAD: Final = bytes(_SIZED_CORRELATION.size)
_ERROR: Final = struct.Struct(">h")
_SIZE: Final = struct.Struct(">i")
_API_VERSIONS: Final = API[ApiKey.API_VERSIONS]


class MessageReader:
    """Reads the requests or the responses of one API and version."""

    __slots__ = ("_read", "_reshape", "has_tags")

    def __init__(self, read: Any, reshape: Callable[[Any], Any] | None, has_tags: bool) -> None:
        """`reshape` turns a form into the newest shape, if the message has changed it."""
        self._read = read
        self._reshape = reshape
        self.has_tags = has_tags
        """Whether the header has tags."""

    def decode(self, frame: memoryview, body_offset: int) -> Any:
        """Decode the body into a form of the newest shape."""
        form = self._read(frame, body_offset)[0]
        return form if self._reshape is None else self._reshape(form)


class MessageWriter:
    """Writes the requests or the responses of one API and version."""

    __slots__ = ("_reshape", "_write", "has_tags")

    def __init__(self, write: Any, reshape: Callable[[Any], Any] | None, has_tags: bool) -> None:
        """`reshape` turns a form of the newest shape into that of the version."""
        self._write = write
        self._reshape = reshape
        self.has_tags = has_tags
        """Whether the header has tags."""

    def encode_response(self, correlation_id: int, form: Any) -> list[Buffer]:
        """Encode a response, with its size."""
        head = bytearray(_ROOM_FOR_HEAD)
        if self.has_tags:
            head.append(0)
        chunks, size = self.encode_body(form, head)
        _SIZED_CORRELATION.pack_into(head, 0, size - 4, correlation_id)
        return chunks or [bytes(head)]

    def encode_body(self, form: Any, head: bytearray) -> tuple[list[Buffer], int]:
        """Write the body after the header; returns the buffers and the size of all.

        There are no buffers if everything is in `head`; otherwise that is the first of them.
        """
        chunks: list[Buffer] = []
        if self._reshape is not None:
            form = self._reshape(form)
        tail = self._write(form, head, chunks)
        if not chunks:
            return chunks, len(head)
        chunks.append(tail)
        return chunks, sum(map(len, chunks))


# By API (or its key) and version, filled at first use.
_REQUEST_READERS: Final[dict[tuple[Api | ApiKey, int], MessageReader]] = {}
_RESPONSE_READERS: Final[dict[tuple[Api | ApiKey, int], MessageReader]] = {}
_REQUEST_WRITERS: Final[dict[tuple[Api | ApiKey, int], MessageWriter]] = {}
_RESPONSE_WRITERS: Final[dict[tuple[Api | ApiKey, int], MessageWriter]] = {}


@dataclass(slots=True, init=False)
class RequestHeader:
    """The header of a request, and where the body begins in its frame."""

    api: Api
    api_version: int
    correlation_id: int
    client_id: str | None
    body_offset: int

    def __init__(
        self,
        api: Api,
        api_version: int,
        correlation_id: int,
        client_id: str | None,
        body_offset: int,
    ) -> None:
        self.api = api
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.body_offset = body_offset

    @property
    def api_key(self) -> ApiKey:
        """The key of the API."""
        return self.api.key


def read_request_header(frame: memoryview) -> RequestHeader:
    """Read the header of a request of any version; WireError for an unknown API."""
    try:
        key, version = _KEY_AND_VERSION.unpack_from(frame)
    except struct.error:
        raise _no_header(frame) from None
    api = BY_NUMBER.get(key)
    if api is None:
        raise WireError(f"API key {key} is unknown")
    client = read_client(frame, has_tags=version >= api.flexible_from)
    return RequestHeader(api, version, client[0], client[1], client[2])


def _no_header(frame: memoryview) -> WireError:
    return WireError(f"a request of {len(frame)} bytes has no header")


def read_client(frame: memoryview, *, has_tags: bool) -> tuple[int, str | None, int]:
    """The rest of the header, after key and version: correlation id, client id, and its end."""
    try:
        correlation_id, size = _CLIENT.unpack_from(frame, _KEY_AND_VERSION.size)
    except struct.error:
        raise _no_header(frame) from None
    position = 10
    client_id = None
    if size >= 0:
        position += size
        client_id = _client_id(frame, position)
    if has_tags:
        position = _after_tags(frame, position, "the header of a request")
    return correlation_id, client_id, position


def _client_id(frame: memoryview, end: int) -> str:
    if end > len(frame):
        raise WireError("the client id is longer than the bytes received")
    name = frame[10:end].tobytes()
    return _KNOWN_CLIENT_IDS.get(name) or _decode_client_id(name)


_KNOWN_CLIENT_IDS: Final[dict[bytes, str]] = {}
_MAX_KNOWN_CLIENT_IDS: Final = 1024
_MAX_KNOWN_CLIENT_ID_BYTES: Final = 128


def _decode_client_id(name: bytes) -> str:
    """Decode a client id once: a client sends the same one with every request."""
    try:
        client_id = name.decode()
    except UnicodeDecodeError:
        raise WireError("the client id is not UTF-8") from None
    if len(_KNOWN_CLIENT_IDS) < _MAX_KNOWN_CLIENT_IDS and len(name) <= _MAX_KNOWN_CLIENT_ID_BYTES:
        _KNOWN_CLIENT_IDS[name] = client_id
    return client_id


def _after_tags(frame: Buffer, position: int, what: str) -> int:
    """Skip the tags of a header: none is defined yet."""
    try:
        count = frame[position]
        return position + 1 if count == 0 else skip_tags(frame, position + 1, count, len(frame))
    except IndexError:
        raise WireError(f"{what} is cut short") from None


def decode_request(api: Api | ApiKey, version: int, frame: memoryview, body_offset: int) -> Any:
    """Decode the body of a request into a form of the newest shape; the version must be served."""
    return request_reader(api, version).decode(frame, body_offset)


def decode_response(api: Api | ApiKey, version: int, frame: memoryview) -> tuple[int, Any]:
    """The correlation id and the form in the newest shape. The version is that of the request."""
    correlation_id = read_correlation_id(frame)
    if (api is ApiKey.API_VERSIONS or api is _API_VERSIONS) and _is_refusal(frame):
        version = 0
    found = _response_reader(api, version)
    position = _after_tags(frame, 4, "the header of a response") if found.has_tags else 4
    return correlation_id, found.decode(frame, position)


def read_correlation_id(frame: memoryview) -> int:
    """The correlation id of a response, needed before its API and version are known."""
    if len(frame) < 4:
        raise WireError(f"a response of {len(frame)} bytes has no correlation id")
    correlation_id: int = _CORRELATION.unpack_from(frame)[0]
    return correlation_id


def _is_refusal(frame: memoryview) -> bool:
    """Whether an ApiVersions response refuses our version; the error code comes first in all."""
    return len(frame) >= 6 and _ERROR.unpack_from(frame, 4)[0] == ErrorCode.UNSUPPORTED_VERSION


def encode_request(
    api: Api | ApiKey, version: int, correlation_id: int, client_id: str | None, form: Any
) -> list[Buffer]:
    """Encode a request, with its size."""
    found = _request_writer(api, version)
    name = b"" if client_id is None else client_id.encode()
    size = -1 if client_id is None else len(name)
    key = api if isinstance(api, ApiKey) else api.key
    head = bytearray(_SIZED_HEADER.pack(0, key, version, correlation_id, size))
    head += name
    if found.has_tags:
        head.append(0)
    chunks, size_bytes = found.encode_body(form, head)
    _SIZE.pack_into(head, 0, size_bytes - 4)
    return chunks or [bytes(head)]


def encode_response(
    api: Api | ApiKey, version: int, correlation_id: int, form: Any
) -> list[Buffer]:
    """Encode a response to a request of that version, with its size."""
    return response_writer(api, version).encode_response(correlation_id, form)


def request_reader(api: Api | ApiKey, version: int) -> MessageReader:
    """The reader of requests in a version that must be served."""
    found = _REQUEST_READERS.get((api, version))
    if found is None:
        bounded = partial(reader, is_request=True)
        found = MessageReader(*_compiled(api, version, bounded, RAISE_REQUEST, is_request=True))
        _REQUEST_READERS[api, version] = found
    return found


def response_writer(api: Api | ApiKey, version: int) -> MessageWriter:
    """The writer of responses to requests of a version that must be served."""
    found = _RESPONSE_WRITERS.get((api, version))
    if found is None:
        found = MessageWriter(*_compiled(api, version, writer, LOWER_RESPONSE, is_request=False))
        _RESPONSE_WRITERS[api, version] = found
    return found


def _response_reader(api: Api | ApiKey, version: int) -> MessageReader:
    found = _RESPONSE_READERS.get((api, version))
    if found is None:
        found = MessageReader(*_compiled(api, version, reader, RAISE_RESPONSE, is_request=False))
        _RESPONSE_READERS[api, version] = found
    return found


def _request_writer(api: Api | ApiKey, version: int) -> MessageWriter:
    found = _REQUEST_WRITERS.get((api, version))
    if found is None:
        found = MessageWriter(*_compiled(api, version, writer, LOWER_REQUEST, is_request=True))
        _REQUEST_WRITERS[api, version] = found
    return found


def _compiled(
    api: Api | ApiKey, version: int, compiler: Any, changes: Changes, *, is_request: bool
) -> tuple[Any, Callable[[Any], Any] | None, bool]:
    """Compiles a reader or a writer; the change of shape, and whether the header has tags."""
    found = API[api] if isinstance(api, ApiKey) else api
    assert found.serves(version), f"{found} was asked for version {version}"
    form = found.request if is_request else found.response
    header = found.request_header_version if is_request else found.response_header_version
    has_tags = header(version) == (2 if is_request else 1)
    return compiler(form, version), change_of(changes, found.key, version), has_tags
