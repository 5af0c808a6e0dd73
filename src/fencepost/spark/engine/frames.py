"""Shortcuts through PySpark's DataFrames: columns without asking Spark, and a quick collect.

`DataFrame.collect` finds the call site, makes a DataFrame for every step, and reads the address of
its socket element by element: a dozen calls into the JVM, in a batch of some milliseconds.
"""

from __future__ import annotations

import re
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any, Final

from fencepost.spark.engine.private_names import ARROW, COLLECT, COLUMNS, JVM
from fencepost.spark.engine.session import changed_setting
from fencepost.spark.engine.versions import is_before_4
from fencepost.spark.failures import SinkRefused

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa
    from pyspark.sql import DataFrame, Row
    from pyspark.sql.conf import RuntimeConfig
    from pyspark.sql.types import StructType

_ALL: Final = str(2**31 - 1)
_PORT_AND_SECRET: Final = re.compile(r"\[(\d+), ([^,\s]+),")
"""The start of an array with the address of Spark's socket; a Unix socket has a path there."""


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


class QuickCollect:
    """Collects rows in all batches of one run of a query."""

    def __init__(self, casts: Callable[[StructType], list[str] | None]) -> None:
        self._find_casts = casts
        """The expressions to select instead of such columns; None: the columns themselves."""
        self._types: str | None = None
        """Columns and types of the last batch: the user's function may change them."""
        self._casts: Any = None
        """The expressions for them, as a Seq of the JVM."""
        self._settings: RuntimeConfig | None = None
        """The settings of the query's session, which is the same in all batches of a run."""
        self._array_text: Any = None
        """`java.util.Arrays.toString`, looked up once."""

    def collect(self, df: DataFrame, limit: int) -> list[Row]:
        """The first rows."""
        if self._settings is None:
            self._settings = df.sparkSession.conf
        # Spark would run the first partition alone, and then the others. All of them must run: an
        # operator that keeps state writes it at the end of its partition.
        with changed_setting(self._settings, COLLECT.first, _ALL):
            with COLLECT.optional():
                return self._collect_quickly(df, limit)
            casts = self._find_casts(df.schema)
            return (df if casts is None else df.selectExpr(*casts)).limit(limit).collect()

    def _collect_quickly(self, df: DataFrame, limit: int) -> list[Row]:
        """Looks up every name before the job, so that without one of them the plan runs once."""
        from pyspark import rdd, util
        from pyspark.serializers import BatchedSerializer, CPickleSerializer

        load = getattr(rdd if is_before_4() else util, COLLECT.load)
        serializer = BatchedSerializer(CPickleSerializer())  # type: ignore[no-untyped-call]
        if self._array_text is None:
            jvm = getattr(df.sparkSession.sparkContext, JVM.gateway)
            self._array_text = jvm.java.util.Arrays.toString
        java = getattr(df, JVM.frame)
        types = str(java.schema().catalogString())
        if types != self._types:
            casts = self._find_casts(df.schema)
            self._casts = None if casts is None else getattr(df, COLLECT.sequence)(casts)
            self._types = types
        if self._casts is not None:
            java = java.selectExpr(self._casts)
        address = getattr(java.limit(limit), COLLECT.collect)()
        found = _PORT_AND_SECRET.match(self._array_text(address))
        if found is not None:
            address = (int(found[1]), found[2])
        loaded: Any = load(address, serializer)
        # Before Spark 4.2 a plain iterator.
        with loaded if hasattr(loaded, "__exit__") else nullcontext(loaded) as rows:
            return list(rows)
