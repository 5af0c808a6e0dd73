"""The columns of a DataFrame as values for PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fencepost.outside.table.types import Kind, Value
from fencepost.spark.failures import SinkRefused

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

_KINDS: Final = {
    "boolean": Kind.BOOLEAN,
    "byte": Kind.INTEGER,
    "short": Kind.INTEGER,
    "integer": Kind.INTEGER,
    "long": Kind.INTEGER,
    "decimal": Kind.DECIMAL,
    "float": Kind.FLOAT,
    "double": Kind.DOUBLE,
    "string": Kind.TEXT,
    "binary": Kind.BYTES,
    "date": Kind.DATE,
    "timestamp": Kind.INSTANT,
    "timestamp_ntz": Kind.LOCAL_TIME,
    "void": Kind.NULL,
}
"""By the names that `DataType.typeName` gives."""


def values_of(schema: StructType) -> dict[str, Value]:
    """The columns; SinkRefused names one that PostgreSQL has no type for."""
    found: dict[str, Value] = {}
    for field in schema.fields:
        if field.name in found:
            raise SinkRefused(
                f"the DataFrame has two columns {field.name!r}: rename or drop one. Nothing was "
                "written"
            )
        found[field.name] = _value_of(field.name, field.dataType)
    if not found:
        raise SinkRefused("the DataFrame has no columns. Nothing was written")
    return found


def _value_of(name: str, kind: DataType) -> Value:
    from pyspark.sql.types import ArrayType

    is_array = isinstance(kind, ArrayType)
    element = kind.elementType if isinstance(kind, ArrayType) else kind
    found = _KINDS.get(element.typeName())
    if found is None:
        raise SinkRefused(
            f"column {name!r} is {kind.simpleString()}, which has no type in PostgreSQL: "
            f"select its parts, or to_json({name}) into a column of type jsonb. Nothing was written"
        )
    return Value(found, is_array)
