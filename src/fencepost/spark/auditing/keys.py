"""The key of a record, from an expression.

    key            the record's key
    value          the whole value
    value:a.b      a field of a JSON value; key:a.b of a JSON key
    header:NAME    the last header of that name

A JSON string and a number are compared by their text, so that 17 and "17" are equal and 1.0 and 1
are not; an object or array by its JSON with sorted names. A record without the key, be it null,
absent or no JSON, cannot be matched: it is counted and not judged.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fencepost.base.failures import ConfigError

_FORMS: Final = "key, value, value:FIELD.FIELD, key:FIELD.FIELD or header:NAME"


@dataclass(frozen=True, slots=True)
class KeyExpression:
    """Where the key of a record is: a column, and what in it."""

    column: str
    path: tuple[str, ...] = ()
    """Names of nested fields of a JSON document, or one header; empty for the whole column."""

    def __str__(self) -> str:
        if not self.path:
            return self.column
        name = "header" if self.column == "headers" else self.column
        return f"{name}:{'.'.join(self.path)}"


def parse_key(text: str) -> KeyExpression:
    """Reads an expression; ConfigError lists the accepted forms."""
    column, colon, rest = text.strip().partition(":")
    if column == "header" and rest:
        return KeyExpression("headers", (rest,))
    if column not in ("key", "value") or bool(colon) != bool(rest):
        raise ConfigError(f"{text!r} is not a key: write {_FORMS}")
    path = tuple(rest.removeprefix("$.").split(".")) if rest else ()
    if not all(path):
        raise ConfigError(f"{text!r} has an empty field name: write {_FORMS}")
    return KeyExpression(column, path)


def keys_of(
    expression: KeyExpression, rows: pa.RecordBatch, *, is_compiled: bool = False
) -> pa.Array:
    """The keys of these records as a binary array; null where a record has none."""
    column, path = rows.column(expression.column), expression.path
    if not path:
        return column
    if expression.column == "headers":
        return pa.array([_header(path[0], each) for each in column.to_pylist()], pa.binary())
    if is_compiled and _is_text(column):
        return _compiled_fields(path, column)
    return pa.array([_field(path, each) for each in column.to_pylist()], pa.binary())


def _is_text(documents: pa.Array) -> bool:
    try:
        documents.cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return True


def _compiled_fields(path: tuple[str, ...], documents: pa.Array) -> pa.Array:
    from fencepost.spark.auditing.compiled_fields import compiled_fields

    found, unsure = compiled_fields(path, documents)
    if not len(unsure):
        return found
    mask = np.zeros(len(documents), bool)
    mask[unsure] = True
    exact = [_field(path, each) for each in documents.take(pa.array(unsure)).to_pylist()]
    return pc.replace_with_mask(found, pa.array(mask), pa.array(exact, pa.binary()))


def _header(name: str, headers: Sequence[dict[str, Any]] | None) -> bytes | None:
    for header in reversed(headers or ()):
        if header["key"] == name:
            value: bytes | None = header["value"]
            return value
    return None


def _field(path: tuple[str, ...], document: bytes | None) -> bytes | None:
    if document is None:
        return None
    try:
        # Numbers stay as they are written: a parsed one would lose digits.
        found = json.loads(document, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return None
    for name in path:
        if not isinstance(found, dict) or name not in found:
            return None
        found = found[name]
    return _canonical(found)


def _canonical(found: Any) -> bytes | None:
    if found is None:
        return None
    if isinstance(found, bool):
        return b"true" if found else b"false"
    text = found if isinstance(found, str) else _sorted_json(found)
    return text.encode("utf-8", "surrogatepass")


def _sorted_json(found: Any) -> str:
    return json.dumps(found, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def shown_key(key: bytes | None) -> str | None:
    """A key for people: its text, or hexadecimal if it is none."""
    if key is None:
        return None
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return f"0x{key.hex()}"
    return text if text.isprintable() else f"0x{key.hex()}"
