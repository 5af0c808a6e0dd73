"""`spark.readStream.format("fencepost")`: topics as they grow.

Theory of operation. Spark keeps the end offsets of every batch in its checkpoint before it runs the batch, and asks us
only for plans: from here to there. Two things are peculiar:

- For the first batch there is no earlier end, so Spark asks `initialOffset`; and after a crash it asks again, when
  "latest" may have moved. So the end offsets of the first batch carry their start ("@start"), and whoever plans that
  batch again uses it. A start that comes from `initialOffset` is marked ("@initial") to be recognised.
- Spark compares offsets as text. Where nothing has changed, the very same mapping is returned.

The reader lives in a Python process of its own as long as the query runs; `read` is called in other processes, on a
copy that was made at the beginning and knows nothing of what happened since.
"""

from __future__ import annotations

import logging
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
from fencepost.spark.offsets import INITIAL, START, PartitionOffsets, from_layout, to_layout
from fencepost.spark.positions import Positions, data_loss
from fencepost.spark.ranges import OffsetRange, limit_offsets
from fencepost.spark.reading import read_range
from fencepost.spark.source_options import SourceOptions
from fencepost.spark.standstill import Standstill

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches and reads their ranges."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._initial: dict[str, Any] | None = None
        self._target: PartitionOffsets | None = None
        self._last_trigger = time.monotonic()
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
        """Freezes the end: what comes later is for the next run."""
        positions = Positions(self._options)
        self._target = positions.latest(positions.partitions())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        known = from_layout(start)
        end = self._find_end(known)
        if isinstance(limit, ReadMaxRows):
            end = limit_offsets(self._begin(known, end), end, limit.max_rows)
        self._standstill.look(known, end)
        if self._waits_for_more(known, end, limit):
            end = known
        if INITIAL in start:
            return {START: to_layout(known), **to_layout(end)}
        if end == known:
            return start
        self._last_trigger = time.monotonic()
        return dict(to_layout(end))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        positions = Positions(self._options)
        return dict(to_layout(positions.latest(positions.partitions())))

    def commit(self, end: dict[str, Any]) -> None:
        """Spark's checkpoint remembers; the sink commits offsets where they belong to a transaction."""

    def _find_end(self, known: PartitionOffsets) -> PartitionOffsets:
        """The end of every partition now, or of AvailableNow; never before what is known (KAFKA-7703)."""
        if self._target is not None:
            return known | self._target
        positions = Positions(self._options)
        for _ in range(self._options.retries):
            end = positions.latest(positions.partitions())
            if all(end.get(tp, offset) >= offset for tp, offset in known.items()):
                break
            time.sleep(self._options.retry_pause_ms / 1000)
        return end

    def _begin(self, known: PartitionOffsets, end: PartitionOffsets) -> PartitionOffsets:
        """Where each partition goes on; one that is new goes on from its beginning."""
        new = [tp for tp in end if tp not in known]
        return known | Positions(self._options).earliest(new) if new else known

    def _waits_for_more(
        self, known: PartitionOffsets, end: PartitionOffsets, limit: ReadLimit
    ) -> bool:
        """minOffsetsPerTrigger: wait until there are enough, but not longer than maxTriggerDelay."""
        least = None if self._target is not None else self._options.min_offsets
        # The engine asks for everything where it means everything: Trigger.Once and AvailableNow.
        if least is None or isinstance(limit, ReadAllAvailable):
            return False
        waited_ms = (time.monotonic() - self._last_trigger) * 1000
        if waited_ms >= self._options.max_delay_ms:
            return False
        begin = self._begin(known, end)
        return sum(end[tp] - begin[tp] for tp in end) < least

    # What Spark asks to run.

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin = from_layout(end[START]) if START in end else from_layout(start)
        until = from_layout(end)
        self._report_gone(sorted(begin.keys() - until.keys()))
        begin |= self._begin_new(begin, until)
        ranges = []
        for tp, stop in sorted(until.items()):
            if stop < begin[tp]:
                self._report_loss(f"{tp} was read up to {begin[tp]} and ends at {stop}")
            ranges.append(OffsetRange(tp, begin[tp], stop))
        return as_partitions(self._options, ranges)

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        return read_range(self._options, partition.wanted)

    def _begin_new(self, begin: PartitionOffsets, until: PartitionOffsets) -> PartitionOffsets:
        """New partitions are read from their first record, which must be the first there ever was."""
        new = [tp for tp in until if tp not in begin]
        earliest = Positions(self._options).earliest(new)
        for tp, offset in sorted(earliest.items()):
            if offset:
                self._report_loss(f"{tp} is new and begins at {offset} already")
        return earliest

    def _report_gone(self, gone: Sequence[object]) -> None:
        if gone:
            self._report_loss(f"{', '.join(map(str, gone))} cannot be found any more")

    def _report_loss(self, sentence: str) -> None:
        if self._options.fail_on_data_loss:
            raise data_loss(self._options, sentence)
        log.warning("%s; going on, because failOnDataLoss is false", sentence)
