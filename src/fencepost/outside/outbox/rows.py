"""From a row of the outbox table, or a message in the log, to a record. Pure.

A table. Columns go by their names, the first that the table has; Debezium's are among them. The
topic column may hold a part of the name, which `topic` completes: `outbox.event.*`. A template
without `*` is the topic of all rows, and needs no column.

    topic      topic, aggregatetype
    key        key, aggregateid           optional; null: any partition
    value      value, payload             null: a tombstone
    headers    headers                    optional; a JSON object
    and        id, type                   optional; each is a header of that name

A message. Its content is JSON with "topic", "key", "value" and "headers", all but the topic
optional. A value that is not a string is written as JSON; "key_base64" and "value_base64" hold
bytes.

`bytea` values are bytes; all others are their text in UTF-8.

A row for a topic that cannot exist, or that only brokers write to, is no record: unlike a row for a
topic that somebody may still create, it would stop the relay for ever.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from fencepost.base.arguments import checked
from fencepost.base.ids import INTERNAL_TOPICS
from fencepost.base.limits import MAX_TOPIC_NAME_LENGTH
from fencepost.outside.failures import OutsideError
from fencepost.records.opened import Headers, Record

BYTEA: Final = 17
"""The oid of the type, the same in every database."""

TOPIC_COLUMNS: Final = ("topic", "aggregatetype")
KEY_COLUMNS: Final = ("key", "aggregateid")
VALUE_COLUMNS: Final = ("value", "payload")
HEADERS_COLUMN: Final = "headers"
HEADER_COLUMNS: Final = ("id", "type")


class RowRefused(OutsideError):  # noqa: N818 - named for what is the case
    """A row cannot be written to its topic, now or later."""

    code = "UNREADABLE"
    """Short, for programs."""


class Unreadable(RowRefused):
    """A row or message is not a record."""

    raw = Record()
    """What could be read."""


class ColumnsMissing(OutsideError):  # noqa: N818 - named for what is the case
    """The table cannot be an outbox."""


_TOPIC_NAME: Final = re.compile(rf"[a-zA-Z0-9._-]{{1,{MAX_TOPIC_NAME_LENGTH}}}")


@lru_cache(maxsize=1_024)  # It is asked for each row.
def is_topic(name: str) -> bool:
    """Whether a topic of this name can exist and be written to."""
    is_reserved = name in (".", "..") or name in INTERNAL_TOPICS
    return _TOPIC_NAME.fullmatch(name) is not None and not is_reserved


class Outgoing(NamedTuple):
    """A record and its topic."""

    topic: str
    record: Record


@checked
class ColumnNames(NamedTuple):
    """Columns that were named explicitly; None: those of the module docstring."""

    topic: str | None = None
    key: str | None = None
    value: str | None = None


USUAL: Final = ColumnNames()


class TableMapping:
    """Reads the rows of one version of a table."""

    def __init__(
        self,
        table: str,
        columns: Sequence[tuple[str, int]],
        named: ColumnNames = USUAL,
        template: str = "*",
    ) -> None:
        """`columns` are names and type oids; ColumnsMissing says what is missing."""
        self._width = len(columns)
        self._template = template
        self._names = [name for name, _ in columns]
        is_fixed = "*" not in template
        if is_fixed and not is_topic(template):
            raise ColumnsMissing(f"no topic can be called {template!r}: correct --topic")
        self._topic = None if is_fixed else self._find(table, named.topic, TOPIC_COLUMNS)
        self._key = self._find(table, named.key, KEY_COLUMNS, is_optional=True)
        value = self._find(table, named.value, VALUE_COLUMNS)
        assert value is not None
        self._value = value
        self._headers = self._find(table, None, (HEADERS_COLUMN,), is_optional=True)
        self._others = {name: i for i, name in enumerate(self._names) if name in HEADER_COLUMNS}
        carried = {self._key, self._value, *self._others.values()}
        self._hex = [i for i, (_, oid) in enumerate(columns) if oid == BYTEA and i in carried]

    def _find(
        self, table: str, named: str | None, usual: Sequence[str], *, is_optional: bool = False
    ) -> int | None:
        names = [named] if named is not None else usual
        for name in names:
            if name in self._names:
                return self._names.index(name)
        if is_optional and named is None:
            return None
        wanted = " or ".join(map(repr, names))
        raise ColumnsMissing(
            f"table {table} has no column {wanted}, but {', '.join(self._names)}: add it, or name "
            "another one with --topic-column, --key-column or --value-column"
        )

    @property
    def columns(self) -> list[str]:
        """All columns that become a part of the record."""
        used = (self._topic, self._key, self._value, self._headers, *self._others.values())
        return [self._names[index] for index in used if index is not None]

    @property
    def key_column(self) -> str | None:
        """The column that becomes the key; None if there is none."""
        return None if self._key is None else self._names[self._key]

    def read(self, values: Sequence[bytes | None]) -> Outgoing:
        """The record of a row; Unreadable says why there is none."""
        try:
            return self._read(values)
        except Unreadable as problem:
            if len(values) == self._width:
                key = None if self._key is None else values[self._key]
                problem.raw = Record(key=key, value=values[self._value])
            raise

    def _read(self, values: Sequence[bytes | None]) -> Outgoing:
        if len(values) != self._width:
            raise Unreadable(f"it has {len(values)} columns instead of {self._width}")
        if self._hex:
            values = self._with_bytes(values)
        topic = self._template
        if self._topic is not None:
            part = values[self._topic]
            if not part:
                raise Unreadable(f"its column {self._names[self._topic]!r} is empty")
            topic = self._template.replace("*", part.decode("utf-8", "replace"))
            _require_topic(topic)
        headers: list[tuple[str, bytes | None]] = []
        for name, index in self._others.items():
            if (part := values[index]) is not None:
                headers.append((name, part))
        if self._headers is not None and (text := values[self._headers]) is not None:
            headers += _headers_of(_parsed(text))
        key = None if self._key is None else values[self._key]
        record = Record(key=key, value=values[self._value], headers=tuple(headers))
        return Outgoing(topic, record)

    def _with_bytes(self, values: Sequence[bytes | None]) -> Sequence[bytes | None]:
        found = list(values)
        for index in self._hex:
            value = values[index]
            if value is None:
                continue
            if not value.startswith(b"\\x"):
                raise Unreadable(f"its column {self._names[index]!r} is not hexadecimal")
            found[index] = bytes.fromhex(value[2:].decode())
        return found


def read_message(content: bytes) -> Outgoing:
    """The record in a message; Unreadable says why there is none."""
    try:
        return _read_message(content)
    except Unreadable as problem:
        problem.raw = Record(value=content)
        raise


def _read_message(content: bytes) -> Outgoing:
    fields = _parsed(content)
    if not isinstance(fields, dict):
        raise Unreadable("its content is not a JSON object")
    topic = fields.get("topic")
    if not isinstance(topic, str) or isinstance(topic, _Fraction) or not topic:
        raise Unreadable('its JSON has no "topic"')
    _require_topic(topic)
    headers = _headers_of(fields["headers"]) if fields.get("headers") is not None else ()
    record = Record(key=_field(fields, "key"), value=_field(fields, "value"), headers=headers)
    return Outgoing(topic, record)


def _require_topic(name: str) -> None:
    is_short = len(name) <= MAX_TOPIC_NAME_LENGTH  # Longer ones do not belong into the cache.
    if not (is_short and is_topic(name)):
        shown = name if is_short else name[:20] + "..."
        raise Unreadable(f"no record can be written to a topic {shown!r}")


class _Fraction(str):
    """A number with a fraction or an exponent, as it was written: 1.50 is not 1.5 to everybody."""

    __slots__ = ()


def _parsed(text: bytes) -> Any:
    try:
        return json.loads(text, parse_float=_Fraction)
    except (ValueError, RecursionError) as problem:
        raise Unreadable(f"it is not JSON: {problem}") from problem


def _field(fields: Mapping[str, Any], name: str) -> bytes | None:
    if (encoded := fields.get(f"{name}_base64")) is not None:
        try:
            return base64.b64decode(encoded, validate=True)
        except (TypeError, ValueError) as problem:
            raise Unreadable(f'its "{name}_base64" is not base64: {problem}') from problem
    value = fields.get(name)
    return None if value is None else _encoded(value)


def _encoded(value: Any) -> bytes:
    try:
        return (value if isinstance(value, str) else _json_text(value)).encode()
    except UnicodeEncodeError as problem:
        raise Unreadable(f"it has half a surrogate pair: {problem}") from problem
    except RecursionError as problem:
        raise Unreadable("its JSON is nested too deeply") from problem


def _json_text(value: Any) -> str:
    """JSON with the fractions as they were written, which json.dumps would quote."""
    if isinstance(value, _Fraction):
        return value
    if not _has_fraction(value):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, dict):
        fields = (f"{_json_text(name)}: {_json_text(each)}" for name, each in value.items())
        return f"{{{', '.join(fields)}}}"
    return f"[{', '.join(map(_json_text, value))}]"


def _has_fraction(value: Any) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return any(map(_has_fraction, value))
    return isinstance(value, _Fraction)


def _headers_of(fields: Any) -> Headers:
    if not isinstance(fields, dict):
        raise Unreadable("its headers are not a JSON object")
    return tuple(
        (_encoded(name).decode(), None if value is None else _encoded(value))
        for name, value in fields.items()
    )
