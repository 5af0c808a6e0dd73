# Made by tools/fold_schema.py from kio's schema: change the tool, not this file.
"""SaslAuthenticate (36): v0-2."""

from __future__ import annotations

from fencepost.wire.schema import field, message


@message(versions="0-2", flexible="2+")
class SaslAuthenticateRequest:
    auth_bytes: bytes = field("bytes")


@message(versions="0-2", flexible="2+")
class SaslAuthenticateResponse:
    error_code: int = field("int16")
    error_message: str | None = field("string", nullable="0+")
    auth_bytes: bytes = field("bytes")
    session_lifetime_ms: int = field("int64", versions="1+", default=0)
