# Made by tools/fold_schema.py from kio's schema: change the tool, not this file.
"""ResponseHeader: v0-1."""

from __future__ import annotations

from fencepost.wire.schema import field, message


@message(versions="0-1", flexible="1+")
class ResponseHeader:
    correlation_id: int = field("int32")
