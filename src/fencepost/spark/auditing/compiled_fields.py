"""A field of JSON documents in compiled loops: where its text is.

The scanner walks through a whole document, follows one path of names, and returns the span of the
field's text if that text is the key as it stands: a string without escapes, a number, true or
false. It never guesses: whatever it does not know (an escape where it matters, a name of the path
that occurs twice, a field that is an object or array, deep nesting, a byte that does not belong
there) it leaves to the exact parser in `keys.py`, which is slower and decides. An audit with
Spark's `get_json_object` in its place has less than half the speed (docs/spark/audit.md).

    state    what may come next
    VALUE    a value
    FIRST    a value or the end of an array that has just begun
    NAME     a name
    BEGUN    a name or the end of an object that has just begun
    NEXT     a comma, or the end of the innermost object or array
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from fencepost.records.columns import Bytes, Ints, column_of, compiled, copy_bytes

ABSENT: Final = -1
UNSURE: Final = -2

_VALUE: Final = 0
_FIRST: Final = 1
_NAME: Final = 2
_BEGUN: Final = 3
_NEXT: Final = 4

_MAX_DEPTH: Final = 62
"""The kinds of the open objects and arrays are bits of one number."""

_QUOTE: Final = 0x22
_BACKSLASH: Final = 0x5C


@compiled
def _at(data: Bytes, position: int, end: int) -> int:
    """The byte at a position; 0, which JSON never has, behind the end."""
    return int(data[np.uintp(position)]) if position < end else 0


@compiled
def _skip_spaces(data: Bytes, position: int, end: int) -> int:
    while _at(data, position, end) in (0x20, 0x0A, 0x0D, 0x09):
        position += 1
    return position


@compiled
def _skip_string(data: Bytes, position: int, end: int) -> tuple[int, bool]:
    """From behind the opening quote to behind the closing one, and whether it has escapes."""
    has_escapes = False
    while position < end:
        byte = data[np.uintp(position)]
        if byte == _QUOTE:
            return position + 1, has_escapes
        if byte < 0x20:
            return UNSURE, has_escapes
        if byte == _BACKSLASH:
            has_escapes = True
            # The exact parser decides on \u.
            if _at(data, position + 1, end) not in (0x22, 0x5C, 0x2F, 0x62, 0x66, 0x6E, 0x72, 0x74):
                return UNSURE, has_escapes
            position += 1
        position += 1
    return UNSURE, has_escapes


@compiled
def _skip_digits(data: Bytes, position: int, end: int) -> int:
    while 0x30 <= _at(data, position, end) <= 0x39:
        position += 1
    return position


@compiled
def _skip_number(data: Bytes, position: int, end: int) -> int:
    if _at(data, position, end) == 0x2D:
        position += 1
    digits = _skip_digits(data, position, end)
    if digits == position or (data[np.uintp(position)] == 0x30 and digits > position + 1):
        return UNSURE
    position = digits
    if _at(data, position, end) == 0x2E:
        digits = _skip_digits(data, position + 1, end)
        if digits == position + 1:
            return UNSURE
        position = digits
    if _at(data, position, end) in (0x45, 0x65):
        position += 1
        if _at(data, position, end) in (0x2B, 0x2D):
            position += 1
        digits = _skip_digits(data, position, end)
        if digits == position:
            return UNSURE
        position = digits
    return position


@compiled
def _skip_word(data: Bytes, position: int, end: int) -> int:
    """Behind true, false or null."""
    for word in (b"true", b"false", b"null"):
        size = len(word)
        if position + size <= end:
            is_equal = True
            for i in range(size):
                if data[np.uintp(position + i)] != word[i]:
                    is_equal = False
            if is_equal:
                return position + size
    return UNSURE


@compiled
def _skip_scalar(data: Bytes, position: int, end: int) -> tuple[int, bool]:
    byte = _at(data, position, end)
    if byte == _QUOTE:
        return _skip_string(data, position + 1, end)
    if byte == 0x2D or 0x30 <= byte <= 0x39:
        return _skip_number(data, position, end), False
    return _skip_word(data, position, end), False


@compiled
def _is_name(data: Bytes, start: int, size: int, names: Bytes, ends: Ints, level: int) -> bool:
    first = ends[level - 1] if level else 0
    if size != ends[level] - first:
        return False
    for i in range(size):  # noqa: SIM110 - numba has no generators
        if data[np.uintp(start + i)] != names[np.uintp(first + i)]:
            return False
    return True


@compiled
def _find(  # noqa: C901 - one loop over one state is easier to follow than its parts
    data: Bytes, position: int, end: int, names: Bytes, ends: Ints
) -> tuple[int, int]:
    """Start and end of the field's text; ABSENT or UNSURE as the start."""
    found, found_end = ABSENT, 0
    depth, kinds = 0, 0  # A bit for each open object; 0 is an array.
    level = 0  # How many open objects are on the path.
    seen = 0  # A bit for each name of the path that was there.
    is_wanted = False  # Whether the next value is the field.
    is_step = False  # Whether it is an object on the path.
    state = _VALUE
    while True:
        position = _skip_spaces(data, position, end)
        byte = _at(data, position, end)
        if state in (_NAME, _BEGUN) and byte == _QUOTE:
            start = position + 1
            position, has_escapes = _skip_string(data, start, end)
            if position < 0 or has_escapes:
                return UNSURE, 0
            is_wanted = is_step = False
            # An object on the path is as deep as its level.
            if depth == level + 1 and _is_name(
                data, start, position - 1 - start, names, ends, level
            ):
                if seen >> level & 1:
                    return UNSURE, 0
                seen |= 1 << level
                is_wanted = level == len(ends) - 1
                is_step = not is_wanted
            position = _skip_spaces(data, position, end)
            if _at(data, position, end) != 0x3A:
                return UNSURE, 0
            position += 1
            state = _VALUE
        elif state in (_VALUE, _FIRST) and byte in (0x7B, 0x5B):
            if is_wanted or depth >= _MAX_DEPTH or (depth == 0 and byte == 0x5B):
                return UNSURE, 0
            if is_step and byte == 0x7B:
                level += 1
            is_step = False
            kinds = kinds << 1 | (1 if byte == 0x7B else 0)
            depth += 1
            position += 1
            state = _BEGUN if byte == 0x7B else _FIRST
        elif (byte == 0x7D and state in (_BEGUN, _NEXT) and depth and kinds & 1) or (
            byte == 0x5D and state in (_FIRST, _NEXT) and depth and not kinds & 1
        ):
            if byte == 0x7D and level and depth == level + 1:
                level -= 1
            depth -= 1
            kinds >>= 1
            position += 1
            state = _NEXT
            if depth == 0:
                is_over = _skip_spaces(data, position, end) == end
                return (found, found_end) if is_over else (UNSURE, 0)
        elif state == _NEXT and byte == 0x2C:
            position += 1
            state = _NAME if kinds & 1 else _VALUE
        elif state in (_VALUE, _FIRST) and depth:
            start = position
            position, has_escapes = _skip_scalar(data, start, end)
            if position < 0:
                return UNSURE, 0
            if is_wanted:
                if has_escapes:
                    return UNSURE, 0
                quotes = 1 if byte == _QUOTE else 0
                found, found_end = start + quotes, position - quotes
                if byte == 0x6E:
                    found = ABSENT
            is_wanted = is_step = False
            state = _NEXT
        else:
            return UNSURE, 0


