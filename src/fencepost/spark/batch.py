"""`spark.read.format("fencepost")`: topics as they are now."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from fencepost.spark.positions import Positions, data_loss
from fencepost.spark.ranges import OffsetRange, split_ranges
from fencepost.spark.reading import read_range
from fencepost.spark.source_options import SourceOptions

if TYPE_CHECKING:
    import pyarrow as pa


class RangePartition(InputPartition):
    """What one task reads."""

    def __init__(self, wanted: OffsetRange) -> None:
        super().__init__(wanted)
        self.wanted = wanted


class BatchReader(DataSourceReader):
    """Reads from the starting to the ending offsets."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        positions = Positions(self._options)
        start, end = positions.starting(), positions.ending()
        ranges = []
        for tp, first in sorted(start.items()):
            if end[tp] < first and self._options.fail_on_data_loss:
                raise data_loss(self._options, f"{tp} begins at {first} and ends at {end[tp]}")
            ranges.append(OffsetRange(tp, first, end[tp]))
        return as_partitions(self._options, ranges)

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        return read_range(self._options, partition.wanted)


def as_partitions(options: SourceOptions, ranges: list[OffsetRange]) -> list[InputPartition]:
    """The tasks for these ranges."""
    parts = split_ranges(
        ranges,
        max_records=options.max_records_per_partition,
        min_partitions=options.min_partitions,
    )
    return [RangePartition(part) for part in parts]
