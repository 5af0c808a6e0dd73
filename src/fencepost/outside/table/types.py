r"""Which values fit which type of column. Pure.

Values arrive as text, so PostgreSQL would accept some pairs with a meaning that nobody intended: a
time with a zone in a column without one loses the zone, and a text that begins with `\x` becomes
other bytes. So a pair is allowed only if no value can change its meaning, and all others are
refused by name. Rounding to the declared digits of a column is PostgreSQL's rule for any INSERT,
and stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple


class Kind(Enum):
    """What a value is."""

    INTEGER = "integer"
    DECIMAL = "decimal"
    FLOAT = "float"
    DOUBLE = "double"
    BOOLEAN = "boolean"
    TEXT = "text"
    BYTES = "bytes"
    DATE = "date"
    INSTANT = "instant"
    """A time with a zone."""
    LOCAL_TIME = "local time"
    NULL = "null"
    """Always null: it fits everywhere."""


_OWN_TYPE: Final[Mapping[Kind, str]] = {
    Kind.INTEGER: "bigint",
    Kind.DECIMAL: "numeric",
    Kind.FLOAT: "real",
    Kind.DOUBLE: "double precision",
    Kind.BOOLEAN: "boolean",
    Kind.BYTES: "bytea",
    Kind.DATE: "date",
    Kind.INSTANT: "timestamptz",
    Kind.LOCAL_TIME: "timestamp",
}


class Value(NamedTuple):
    """The values of one column of the rows."""

    kind: Kind
    is_array: bool = False

    @property
    def own_type(self) -> str:
        """The type of a column that is made for these values."""
        return _OWN_TYPE.get(self.kind, "text") + ("[]" if self.is_array else "")


class ColumnType(NamedTuple):
    """The type of a column of the table."""

    name: str
    """The base type under PostgreSQL's internal name, such as `int4`; of an array, its element."""
    is_array: bool = False


_FITS: Final[Mapping[Kind, frozenset[str]]] = {
    Kind.INTEGER: frozenset({"int2", "int4", "int8", "numeric"}),
    Kind.DECIMAL: frozenset({"numeric"}),
    Kind.FLOAT: frozenset({"float4", "float8"}),
    Kind.DOUBLE: frozenset({"float8"}),
    Kind.BOOLEAN: frozenset({"bool"}),
    Kind.BYTES: frozenset({"bytea"}),
    Kind.DATE: frozenset({"date"}),
    Kind.INSTANT: frozenset({"timestamptz"}),
    Kind.LOCAL_TIME: frozenset({"timestamp"}),
}
_NOT_FROM_TEXT: Final = frozenset({"name", "char"}).union(*_FITS.values())
"""The types `name` and `"char"` cut a text that is too long, without an error."""


def fits(value: Value, column: ColumnType) -> bool:
    """Whether every such value keeps its meaning in the column, or is refused by the server."""
    if value.kind is Kind.NULL and not value.is_array:
        return True
    if value.is_array != column.is_array:
        return False
    if value.kind is Kind.NULL:
        return True
    if value.kind is Kind.TEXT:
        # json, uuid, enums, varchar and all the others have a text form of their own.
        return column.name not in _NOT_FROM_TEXT
    return column.name in _FITS[value.kind]