@compiled
def _find_all(
    data: Bytes, offsets: Ints, nulls: Bytes, names: Bytes, ends: Ints, spans: Any
) -> None:
    for row in range(len(spans)):
        if nulls[row]:
            spans[row, 0] = ABSENT
        else:
            start, stop = _find(data, offsets[row], offsets[row + 1], names, ends)
            spans[row, 0] = start
            spans[row, 1] = stop


@compiled
def _gather(data: Bytes, spans: Ints, out: Bytes, ends: Any) -> None:
    position = 0
    for row in range(len(spans)):
        if spans[row, 0] >= 0:
            size = spans[row, 1] - spans[row, 0]
            copy_bytes(out, position, data, spans[row, 0], size)
            position += size
        ends[row + 1] = position


def compiled_fields(path: tuple[str, ...], documents: pa.Array) -> tuple[pa.Array, Ints]:
    """The fields of these documents, and the numbers of those that the exact parser must read.

    The documents are UTF-8; the caller has checked that.
    """
    column = column_of(documents, len(documents))
    encoded = [name.encode() for name in path]
    names = np.frombuffer(b"".join(encoded) + b" ", np.uint8)
    ends = np.cumsum([len(name) for name in encoded])
    spans = np.zeros((len(documents), 2), np.int64)
    _find_all(column.data, column.offsets, column.nulls, names, ends, spans)
    is_found = spans[:, 0] >= 0
    sizes = np.where(is_found, spans[:, 1] - spans[:, 0], 0)
    out = np.empty(int(sizes.sum()), np.uint8)
    starts = np.zeros(len(documents) + 1, np.int32)
    _gather(column.data, spans, out, starts)
    is_valid = pa.array(is_found).buffers()[1] if len(documents) else None
    keys = pa.Array.from_buffers(
        pa.binary(), len(documents), [is_valid, pa.py_buffer(starts), pa.py_buffer(out)]
    )
    return keys, np.flatnonzero(spans[:, 0] == UNSURE)
