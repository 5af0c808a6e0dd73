r"""Arrow batches in the text format of COPY, column by column and without a Python object per row.

    value, TAB, value, TAB, ..., number of the attempt, LF

Null is \N. In values, backslash, tab, LF and CR are escaped. So no value can look like the end of
the data, which the CSV format does not promise before PostgreSQL 18 (a line with `\.` alone inside
a quoted value). An array is `{a,NULL,"text"}`, and bytea is `\x` with hexadecimal digits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Sequence

_TEXT: Final = pa.large_string()
_ESCAPES: Final = (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r"))
_QUOTED_ESCAPES: Final = (("\\", "\\\\"), ('"', '\\"'))
_HEX: Final = np.array([b"%02x" % value for value in range(256)], dtype="S2")


def copy_text(columns: Sequence[Any], attempt: int) -> bytes:
    """The rows of these Arrow arrays, which are of one length."""
    texts = [_escaped(column) for column in columns]
    last = pa.scalar(f"{attempt}\n", _TEXT)
    rows = pc.binary_join_element_wise(
        *texts, last, pa.scalar("\t", _TEXT), null_handling="replace", null_replacement="\\N"
    )
    offsets, data = _parts(rows)
    return bytes(data[offsets[0] : offsets[-1]])


def _escaped(column: Any) -> Any:
    text = _text(column)
    return _replaced(text, _ESCAPES) if _may_have_specials(column.type) else text


def _may_have_specials(kind: Any) -> bool:
    return _is_text(kind) or _is_bytes(kind) or _is_list(kind)


def _text(column: Any) -> Any:
    """The text form of each value, as a client would write it in SQL."""
    kind = column.type
    if _is_list(kind):
        return _list_text(column)
    if _is_bytes(kind):
        return _bytes_text(column)
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        # By way of integers: Arrow is a hundred times slower if it looks at the zone.
        utc = column.cast(pa.int64()).cast(pa.timestamp(kind.unit))
        return _between("", utc.cast(_TEXT), "Z")
    return column.cast(_TEXT)


def _list_text(column: Any) -> Any:
    values = column.values
    text = _text(values)
    if _may_have_specials(values.type):
        text = _between('"', _replaced(text, _QUOTED_ESCAPES), '"')
    # The offsets of a slice lead into the values of the whole.
    lists = pa.LargeListArray.from_arrays(
        column.offsets.cast(pa.int64()), pc.fill_null(text, "NULL")
    )
    text = _between("{", pc.binary_join(lists, pa.scalar(",", _TEXT)), "}")
    return pc.if_else(column.is_valid(), text, pa.scalar(None, _TEXT))


def _bytes_text(column: Any) -> Any:
    offsets, data = _parts(column.cast(pa.large_binary()))
    digits = _HEX[data[offsets[0] : offsets[-1]]].tobytes()
    places = (offsets - offsets[0]) * 2
    values = pa.LargeStringArray.from_buffers(
        len(column), pa.py_buffer(places.tobytes()), pa.py_buffer(digits)
    )
    text = _between("\\x", values, "")
    return pc.if_else(column.is_valid(), text, pa.scalar(None, _TEXT))


def _parts(array: Any) -> tuple[Any, Any]:
    """The offsets of an array of large strings or bytes, and all bytes that they lead to."""
    _, offsets, data = array.buffers()
    places = np.frombuffer(offsets, np.int64) if offsets else np.zeros(1, np.int64)
    found = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    return places[array.offset : array.offset + len(array) + 1], found


def _between(before: str, text: Any, after: str) -> Any:
    ends = [pa.scalar(each, _TEXT) for each in (before, after, "")]
    return pc.binary_join_element_wise(ends[0], text, ends[1], ends[2])


def _replaced(text: Any, pairs: Sequence[tuple[str, str]]) -> Any:
    for pattern, replacement in pairs:
        text = pc.replace_substring(text, pattern, replacement)
    return text


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_bytes(kind: Any) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _is_list(kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))
