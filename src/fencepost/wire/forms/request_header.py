# Made by tools/fold_schema.py from kio's schema: change the tool, not this file.
"""RequestHeader: v1-2."""

from __future__ import annotations

from fencepost.wire.schema import field, message


@message(versions="1-2", flexible="2+")
class RequestHeader:
    request_api_key: int = field("int16")
    request_api_version: int = field("int16")
    correlation_id: int = field("int32")
    client_id: str | None = field("string", nullable="0+", compact=False)
