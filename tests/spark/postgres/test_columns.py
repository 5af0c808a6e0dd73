"""The types of Spark: each has a kind of value, or is refused by name."""

from __future__ import annotations

import pytest

from fencepost.outside.table.types import Kind, Value
from fencepost.spark.failures import SinkRefused

types = pytest.importorskip("pyspark.sql.types")


def values_of(schema: str) -> dict[str, Value]:
    from fencepost.spark.postgres.columns import values_of

    return values_of(types.StructType.fromDDL(schema) if schema else types.StructType())


def test_every_type_with_a_counterpart_has_its_kind() -> None:
    found = values_of(
        "a BYTE, b SHORT, c INT, d LONG, e DECIMAL(38,18), f FLOAT, g DOUBLE, h BOOLEAN, i STRING,"
        "j BINARY, k DATE, l TIMESTAMP, m TIMESTAMP_NTZ, n VARCHAR(3), o ARRAY<STRING>, p VOID"
    )
    kinds = [
        *[Kind.INTEGER] * 4,
        *(Kind.DECIMAL, Kind.FLOAT, Kind.DOUBLE, Kind.BOOLEAN, Kind.TEXT, Kind.BYTES, Kind.DATE),
        *(Kind.INSTANT, Kind.LOCAL_TIME, Kind.TEXT, Kind.TEXT, Kind.NULL),
    ]
    assert [value.kind for value in found.values()] == kinds
    assert [name for name, value in found.items() if value.is_array] == ["o"]


@pytest.mark.parametrize(
    "kind", ["STRUCT<x: INT>", "MAP<STRING, INT>", "ARRAY<ARRAY<INT>>", "INTERVAL DAY TO SECOND"]
)
def test_a_type_without_one_is_refused_by_name(kind: str) -> None:
    with pytest.raises(SinkRefused, match="column 'odd' is .*which has no type in PostgreSQL"):
        values_of(f"id INT, odd {kind}")


def test_columns_of_one_name_and_no_columns_are_refused() -> None:
    with pytest.raises(SinkRefused, match="two columns 'n'"):
        values_of("n INT, n INT")
    with pytest.raises(SinkRefused, match="no columns"):
        values_of("")
