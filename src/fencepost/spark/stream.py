"""`spark.readStream.format("fencepost")`: topics as they grow.

Theory of operation. Spark keeps the end offsets of every batch in its checkpoint before it runs the batch, and asks us
only for plans: from here to there. Two things are peculiar:

- For the first batch there is no earlier end, so Spark asks `initialOffset`; and after a crash it asks again, when
  "latest" may have moved. So the end offsets of the first batch carry their start ("@start"), and whoever plans that
  batch again uses it. A start that comes from `initialOffset` is marked ("@initial") to be recognised.
- Spark compares offsets as text. Where nothing has changed, the very same mapping is returned.

From the second batch on, the offsets in a checkpoint are those of Spark's own source, so each can continue what the
other began. In the first batch that source keeps its start in a file that we are not shown.

The reader lives in a Python process of its own as long as the query runs; `read` is called in other processes, on a
copy that was made at the beginning and knows nothing of what happened since.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from fencepost.spark.batch import as_partitions
from fencepost.spark.failures import DataLost
from fencepost.spark.offsets import INITIAL, START, PartitionOffsets, from_layout, to_layout
from fencepost.spark.positions import Positions, report_loss
from fencepost.spark.ranges import OffsetRange, limit_offsets
from fencepost.spark.reading import read_range
from fencepost.spark.source_options import SourceOptions
from fencepost.spark.standstill import Standstill

if TYPE_CHECKING:
    import pyarrow as pa


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches and reads their ranges."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._initial: dict[str, Any] | None = None
        self._is_available_now = False
        self._target: PartitionOffsets | None = None
        self._latest: PartitionOffsets | None = None
        self._last_trigger: float | None = None
        self._standstill = Standstill(options)

    # What Spark asks while it plans.

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        most, least = self._options.max_offsets, self._options.min_offsets
        if most is not None:
            return ReadMaxRows(most)
        return ReadAllAvailable() if least is None else ReadMinRows(least)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        if self._initial is None:
            layout: dict[str, Any] = dict(to_layout(Positions(self._options).starting()))
            self._initial = layout | {INITIAL: True}
        return self._initial

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """The end that is found first is the end of the run: what comes later is for the next one."""
        self._is_available_now = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        known = from_layout(start)
        is_only_look = self._is_available_now and self._target is None
        end = self._latest = self._find_end(known)
        self._standstill.look(end, is_only_look=is_only_look and end == known)
        if self._waits_for_more(known, end, limit):
            end = known
        elif isinstance(limit, ReadMaxRows):
            end = limit_offsets(self._begin(known, end), end, limit.max_rows)
        if INITIAL in start:
            return {START: to_layout(known), **to_layout(end)}
        return start if end == known else dict(to_layout(end))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """What there is to read, limits aside: for the progress that Spark shows."""
        return None if self._latest is None else dict(to_layout(self._latest))

    def commit(self, end: dict[str, Any]) -> None:
        """Spark's checkpoint remembers; the sink commits offsets where they belong to a transaction."""

    def _find_end(self, known: PartitionOffsets) -> PartitionOffsets:
        """The end of every partition now, or of the run; asked again where it is before what is known (KAFKA-7703)."""
        if self._target is not None:
            return self._target
        positions = Positions(self._options)
        for attempt in range(self._options.retries):
            if attempt:
                time.sleep(self._options.retry_pause_ms / 1000)
            end = positions.latest(positions.partitions())
            if all(end.get(tp, offset) >= offset for tp, offset in known.items()):
                break
        if self._is_available_now:
            self._target = end
        return end

    def _begin(self, known: PartitionOffsets, end: PartitionOffsets) -> PartitionOffsets:
        """Where each partition goes on; one that is new goes on from its beginning."""
        new = [tp for tp in end if tp not in known]
        return known | Positions(self._options).earliest(new) if new else known

    def _waits_for_more(
        self, known: PartitionOffsets, end: PartitionOffsets, limit: ReadLimit
    ) -> bool:
        """minOffsetsPerTrigger: wait until there are enough, but not longer than maxTriggerDelay."""
        least = self._options.min_offsets
        # The engine asks for everything where it means everything, and a run that ends must not leave a rest behind.
        if least is None or self._is_available_now or isinstance(limit, ReadAllAvailable):
            return False
        now = time.monotonic()
        is_early = (
            self._last_trigger is not None
            and (now - self._last_trigger) * 1000 < self._options.max_delay_ms
        )
        begin = self._begin(known, end)
        if is_early and sum(end[tp] - begin[tp] for tp in end) < least:
            return True
        self._last_trigger = now
        return False

    # What Spark asks to run.

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin, until = self._begin_of(start, end), from_layout(end)
        if gone := sorted(begin.keys() - until.keys()):
            report_loss(self._options, f"{', '.join(map(str, gone))} cannot be found any more")
        begin |= self._begin_new(begin, until)
        ranges = []
        for tp, stop in sorted(until.items()):
            if stop < begin[tp]:
                report_loss(self._options, f"{tp} was read up to {begin[tp]} and ends at {stop}")
            ranges.append(OffsetRange(tp, begin[tp], stop))
        return as_partitions(self._options, ranges)

    def _begin_of(self, start: dict[str, Any], end: dict[str, Any]) -> PartitionOffsets:
        """Where a batch begins, first time or again."""
        if START in end:
            return from_layout(end[START])
        if INITIAL in start and not self._options.start_stays:
            raise DataLost(
                "the first batch of this checkpoint was begun by Spark's own kafka source and not finished, and "
                "startingOffsets does not say where: give startingOffsets the JSON of sources/0/0 in the checkpoint, let "
                "Spark's source finish the batch, or begin with an empty checkpoint"
            )
        return from_layout(start)

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        return read_range(self._options, partition.wanted)

    def _begin_new(self, begin: PartitionOffsets, until: PartitionOffsets) -> PartitionOffsets:
        """New partitions are read from their first record, which must be the first there ever was."""
        new = [tp for tp in until if tp not in begin]
        earliest = Positions(self._options).earliest(new)
        for tp, offset in sorted(earliest.items()):
            if offset:
                report_loss(self._options, f"{tp} is new and begins at {offset} already")
        return earliest
