"""Schemas, written once as Spark's DDL and read as Arrow's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

import pyarrow as pa

HEADERS: Final = "array<struct<key:string,value:binary>>"
_ARROW_TYPES: Final[dict[str, pa.DataType]] = {
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    # Spark calls the items of a list "element" and checks the name.
    "array<string>": pa.list_(pa.field("element", pa.string())),
    HEADERS: pa.list_(
        pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())]))
    ),
}


def columns_in(ddl: str) -> dict[str, str]:
    """The types by the names of `name type, name type`."""
    return dict(column.split(" ") for column in ddl.split(", "))


def ddl_of(types: Mapping[str, str], names: Sequence[str]) -> str:
    """The schema of some of these columns for Spark."""
    return ", ".join(f"{name} {types[name]}" for name in names)


def schema_of(types: Mapping[str, str], names: Sequence[str]) -> pa.Schema:
    """The same schema for Arrow."""
    return arrow_schema(ddl_of(types, names))


@lru_cache
def arrow_schema(ddl: str) -> pa.Schema:
    """This schema for Arrow."""
    return pa.schema([(name, _ARROW_TYPES[kind]) for name, kind in columns_in(ddl).items()])
