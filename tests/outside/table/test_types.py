"""Which values fit which column: no pair is allowed in which a value could change its meaning."""

from __future__ import annotations

import pytest

from fencepost.outside.table.types import ColumnType, Kind, Value, fits

NAMES = (
    *("int2", "int4", "int8", "numeric", "float4", "float8", "bool", "bytea", "date"),
    *("timestamp", "timestamptz", "text", "varchar", "json", "jsonb", "uuid", "interval", "mood"),
    *("name", "char"),
)
ALLOWED = {
    Kind.INTEGER: {"int2", "int4", "int8", "numeric"},
    Kind.DECIMAL: {"numeric"},
    Kind.FLOAT: {"float4", "float8"},
    Kind.DOUBLE: {"float8"},
    Kind.BOOLEAN: {"bool"},
    Kind.TEXT: {"text", "varchar", "json", "jsonb", "uuid", "interval", "mood"},
    Kind.BYTES: {"bytea"},
    Kind.DATE: {"date"},
    Kind.INSTANT: {"timestamptz"},
    Kind.LOCAL_TIME: {"timestamp"},
    Kind.NULL: set(NAMES),
}


@pytest.mark.parametrize("kind", Kind)
def test_a_value_fits_the_columns_that_keep_its_meaning_and_no_other(kind: Kind) -> None:
    assert {name for name in NAMES if fits(Value(kind), ColumnType(name))} == ALLOWED[kind]


def test_an_array_fits_an_array_of_what_its_elements_fit() -> None:
    assert fits(Value(Kind.INTEGER, is_array=True), ColumnType("int4", is_array=True))
    assert not fits(Value(Kind.INTEGER, is_array=True), ColumnType("text", is_array=True))
    assert not fits(Value(Kind.INTEGER, is_array=True), ColumnType("int4"))
    assert not fits(Value(Kind.INTEGER), ColumnType("int4", is_array=True))


def test_the_type_of_an_own_column_fits_its_values() -> None:
    internal = {"bigint": "int8", "real": "float4", "double precision": "float8"}
    for kind in Kind:
        own = Value(kind).own_type
        assert fits(Value(kind), ColumnType(internal.get(own, own.replace("boolean", "bool"))))
