r"""Records as lines of text or JSON, in both directions.

A line of JSON is an object. All names may be left out when it is read:

    {"partition": 3, "offset": 17, "timestamp_ms": 1700000000000, "key": "k", "value": "v",
     "headers": [{"key": "trace", "value": "1"}]}

Text is UTF-8. Bytes that are not stand as base64 under "key_base64" and "value_base64" (in headers
"value_base64") instead; null is null, and the value null is a tombstone. A value that is an object
or a list is written as it stands in the line, character by character: numbers keep their digits.
Headers are a list, because a name may occur twice; an object of names and values is read, too. What
`consume --json` prints, `produce --json` reads: `topic` and `offset` are ignored.

A line of text has one field or several, separated by tabs. Bytes that would break a line or drive a
terminal are escaped as in Python (\n, \t, \\, \xff), and null is \N, so that no two records
look alike. Text in any script stays as it is.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import select
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from fencepost.base.failures import FencepostError
from fencepost.base.options import INT32_MAX, INT64_MAX, suggest
from fencepost.cli.units import moment_for_people
from fencepost.forensics.logs.record_rows import text_or_base64
from fencepost.records.opened import Record

NULL: Final = "\\N"
_CHUNK_BYTES: Final = 1 << 16
_PAUSE_SECONDS: Final = 0.005
"""A pause is longer than this; Kafka's producers linger as long."""


class LineError(FencepostError):
    """A line that is not a record; the message is the end of a sentence."""


class InputRecord(NamedTuple):
    """A record to write, and its partition if the line names one."""

    record: Record
    partition: int | None = None


# Reading.


def read_lines(descriptor: int) -> Iterator[bytes | None]:
    """Yields lines without their end, and None whenever the input pauses.

    A record that a person types, or that `tail -f` prints, must not wait for a full batch: at a
    pause the writer sends what it has. The last line need not have an end.
    """
    unfinished: list[bytes] = []
    while True:
        if not select.select([descriptor], [], [], _PAUSE_SECONDS)[0]:
            yield None
        chunk = os.read(descriptor, _CHUNK_BYTES)
        if not chunk:
            break
        head, *rest = chunk.split(b"\n")
        unfinished.append(head)
        if rest:
            yield b"".join(unfinished)
            yield from rest[:-1]
            unfinished = [rest[-1]]
    if last := b"".join(unfinished):
        yield last


ReadLine = Callable[[bytes], InputRecord]


def text_reader(key_separator: str | None, null: str | None) -> ReadLine:
    """Returns a reader of lines that are values, or keys and values with a separator between."""
    separator = None if key_separator is None else key_separator.encode()
    marker = None if null is None else null.encode()

    def field(data: bytes) -> bytes | None:
        return None if data == marker else data

    def read(line: bytes) -> InputRecord:
        if separator is None:
            return InputRecord(Record(value=field(line)))
        key, found, value = line.partition(separator)
        if not found:
            raise LineError(f"it has no key separator {key_separator!r}")
        return InputRecord(Record(key=field(key), value=field(value)))

    return read


_NAMES: Final = frozenset(
    {
        "key", "key_base64", "value", "value_base64", "headers", "partition", "timestamp_ms",
        "topic", "offset",
    }
)  # fmt: skip


def read_json(line: bytes) -> InputRecord:
    """Reads a line of JSON."""
    try:
        text = line.decode("utf-8-sig")
        given = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as problem:
        reason = "it is not UTF-8" if isinstance(problem, UnicodeDecodeError) else str(problem)
        raise LineError(f"it is not JSON: {reason}") from problem
    if not isinstance(given, dict):
        raise LineError('it is not a JSON object such as {"key": "k", "value": "v"}')
    for name in given:
        if name not in _NAMES:
            raise LineError(f"it has the unknown field {name!r}{suggest(name, _NAMES)}")
    if isinstance(given.get("value"), (dict, list)):
        given["value"] = _source(text, "value")
    time = _whole(given, "timestamp_ms", INT64_MAX)
    record = Record(
        timestamp_ms=-1 if time is None else time,
        key=_bytes(given, "key"),
        value=_bytes(given, "value", "a text, an object, a list or null"),
        headers=_headers(given.get("headers")),
    )
    return InputRecord(record, _whole(given, "partition", INT32_MAX))


def _refuse_constant(name: str) -> None:
    """Python reads NaN and Infinity, which other readers of JSON refuse."""
    raise ValueError(f"{name} is not a value of JSON")


_DECODER: Final = json.JSONDecoder()


