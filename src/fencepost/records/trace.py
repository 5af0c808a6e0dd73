"""The trace format: every request and reply as one line of JSON.

`fencepost tap` and `fencepost serve --trace` write it; `fencepost tap show` reads it. The first
line names the format and its version; a file that several processes append to has one such line
per process. Every line has a `kind`:

    {"format": "fencepost-tap", "version": 1, "kind": "start", "source": "tap", ...}
    {"time_us": ..., "kind": "request", "connection": 3, "client": "127.0.0.1:50312",
     "client_id": "rdkafka", "broker": 1, "api": "EndTxn", "api_version": 1, "correlation_id": 7,
     "size_bytes": 61, "body": {"transactional_id": "refunds-1", "producer_id": 1000, ...}}
    {"time_us": ..., "kind": "reply", ..., "duration_us": 1830, "errors": [], "body": {...}}
    {"time_us": ..., "kind": "connection", "event": "opened", ...}

`body` has the fields of the message under their names in the protocol, in the shape of the newest
version, without those at their default. It never shows what may be confidential: of records it has
the sizes and batch headers, of logins nothing. A long array is cut after `MAX_ITEMS`.

`bytes`, which only `tap --bytes` writes, has the first bytes of a request without the same parts:

    "bytes": [{"at": 0, "hex": "00000039001a0003..."}, {"at": 2112, "hex": "..."}]
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from fencepost.base.errors import error_name
from fencepost.base.ids import topic_id_text
from fencepost.base.options import SECRET_WORDS
from fencepost.base.seams import Buffer
from fencepost.records.batch import HEADER_BYTES, BatchError, SealedBatch, read_header
from fencepost.wire.schema import SECRET_FIELDS, Field, Form

FORMAT: Final = "fencepost-tap"
VERSION: Final = 1

TAP_STOPPED: Final = "the tap was stopped"
"""Why a connection was closed: not by its client or its broker."""

MAX_ITEMS: Final = 20
"""Items that are written of one array, and batches of one partition; a Metadata reply may have
thousands."""

MAX_FORMS: Final = 2_000
"""Structs of one message that are looked at, those of cut arrays included: their errors count. A
Metadata reply with 20,000 partitions would stop the loop for a tenth of a second."""

CONFIDENTIAL: Final = SECRET_FIELDS | {"protocols", "assignment", "metadata", "user_data"}
"""Fields that are never shown: applications and logins may put confidential data there."""
_SECRET_SETTINGS: Final = (*SECRET_WORDS, "credential", "token")

Body = dict[str, Any]
Summaries = Iterator[Body]
"""Descriptions of the records fields of a message, in order, if they were cut out of it."""


def opening_line(source: str, now_us: int, **more: Any) -> Body:
    """Returns the first line of a trace."""
    opening = {"format": FORMAT, "version": VERSION, "kind": "start", "source": source}
    return {**opening, "time_us": now_us, **more}


def as_text(line: Body) -> str:
    """Returns a line as it is written, with its end."""
    return json.dumps(line, separators=(",", ":")) + "\n"


def describe_message(form: object, summaries: Summaries | None = None) -> tuple[Body, list[str]]:
    """Returns the body of a message, and the names of all errors in it, each once.

    `summaries` describes the records of a message from which they were cut; without it their batch
    headers are read here.
    """
    errors: dict[str, None] = {}
    body = _Description(errors, summaries).form(form)
    return body, list(errors)


def describe_size(form: object) -> tuple[Body, list[str]]:
    """The same, but of records it has the size only, and touches none of their bytes."""
    errors: dict[str, None] = {}
    return _Description(errors, None, reads_headers=False).form(form), list(errors)


def describe_batch(batch: SealedBatch) -> Body:
    """Returns what the header of a batch says about its producer."""
    described: Body = {"base_offset": batch.base_offset, "record_count": batch.record_count}
    if batch.has_producer_id:
        described["producer_id"] = batch.producer_id
        described["producer_epoch"] = batch.producer_epoch
        described["base_sequence"] = batch.base_sequence
    if batch.is_transactional:
        described["transactional"] = True
    if batch.is_control:
        described["control"] = True
    return described


def describe_records(data: Buffer) -> Body:
    """Returns the size of a records field and the headers of its first batches."""
    batches: list[Body] = []
    position = 0
    while len(data) - position >= HEADER_BYTES and len(batches) < MAX_ITEMS:
        try:
            batch = read_header(data, position)
        except BatchError:
            break  # An old message format, or no batch at all: its receiver will say so.
        batches.append(describe_batch(batch))
        position += batch.size_bytes
    described: Body = {"size_bytes": len(data)}
    if batches:
        described["batches"] = batches
    if position < len(data) and len(batches) == MAX_ITEMS:
        described["more_batches"] = True
    return described


class _Description:
    """One pass over a message."""

    def __init__(
        self, errors: dict[str, None], summaries: Summaries | None, *, reads_headers: bool = True
    ) -> None:
        self._errors = errors
        self._summaries = summaries
        self._reads_headers = reads_headers
        self._left = MAX_FORMS

    def form(self, form: object) -> Body:
        """The fields that differ from their defaults, as JSON values."""
        assert isinstance(form, Form)
        self._left -= 1
        shown: Body = {}
        for field in form.form_fields:
            value = getattr(form, field.name)
            if field.kind == "records":
                if value is not None:
                    shown[field.name] = self._records(value)
            elif _says_nothing(field, value):
                continue
            elif field.name.endswith("error_code"):
                self._error(field.name, value, shown)
            else:
                shown[field.name] = self._value(field.name, value)
        if "value" in shown and _is_secret_setting(shown.get("name")):
            shown["value"] = "hidden"
        return shown

    def _records(self, value: Any) -> Body:
        if self._summaries is not None:
            return next(self._summaries, {})
        if not self._reads_headers or not isinstance(value, (bytes, bytearray, memoryview)):
            return {"size_bytes": _size(value)}
        return describe_records(value)

    def _error(self, name: str, code: int, shown: Body) -> None:
        if code == 0:
            return
        self._errors[error_name(code)] = None
        shown[name] = code
        shown[name.removesuffix("_code")] = error_name(code)

    def _value(self, name: str, value: Any) -> Any:
        if isinstance(value, Form):
            return self.form(value)
        if name in CONFIDENTIAL:
            return "hidden"
        if isinstance(value, list):
            return self._items(name, value)
        if isinstance(value, (bytes, bytearray, memoryview)):
            if name.endswith("_id") and len(value) == 16:
                return topic_id_text(bytes(value))
            return f"{len(value)} bytes"
        return value

    def _items(self, name: str, values: list[Any]) -> list[Any]:
        shown = [self._value(name, item) for item in values[:MAX_ITEMS]]
        # The errors and records of the rest count too.
        for item in values[MAX_ITEMS:]:
            if not isinstance(item, Form):
                break
            if self._left < 0:
                # Not all are looked at, so the next summary is not that of the next records.
                self._summaries = None if self._summaries is None else iter(())
                break
            self.form(item)
        if len(values) > MAX_ITEMS:
            shown.append(f"and {len(values) - MAX_ITEMS} more")
        return shown


def _says_nothing(field: Field, value: Any) -> bool:
    """Whether a value is the default, or that of a field which newer versions have replaced."""
    if value in (None, "", [], b"") or value == field.default:
        return True
    if field.versions.endswith("+") and field.kind != "uuid" and field.name != "throttle_time_ms":
        return False
    return bool(value == field.default_value())


def _size(value: Any) -> int:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return len(value)
    return sum(len(chunk) for chunk in value)


def _is_secret_setting(name: object) -> bool:
    return isinstance(name, str) and any(word in name.lower() for word in _SECRET_SETTINGS)
