"""The key of a record, from an expression.

    key            the record's key
    value          the whole value
    value:a.b      a field of a JSON value; key:a.b of a JSON key; value:* the whole document
    header:NAME    the last header of that name

and of a row of a table:

    column         a column
    column:a.b     a field of a JSON column
    *              the whole row, as JSON

A JSON string and a number are compared by their text, so that 17 and "17" are equal and 1.0 and 1
are not; an object or array by its JSON with sorted names. A record without the key, be it null,
absent or no JSON, cannot be matched: it is counted and not judged.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import numpy as np
import pyarrow as pa

from fencepost.base.failures import ConfigError

_FORMS: Final = "key, value, value:FIELD.FIELD, key:FIELD.FIELD or header:NAME"
_COLUMN_FORMS: Final = "COLUMN, COLUMN:FIELD.FIELD of a JSON column, or * for the whole row"
WHOLE: Final = "*"
"""A whole document, or a whole row."""
_DECODER: Final = json.JSONDecoder(parse_int=str, parse_float=str)
"""Numbers stay as they are written: a parsed one would lose digits."""
MIXER: Final = np.uint64(0x9E3779B97F4A7C15)
"""An odd number with well mixed bits."""
_NULL: Final = np.uint64(0x6E756C6C6E756C6C)
_GROUP: Final = 256
"""How many documents are parsed at once: fewer objects than start Python's garbage collector."""


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


def parse_column(text: str) -> KeyExpression:
    """Reads an expression for rows; ConfigError lists the accepted forms."""
    column, colon, rest = text.strip().partition(":")
    path = tuple(rest.removeprefix("$.").split(".")) if rest else ()
    if not column or bool(colon) != bool(rest) or not all(path) or (column == WHOLE and path):
        raise ConfigError(f"{text!r} is not a key of rows: write {_COLUMN_FORMS}")
    return KeyExpression(column, path)


def parse_field(text: str, *, is_table: bool) -> KeyExpression:
    """A name that is compared: `a.b` is a field of a JSON value, or of the JSON column `a`."""
    path = tuple(text.strip().split("."))
    if not all(path):
        raise ConfigError(f"{text!r} cannot be compared: write FIELD, FIELD.FIELD or {WHOLE}")
    return KeyExpression(path[0], path[1:]) if is_table else KeyExpression("value", path)


def keys_of(expression: KeyExpression, rows: pa.RecordBatch) -> pa.Array:
    """The keys of these records as a binary array; null where a record has none."""
    (found,) = columns_of([expression], rows)
    return found


def columns_of(expressions: Sequence[KeyExpression], rows: pa.RecordBatch) -> list[pa.Array]:
    """What these expressions find, each as a binary array. A document is parsed once."""
    paths: dict[str, dict[tuple[str, ...], list[bytes | None]]] = {}
    for each in expressions:
        if each.path and each.column != "headers":
            paths.setdefault(each.column, {})[each.path] = []
    for column, fields in paths.items():
        for document in _documents(rows.column(column)):
            for path, values in fields.items():
                values.append(_field(path, document))
    found = []
    for each in expressions:
        column = rows.column(each.column)
        if not each.path:
            found.append(column)
        elif each.column == "headers":
            values = [_header(each.path[0], headers) for headers in column.to_pylist()]
            found.append(pa.array(values, pa.binary()))
        else:
            found.append(pa.array(paths[each.column][each.path], pa.binary()))
    return found


def _documents(column: pa.Array) -> Iterator[Any]:
    values = column.to_pylist()
    groups = (values[at : at + _GROUP] for at in range(0, len(values), _GROUP))
    return chain.from_iterable(map(_parsed, groups))


def _header(name: str, headers: Sequence[dict[str, Any]] | None) -> bytes | None:
    for header in reversed(headers or ()):
        if header["key"] == name:
            value: bytes | None = header["value"]
            return value
    return None


def _parsed(documents: Sequence[bytes | None]) -> list[Any]:
    """JSON documents; None for what is none.

    One call for many documents takes half the time of one call for each. Between two of them stands
    a mark that no document can know: each of them was one value if every other value is the mark.
    """
    if len(documents) == 1:
        try:
            return [json.loads(documents[0] or b"null", parse_int=str, parse_float=str)]
        except (ValueError, RecursionError):
            return [None]
    mark = secrets.token_hex()
    text = f',"{mark}",'.encode().join(each or b"null" for each in documents)
    try:
        found: list[Any] = _DECODER.decode(f"[{text.decode()}]")
    except (ValueError, RecursionError):
        found = []
    if len(found) == 2 * len(documents) - 1 and found[1::2] == [mark] * (len(documents) - 1):
        return found[::2]
    middle = len(documents) // 2
    return _parsed(documents[:middle]) + _parsed(documents[middle:])


def _field(path: tuple[str, ...], found: Any) -> bytes | None:
    for name in () if path == (WHOLE,) else path:
        if not isinstance(found, dict) or name not in found:
            return None
        found = found[name]
    return _canonical(found)


def _canonical(found: Any) -> bytes | None:
    if found is None:
        return None
    if isinstance(found, bool):
        return b"true" if found else b"false"
    if not isinstance(found, str):
        found = json.dumps(found, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return str(found).encode("utf-8", "surrogatepass")


def hashes_of(keys: pa.Array, seed: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """128 bits of each key, as a row of two numbers; those of null keys mean nothing.

    Two keys count as equal if their hashes are. With 128 bits and a billion records the chance
    of one collision is about one in 10^21. The hash is pandas' SipHash of 64 bits, twice. Its seed
    is drawn once per audit, so no one can prepare keys that collide.
    """
    from pandas.util import hash_array

    values = keys.to_numpy(zero_copy_only=False)
    # SipHash takes a key of 16 bytes.
    halves = (f"{seed:016x}", f"{seed ^ 1:016x}")
    return np.column_stack([hash_array(values, hash_key=half, categorize=False) for half in halves])


def content_hashes(columns: Sequence[pa.Array], seed: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """64 bits of what is compared beside the key. What is null is equal to what is absent."""
    from pandas.util import hash_array

    found = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        values = column.to_numpy(zero_copy_only=False)
        words = hash_array(values, hash_key=f"{seed ^ 2:016x}", categorize=False)
        words[np.asarray(column.is_null())] = _NULL
        # The order of the columns counts.
        found = (found ^ words) * MIXER
    return found


def shown_key(key: bytes | None) -> str | None:
    """A key for people: its text, or hexadecimal if it is none."""
    if key is None:
        return None
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return f"0x{key.hex()}"
    return text if text.isprintable() else f"0x{key.hex()}"
