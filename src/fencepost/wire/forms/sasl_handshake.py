# Made by tools/fold_schema.py from kio's schema: change the tool, not this file.
"""SaslHandshake (17): v0-1."""

from __future__ import annotations

from fencepost.wire.schema import field, message


@message(versions="0-1")
class SaslHandshakeRequest:
    mechanism: str = field("string")


@message(versions="0-1")
class SaslHandshakeResponse:
    error_code: int = field("int16")
    mechanisms: list[str] = field("[]string")
