"""A request that waits for its reply, and the lines about both."""

from __future__ import annotations

from typing import Any, Final

from fencepost.base.failures import WireError
from fencepost.forensics.tap.decoding.walk import Walk
from fencepost.records.trace import Body
from fencepost.wire.apis import BY_NUMBER, Api, ApiKey, name_of_api
from fencepost.wire.compile import reader

COPIED_BYTES: Final = 64 * 1024
"""Frames up to this size are copied; larger ones are walked."""
MAX_FRAME_BYTES: Final = 1 << 30
"""A larger size is taken for bytes of another protocol. Brokers refuse requests above 100 MB by
default (socket.request.max.bytes)."""
_WITH_ADDRESSES: Final = frozenset(
    {
        ApiKey.PRODUCE,
        ApiKey.FETCH,
        ApiKey.METADATA,
        ApiKey.FIND_COORDINATOR,
        ApiKey.DESCRIBE_QUORUM,
        ApiKey.DESCRIBE_CLUSTER,
        ApiKey.SHARE_FETCH,
        ApiKey.SHARE_ACKNOWLEDGE,
    }
)
"""APIs whose replies may hold addresses, in some versions."""


class Exchange:
    """A request that waits for its reply."""

    __slots__ = (
        "api",
        "api_key",
        "client_id",
        "correlation_id",
        "gets_reply",
        "is_token",
        "time_us",
        "version",
    )

    def __init__(
        self, api_key: int, version: int, correlation_id: int, client_id: str | None, time_us: int
    ) -> None:
        self.api_key = api_key
        self.version = version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.time_us = time_us
        api = BY_NUMBER.get(api_key)
        self.api: Api | None = api if api is not None and api.serves(version) else None
        """None if the message cannot be decoded."""
        self.gets_reply = True
        self.is_token = False
        """Bytes of a login without a header, as SaslHandshake 0 announces them."""

    @property
    def name(self) -> str:
        return "SaslToken" if self.is_token else name_of_api(self.api_key)


def decode_skeleton(form: type[Any], version: int, walk: Walk, raise_shape: Any) -> Any:
    """Decodes what a walk has kept of a message."""
    if walk.problem is not None:
        raise WireError(walk.problem)
    if not walk.is_complete:
        raise WireError("it ends too early")
    decoded, _ = reader(form, version)(bytes(walk.skeleton), 0)
    return decoded if raise_shape is None else raise_shape(decoded)


def request_line(exchange: Exchange, size_bytes: int) -> Body:
    """The fields that a request and its reply have in common."""
    return {
        "time_us": exchange.time_us,
        "kind": "request",
        "client_id": exchange.client_id,
        "api": exchange.name,
        "api_version": exchange.version,
        "correlation_id": exchange.correlation_id,
        "size_bytes": size_bytes,
    }


def undecoded(line: Body, exchange: Exchange, reason: str | None = None) -> Body:
    """Notes in a line that its message was not decoded, and why."""
    line["decoded"] = False
    if reason is None:
        reason = (
            "the bytes of a login are hidden"
            if exchange.is_token
            else f"version {exchange.version} of {exchange.name} is not known here"
        )
        if exchange.api_key in _WITH_ADDRESSES and line["kind"] == "reply":
            reason += ", so addresses in it are not rewritten"
    line["reason"] = reason
    return line
