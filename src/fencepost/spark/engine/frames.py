"""The columns of DataFrames without asking Spark, which costs a call into the JVM each time."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from fencepost.spark.engine.private_names import ARROW, COLUMNS
from fencepost.spark.failures import SinkRefused

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


def spark_columns(columns: pa.Schema) -> StructType:
    """The same columns with Spark's types, without asking Spark."""
    with ARROW.optional():
        from pyspark.sql.pandas import types

        found: StructType = getattr(types, ARROW.convert)(columns)
        return found
    raise SinkRefused(
        "this PySpark does not show its types for those of Arrow, which route() needs: use a "
        "version that fencepost was tried with. Nothing was written"
    )


def know_columns(df: DataFrame, columns: StructType) -> None:
    """Saves mapInArrow the request for its columns, of which it needs only the names.

    If the attribute does not exist, mapInArrow asks Spark, which fails in the function of a flow.
    """
    with suppress(AttributeError):
        setattr(df, COLUMNS.known, columns)
