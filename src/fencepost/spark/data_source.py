"""`format("fencepost")`: the data source that Spark loads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import pyspark
from pyspark.sql.datasource import DataSource

from fencepost.base.failures import ConfigError
from fencepost.spark.schemas import ddl_of
from fencepost.spark.sentences import plain_errors
from fencepost.spark.source.columns import COLUMNS
from fencepost.spark.source.options import SourceOptions, read_source_options
from fencepost.spark.views.options import is_view, read_view_options
from fencepost.spark.views.schemas import COLUMNS as VIEW_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from fencepost.spark.doors.batch_write import TableWriter
    from fencepost.spark.doors.options import WriteOptions
    from fencepost.spark.doors.stream_format import StreamWriter
    from fencepost.spark.source.batch_reader import BatchReader
    from fencepost.spark.source.stream_reader import StreamReader
    from fencepost.spark.views.data_reader import ViewReader


NOT_COMPLETE: Final = (
    "format fencepost only appends: a topic cannot be replaced. For output modes update and "
    "complete use df.writeStream.foreachBatch(fencepost.spark.TransactionalSink(...)), which "
    "writes the rows that changed, or all of them"
)


STREAMS_NEED: Final = (
    'spark.readStream.format("fencepost") needs Spark 4.2 or newer, and this is Spark {version}: '
    'upgrade it. spark.read.format("fencepost") and the sink work here'
)
WRITING_NEEDS: Final = (
    'writeStream.format("fencepost") needs Spark 4.1 or newer, and this is Spark {version}: '
    "upgrade it, or use df.writeStream.foreachBatch(fencepost.spark.TransactionalSink(...))"
)
_STREAMING_API: Final = "pyspark.sql.streaming.datasource"
"""Where Spark keeps what a Python source needs to limit its batches, since 4.2."""


class FencepostSource(DataSource):
    """Kafka topics as rows, and rows as records of Kafka topics."""

    @classmethod
    def name(cls) -> str:
        return "fencepost"

    def schema(self) -> str:
        with plain_errors():
            if is_view(self.options):
                view = read_view_options(self.options)
                return ddl_of(VIEW_COLUMNS[view.view], view.columns)
            # Spark calls this before it says whether this is a stream; the columns are the same.
            options = read_source_options(_without_limits(self.options), streaming=True)
            return ddl_of(COLUMNS, options.columns)

    def reader(self, schema: StructType) -> BatchReader | ViewReader:
        if is_view(self.options):
            from fencepost.spark.views.data_reader import ViewReader

            return ViewReader(read_view_options(self.options))
        from fencepost.spark.source.batch_reader import BatchReader

        with plain_errors():
            options = read_source_options(self.options, streaming=False)
            _require_own_schema(options, schema)
        return BatchReader(options)

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802
        # With their tracebacks: Spark raises another error on top of what fails here, and without
        # a traceback it would show that one alone.
        try:
            from fencepost.spark.source.stream_reader import StreamReader
        except ModuleNotFoundError as problem:
            if problem.name != _STREAMING_API:
                raise
            raise ConfigError(STREAMS_NEED.format(version=pyspark.__version__)) from None
        if is_view(self.options):
            raise ConfigError("a view is a table: use it with spark.read, not with readStream")
        options = read_source_options(self.options, streaming=True)
        _require_own_schema(options, schema)
        return StreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> TableWriter:
        from fencepost.spark.doors.batch_write import TableWriter
        from fencepost.spark.doors.options import check_mode

        with plain_errors():
            check_mode(overwrite=overwrite)
            return TableWriter(self._write_options(schema, streaming=False))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        with plain_errors():
            if not hasattr(pyspark.sql.datasource, "DataSourceStreamArrowWriter"):
                raise ConfigError(WRITING_NEEDS.format(version=pyspark.__version__))
            if overwrite:
                raise ConfigError(NOT_COMPLETE)
            options = self._write_options(schema, streaming=True)
        from fencepost.spark.doors.stream_format import StreamWriter

        return StreamWriter(options)

    def _write_options(self, schema: StructType, *, streaming: bool) -> WriteOptions:
        from fencepost.spark.doors.loops import with_reads
        from fencepost.spark.doors.options import read_write_options
        from fencepost.spark.doors.trailer import check_routed

        options = read_write_options(self.options, streaming=streaming)
        check_routed(schema)
        return with_reads(options, schema)


def _require_own_schema(options: SourceOptions, given: StructType) -> None:
    """Refuses a user's schema: Spark would notice in the middle of the query, or never."""
    wanted = [(name, COLUMNS[name].replace("long", "bigint")) for name in options.columns]
    if [(field.name, field.dataType.simpleString()) for field in given.fields] != wanted:
        raise ConfigError(
            "format fencepost has a fixed schema, and another one was given: leave schema(...) out "
            "and cast the columns afterwards; columns= chooses among them"
        )


def _without_limits(options: Mapping[str, str]) -> dict[str, str]:
    """Options without those that only `spark.read` has."""
    return {
        name: value
        for name, value in dict(options).items()
        if not name.lower().startswith("ending")
    }
