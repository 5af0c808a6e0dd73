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

_HEADER: Final = struct.Struct(">hhih")
_SIZED_HEADER: Final = struct.Struct(">ihhih")
_CORRELATION: Final = struct.Struct(">i")
_SIZED_CORRELATION: Final = struct.Struct(">ii")
_ERROR: Final = struct.Struct(">h")
_SIZE: Final = struct.Struct(">i")
_API_VERSIONS: Final = API[ApiKey.API_VERSIONS]

Route = tuple[Any, "Callable[[Any], Any] | None", bool]
"""A compiled reader or writer, the change of shape if there is one, and whether the header has
tags."""

# By API (or its key) and version, filled at first use: a message costs one lookup.
_REQUEST_READERS: Final[dict[tuple[Api | ApiKey, int], Route]] = {}
_RESPONSE_READERS: Final[dict[tuple[Api | ApiKey, int], Route]] = {}
_REQUEST_WRITERS: Final[dict[tuple[Api | ApiKey, int], Route]] = {}
_RESPONSE_WRITERS: Final[dict[tuple[Api | ApiKey, int], Route]] = {}


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
        key, version, correlation_id, size = _HEADER.unpack_from(frame)
    except struct.error:
        raise WireError(f"a request of {len(frame)} bytes has no header") from None
    api = BY_NUMBER.get(key)
    if api is None:
        raise WireError(f"API key {key} is unknown")
    position = 10
    client_id = None
    if size >= 0:
        position += size
        client_id = _client_id(frame, position)
    if version >= api.flexible_from:
        position = _after_tags(frame, position, "the header of a request")
    return RequestHeader(api, version, correlation_id, client_id, position)


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
    read, reshape, _ = _REQUEST_READERS.get((api, version)) or _new_route(
        _REQUEST_READERS, api, version, reader, RAISE_REQUEST, True
    )
    form, _ = read(frame, body_offset)
    return form if reshape is None else reshape(form)


def decode_response(api: Api | ApiKey, version: int, frame: memoryview) -> tuple[int, Any]:
    """The correlation id and the form in the newest shape. The version is that of the request."""
    correlation_id = read_correlation_id(frame)
    if (api is ApiKey.API_VERSIONS or api is _API_VERSIONS) and _is_refusal(frame):
        version = 0
    route = _RESPONSE_READERS.get((api, version)) or _new_route(
        _RESPONSE_READERS, api, version, reader, RAISE_RESPONSE, False
    )
    read, reshape, has_tags = route
    position = _after_tags(frame, 4, "the header of a response") if has_tags else 4
    form, _ = read(frame, position)
    return correlation_id, form if reshape is None else reshape(form)


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
    route = _REQUEST_WRITERS.get((api, version)) or _new_route(
        _REQUEST_WRITERS, api, version, writer, LOWER_REQUEST, True
    )
    write, reshape, has_tags = route
    name = b"" if client_id is None else client_id.encode()
    size = -1 if client_id is None else len(name)
    key = api if isinstance(api, ApiKey) else api.key
    out = bytearray(_SIZED_HEADER.pack(0, key, version, correlation_id, size))
    out += name
    if has_tags:
        out.append(0)
    return _finish(write, form if reshape is None else reshape(form), out)


def encode_response(
    api: Api | ApiKey, version: int, correlation_id: int, form: Any
) -> list[Buffer]:
    """Encode a response to a request of that version, with its size."""
    route = _RESPONSE_WRITERS.get((api, version)) or _new_route(
        _RESPONSE_WRITERS, api, version, writer, LOWER_RESPONSE, False
    )
    write, reshape, has_tags = route
    out = bytearray(_SIZED_CORRELATION.pack(0, correlation_id))
    if has_tags:
        out.append(0)
    return _finish(write, form if reshape is None else reshape(form), out)


def _finish(write: Any, form: Any, head: bytearray) -> list[Buffer]:
    """Write the body after the header, then the size at the start."""
    chunks: list[Buffer] = []
    tail = write(form, head, chunks)
    if not chunks:
        _SIZE.pack_into(head, 0, len(head) - 4)
        return [bytes(head)]
    chunks.append(tail)
    _SIZE.pack_into(head, 0, sum(map(len, chunks)) - 4)
    return chunks


def _new_route(
    routes: dict[tuple[Api | ApiKey, int], Route],
    api: Api | ApiKey,
    version: int,
    compiled: Any,
    changes: Changes,
    is_request: bool,
) -> Route:
    """Compiles a reader or a writer at its first use."""
    found = API[api] if isinstance(api, ApiKey) else api
    assert found.serves(version), f"{found} was asked for version {version}"
    form = found.request if is_request else found.response
    header = found.request_header_version if is_request else found.response_header_version
    has_tags = header(version) == (2 if is_request else 1)
    route = (compiled(form, version), change_of(changes, found.key, version), has_tags)
    return routes.setdefault((api, version), route)
