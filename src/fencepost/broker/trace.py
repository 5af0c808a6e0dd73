"""The trace: every request and reply as one line of JSON, without fields at their default.

    {"time_ms": ..., "client": "127.0.0.1:50312", "client_id": "rdkafka", "api": "EndTxn",
     "version": 1, "correlation_id": 7, "kind": "request", "transactional_id": "refunds-1",
     "producer_id": 1000, ...}

It shows the size of records, never their content, which may be confidential.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final, TextIO

from fencepost.base.errors import error_name
from fencepost.base.ids import topic_id_text
from fencepost.base.seams import Clock
from fencepost.broker.context import Context
from fencepost.wire.apis import API, ApiKey
from fencepost.wire.schema import Form

MAX_ITEMS: Final = 20
"""Items that are written of one array; a Metadata reply may have thousands."""

_SECRET: Final = frozenset({"auth_bytes", "protocols", "assignment", "metadata", "user_data"})


class Trace:
    """Writes to a file and flushes each line, so that it is complete after kill -9."""

    def __init__(self, clock: Clock, file: TextIO, broker_id: int | None = None) -> None:
        """`broker_id` is in every line of a file that several brokers write."""
        self._clock = clock
        self._file = file
        self._broker = {} if broker_id is None else {"broker": broker_id}

    def request(self, api: ApiKey, request: object, context: Context, client: str) -> None:
        """Writes a request."""
        self._write("request", api, request, context, client)

    def reply(self, api: ApiKey, reply: object, context: Context, client: str) -> None:
        """Writes a reply."""
        self._write("reply", api, reply, context, client)

    def _write(self, kind: str, api: ApiKey, body: object, context: Context, client: str) -> None:
        line = {
            "time_ms": self._clock.now_ms(),
            **self._broker,
            "client": client,
            "client_id": context.client_id,
            "api": API[api].name,
            "version": context.api_version,
            "correlation_id": context.correlation_id,
            "kind": kind,
            **plain(body),
        }
        self._file.write(json.dumps(line, separators=(",", ":")) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def plain(form: object) -> dict[str, Any]:
    """The fields of a form that differ from their defaults, as JSON values."""
    assert isinstance(form, Form)
    shown: dict[str, Any] = {}
    for field in form.form_fields:
        value = getattr(form, field.name)
        if value in (None, "", [], b"") or value == field.default:
            continue
        shown[field.name] = _value(field.name, value)
        if field.name == "error_code":
            shown["error"] = error_name(value)
    return shown


def _value(name: str, value: Any) -> Any:
    if isinstance(value, Form):
        return plain(value)
    if isinstance(value, list):
        items: Iterable[Any] = value[:MAX_ITEMS]
        shown = [_value(name, item) for item in items]
        return [*shown, f"and {len(value) - MAX_ITEMS} more"] if len(value) > MAX_ITEMS else shown
    if isinstance(value, (bytes, bytearray, memoryview)):
        if name.endswith("_id") and len(value) == 16:
            return topic_id_text(bytes(value))
        return f"{len(value)} bytes"
    return "hidden" if name in _SECRET else value
