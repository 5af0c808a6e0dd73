"""The types of Spark: each has a kind of value, or is refused by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fencepost.outside.table.types import Kind, Value
from fencepost.spark.failures import SinkRefused
from fencepost.spark.postgres.columns import values_of

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

types: Any = pytest.importorskip("pyspark.sql.types")


def schema(*kinds: DataType) -> StructType:
    found: StructType = types.StructType(
        [types.StructField(f"c{place}", kind) for place, kind in enumerate(kinds)]
    )
    return found


def test_every_type_with_a_counterpart_has_its_kind() -> None:
    kinds = {
        types.ByteType(): Kind.INTEGER,
        types.ShortType(): Kind.INTEGER,
        types.IntegerType(): Kind.INTEGER,
        types.LongType(): Kind.INTEGER,
        types.DecimalType(38, 18): Kind.DECIMAL,
        types.FloatType(): Kind.FLOAT,
        types.DoubleType(): Kind.DOUBLE,
        types.BooleanType(): Kind.BOOLEAN,
        types.StringType(): Kind.TEXT,
        types.BinaryType(): Kind.BYTES,
        types.DateType(): Kind.DATE,
        types.TimestampType(): Kind.INSTANT,
        types.TimestampNTZType(): Kind.LOCAL_TIME,
        types.NullType(): Kind.NULL,
    }
    assert list(values_of(schema(*kinds)).values()) == [Value(kind) for kind in kinds.values()]
    arrays = [types.ArrayType(kind) for kind in kinds]
    assert list(values_of(schema(*arrays)).values()) == [
        Value(kind, is_array=True) for kind in kinds.values()
    ]


@pytest.mark.parametrize(
    "kind",
    [
        types.StructType([types.StructField("x", types.IntegerType())]),
        types.MapType(types.StringType(), types.IntegerType()),
        types.ArrayType(types.ArrayType(types.IntegerType())),
        types.DayTimeIntervalType(),
    ],
    ids=str,
)
def test_a_type_without_one_is_refused_by_name(kind: DataType) -> None:
    with pytest.raises(SinkRefused) as problem:
        values_of(schema(types.IntegerType(), kind))
    assert f"column 'c1' is {kind.simpleString()}, which has no type" in str(problem.value)


def test_columns_of_one_name_and_no_columns_are_refused() -> None:
    twice = [types.StructField("n", types.IntegerType())] * 2
    with pytest.raises(SinkRefused, match="two columns 'n'"):
        values_of(types.StructType(twice))
    with pytest.raises(SinkRefused, match="no columns"):
        values_of(schema())
