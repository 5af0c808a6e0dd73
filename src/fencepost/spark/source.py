"""`format("fencepost")`, as Spark knows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from fencepost.spark.arrow import ddl_of
from fencepost.spark.source_options import read_source_options

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from fencepost.spark.batch import BatchReader
    from fencepost.spark.stream import StreamReader


class FencepostSource(DataSource):
    """Kafka topics as rows, for `spark.read` and `spark.readStream`."""

    @classmethod
    def name(cls) -> str:
        return "fencepost"

    def schema(self) -> str:
        # Spark asks for the schema before it says whether this is a stream; the columns are the same.
        return ddl_of(read_source_options(_without_limits(self.options), streaming=True).columns)

    def reader(self, schema: StructType) -> BatchReader:
        from fencepost.spark.batch import BatchReader

        return BatchReader(read_source_options(self.options, streaming=False))

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802
        from fencepost.spark.stream import StreamReader

        return StreamReader(read_source_options(self.options, streaming=True))


def _without_limits(options: Mapping[str, str]) -> dict[str, str]:
    """Options without those that only one of the two kinds of reading has."""
    return {
        name: value
        for name, value in dict(options).items()
        if not name.lower().startswith("ending")
    }