def _source(line: str, wanted: str) -> str:
    """Returns the value of a member of the object in a line, as it is written there."""
    at, found = line.index("{") + 1, ""
    while True:
        name, at = _DECODER.raw_decode(line, _skip_space(line, at))
        start = _skip_space(line, line.index(":", at) + 1)
        _, end = _DECODER.raw_decode(line, start)
        if name == wanted:
            found = line[start:end]  # As json does, the last one counts.
        at = _skip_space(line, end)
        if line[at] == "}":
            return found
        at += 1


def _skip_space(line: str, at: int) -> int:
    while line[at] in " \t\r\n":
        at += 1
    return at


def _whole(given: Mapping[str, Any], name: str, most: int) -> int | None:
    value = given.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise LineError(f"its {name} is {value!r}, and must be a whole number from 0")
    return value


def _bytes(given: Mapping[str, Any], name: str, kinds: str = "a text or null") -> bytes | None:
    text, encoded = given.get(name), given.get(f"{name}_base64")
    if text is not None and encoded is not None:
        raise LineError(f"it has both {name} and {name}_base64")
    if encoded is not None:
        return _from_base64(encoded, f"{name}_base64")
    if text is None:
        return None
    if not isinstance(text, str):
        raise LineError(f"its {name} is {json.dumps(text)}, and must be {kinds}")
    return _encode(text, name)


def _encode(text: str, name: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as problem:
        raise LineError(f"its {name} has half of a surrogate pair, which no text has") from problem


def _from_base64(encoded: Any, name: str) -> bytes:
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, TypeError, ValueError) as problem:
        raise LineError(f"its {name} is not base64: {problem}") from problem


def _headers(given: Any) -> tuple[tuple[str, bytes | None], ...]:
    if given is None:
        return ()
    if isinstance(given, dict):
        given = [{"key": name, "value": value} for name, value in given.items()]
    if not isinstance(given, list):
        raise LineError("its headers are neither a list nor an object")
    return tuple(_header(each) for each in given)


def _header(given: Any) -> tuple[str, bytes | None]:
    if not isinstance(given, dict) or not isinstance(given.get("key"), str):
        raise LineError('it has a header that is not {"key": "name", "value": "text"}')
    _encode(given["key"], "header")
    return given["key"], _bytes(given, "value")


# Writing.


def as_json(topic: str, partition: int, record: Record) -> dict[str, Any]:
    """Returns the fields of a record for a line of JSON."""
    return {
        "topic": topic,
        "partition": partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        **text_or_base64("key", record.key),
        **text_or_base64("value", record.value),
        "headers": [
            {"key": name, **text_or_base64("value", value)} for name, value in record.headers
        ],
    }


FIELDS: Final = ("partition", "offset", "timestamp", "key", "headers", "value")
"""What a line of text can show."""


def as_text(fields: tuple[str, ...], partition: int, record: Record) -> bytes:
    """Returns a line of text without its end."""
    return "\t".join(_text(field, partition, record) for field in fields).encode()


def as_raw(fields: tuple[str, ...], partition: int, record: Record) -> bytes:
    """The same with keys and values as they are; a null is empty."""
    raw = {"key": record.key or b"", "value": record.value or b""}
    return b"\t".join(
        raw[field] if field in raw else _text(field, partition, record).encode() for field in fields
    )


def _text(field: str, partition: int, record: Record) -> str:
    match field:
        case "partition":
            return str(partition)
        case "offset":
            return str(record.offset)
        case "timestamp":
            return "-" if record.timestamp_ms < 0 else moment_for_people(record.timestamp_ms)
        case "headers":
            pairs = (f"{escape(name.encode())}={escape(value)}" for name, value in record.headers)
            return ",".join(pairs) or "-"
        case "key":
            return escape(record.key)
        case _:
            return escape(record.value)


def escape(data: bytes | None) -> str:
    """Returns text in which no byte breaks a line or drives a terminal."""
    if data is None:
        return NULL
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = data.decode(errors="surrogateescape")
    is_plain = text.isprintable() and "\\" not in text
    return text if is_plain else "".join(map(_escape_character, text))


_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\\": "\\\\"}


def _escape_character(character: str) -> str:
    if found := _SHORT.get(character):
        return found
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:
        # A byte that is not UTF-8.
        return f"\\x{code - 0xDC00:02x}"
    if character == " " or unicodedata.category(character)[0] not in "CZ":
        return character
    if code < 0x80:
        return f"\\x{code:02x}"
    # U+0085 is the character 85; the byte 85 alone is not UTF-8, and shows as \x85.
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
