"""`spark.read.format("fencepost")`: topics as they are now."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from fencepost.base.failures import ConfigError
from fencepost.spark.engine.slots import announced_slots
from fencepost.spark.sentences import plain_errors
from fencepost.spark.source.options import SourceOptions
from fencepost.spark.source.positions import Positions, check_deleted, report_loss
from fencepost.spark.source.range_reader import read_ranges
from fencepost.spark.source.ranges import OffsetRange, pack_ranges, split_ranges

if TYPE_CHECKING:
    import pyarrow as pa


class RangePartition(InputPartition):
    """The ranges that one task reads, one after the other."""

    def __init__(self, ranges: tuple[OffsetRange, ...]) -> None:
        super().__init__(ranges)
        self.ranges = ranges


class BatchReader(DataSourceReader):
    """Reads topics from the starting to the ending offsets."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        with plain_errors(self._options.client):
            positions = Positions(self._options)
            found, (start, end) = positions.ask_existing(
                lambda found: (positions.starting(found), positions.ending(found))
            )
            ranges = [found.range_of(tp, start[tp], end[tp]) for tp in found.partitions]
            for wanted in ranges:
                if wanted.size < 0:
                    self._report_backwards(wanted)
            check_deleted(self._options, positions, [each for each in ranges if each.size > 0])
            return as_partitions(self._options, ranges)

    def _report_backwards(self, wanted: OffsetRange) -> None:
        """A start behind the end: a mistake in the options, or records are gone."""
        sentence = f"{wanted.partition} would be read from {wanted.start} and ends at {wanted.end}"
        starting, ending = self._options.starting, self._options.ending
        # Two sets of offsets were compared when the options were read; the end was lowered since.
        is_cut = starting.offsets is not None and ending.offsets is not None
        if ending.word is None and not is_cut:
            raise ConfigError(f"{sentence}: correct the starting or the ending offsets or times")
        report_loss(self._options, sentence)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # If there is nothing to read, Spark creates a partition itself.
        if not isinstance(partition, RangePartition):
            return iter(())
        return read_ranges(self._options, partition.ranges)


def as_partitions(options: SourceOptions, ranges: list[OffsetRange]) -> list[InputPartition]:
    """The tasks for these ranges: at most as many as there are slots, unless the user says more."""
    parts = split_ranges(
        ranges,
        max_records=options.max_records_per_partition,
        min_partitions=options.min_partitions,
    )
    most = options.max_tasks
    if most is None and not (options.min_partitions or options.max_records_per_partition):
        most = announced_slots()
    return [RangePartition(task) for task in pack_ranges(parts, most or len(parts))]
