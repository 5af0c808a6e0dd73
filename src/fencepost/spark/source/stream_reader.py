"""`spark.readStream.format("fencepost")`: topics as they grow.

Theory of operation. Spark stores the end offsets of every batch in its checkpoint before it runs
the batch, and only calls us to plan it. Two things are special:

- The first batch has no earlier end, so Spark calls `initialOffset`, and after a crash calls it
  again, when "latest" may have moved. So the end offsets of the first batch contain their start
  ("@start"), and a second plan of that batch uses it. A start from `initialOffset` is marked
  ("@initial").
- Spark compares offsets as text. If nothing has changed, the very same mapping is returned.

From the second batch on, each of Spark's own source and ours can continue the other's checkpoint.
In the first batch that source stores its start in a file that Python sources cannot read.

A topic may be deleted and another created with its name, where the offsets mean nothing. So the
offsets contain topic ids (see `offsets.py`), and the tasks fetch by id. A topic with another id is
lost data; with failOnDataLoss=false its new records are read from the first one on. A partition
that was read and is missing now, or that the options no longer name, stays in the offsets as
"gone". If it comes back with the same id, because a broker did not have it for a while or the
options name it again, nothing is read twice.

The reader runs in a separate Python process for the whole query. `read` runs in other processes, on
a copy that was made at the start and never updated.
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

from fencepost.base.ids import TopicPartition
from fencepost.client.failures import UnknownTopicOrPartition
from fencepost.spark.failures import DataLost
from fencepost.spark.offsets import (
    INITIAL,
    START,
    PartitionOffsets,
    SourceOffsets,
    parse_offsets,
    to_layout,
)
from fencepost.spark.sentences import plain_errors
from fencepost.spark.source.batch_reader import as_partitions
from fencepost.spark.source.open_transaction_watch import OpenTransactionWatch
from fencepost.spark.source.options import SourceOptions
from fencepost.spark.source.positions import Positions, Subscribed, check_deleted, report_loss
from fencepost.spark.source.range_reader import read_ranges
from fencepost.spark.source.ranges import OffsetRange, limit_offsets
from fencepost.spark.source.whole_transactions import CutFinder

if TYPE_CHECKING:
    import pyarrow as pa


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches and reads their ranges."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._initial: dict[str, Any] | None = None
        self._is_available_now = False
        self._target: SourceOffsets | None = None
        self._latest: SourceOffsets | None = None
        self._missing: frozenset[str] = frozenset()
        self._last_trigger: float | None = None
        self._watch = OpenTransactionWatch(options)
        self._cuts = CutFinder()

    # Planning.

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        most, least = self._options.max_offsets, self._options.min_offsets
        if most is not None:
            return ReadMaxRows(most)
        return ReadAllAvailable() if least is None else ReadMinRows(least)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        if self._initial is None:
            positions = Positions(self._options)
            with plain_errors(self._options.client):
                found, offsets = positions.ask_existing(positions.starting)
            self._missing = found.missing
            self._initial = SourceOffsets(offsets, found.topic_ids).layout() | {INITIAL: True}
        return self._initial

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Makes the first end that is found the end of the run; the next run reads the rest."""
        self._is_available_now = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        is_only_check = self._is_available_now and self._target is None
        with plain_errors(self._options.client):
            known = parse_offsets(start)
            end = self._latest = self._find_end(known)
            if self._options.fail_on_data_loss:
                # Before Spark writes the new offsets to the checkpoint, where every restart would
                # fail.
                self._report_gone(known, end)
                self._report_short(_continued(known, end), end, is_first=INITIAL in start)
            is_waiting = self._waits_for_more(known, end, limit)
            chosen = known if is_waiting else self._choose_end(known, end, limit)
            is_same = _is_same(known, chosen)
            is_blocked = is_same and not is_waiting
            self._watch.check(end.offsets, is_only_check=is_only_check and is_blocked)
        if INITIAL in start:
            return {START: known.layout(), **chosen.layout()}
        return start if is_same else chosen.layout()

    def _choose_end(
        self, known: SourceOffsets, end: SourceOffsets, limit: ReadLimit
    ) -> SourceOffsets:
        """The end of the next batch: limited, and at the end of whole transactions if wanted."""
        if not (self._options.whole_transactions or isinstance(limit, ReadMaxRows)):
            return end
        begin, offsets = self._begin(known, end), end.offsets
        if isinstance(limit, ReadMaxRows):
            offsets = limit_offsets(begin, offsets, limit.max_rows)
        if self._options.whole_transactions:
            positions = Positions(self._options)
            offsets = self._cuts.cut(positions, begin, offsets, end.offsets, end.topic_ids)
        return SourceOffsets(offsets, end.topic_ids, end.gone)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """The end without limits, for the progress that Spark shows."""
        return None if self._latest is None else dict(to_layout(self._latest.offsets))

    def commit(self, end: dict[str, Any]) -> None:
        """Does nothing: Spark has its checkpoint, and the sink commits offsets transactionally."""

    def _find_end(self, known: SourceOffsets) -> SourceOffsets:
        """The end of every partition, or of the run; retried if it went backwards (KAFKA-7703)."""
        if self._target is not None:
            return self._target
        for attempt in range(self._options.retries):
            if attempt:
                time.sleep(self._options.retry_pause_ms / 1000)
            end = self._ask_end(known)
            recreated = known.recreated(end.topic_ids)
            # A lagging broker may also lack a topic that a pattern matched before.
            if all(
                end.offsets.get(tp, -1 if tp in known.offsets else offset) >= offset
                for tp, offset in known.reached.items()
                if tp.topic not in recreated
            ):
                break
        if self._is_available_now:
            self._target = end
        return end

    def _ask_end(self, known: SourceOffsets) -> SourceOffsets:
        positions = Positions(self._options)
        topics = {tp.topic for tp in known.reached}

        def latest(found: Subscribed) -> PartitionOffsets:
            return positions.latest(found.partitions)

        found, offsets = positions.ask_existing(latest, topics, self._missing)
        self._missing = found.missing
        recreated = known.recreated(found.topic_ids)
        gone = {
            tp: offset
            for tp, offset in known.reached.items()
            if tp not in offsets and tp.topic not in recreated
        }
        ids = {tp.topic: known.topic_ids[tp.topic] for tp in gone if tp.topic in known.topic_ids}
        return SourceOffsets(offsets, found.topic_ids | ids, gone)

    def _begin(self, known: SourceOffsets, end: SourceOffsets) -> PartitionOffsets:
        """Where each partition continues; a new one, or one of a new topic, from its beginning."""
        begin = _continued(known, end)
        new = [tp for tp in end.offsets if tp not in begin]
        try:
            return begin | Positions(self._options).earliest(new) if new else begin
        except UnknownTopicOrPartition:
            if self._options.fail_on_data_loss:
                raise
            # Just deleted, as the next call will find: there is nothing to read in it.
            return begin | {tp: end.offsets[tp] for tp in new}

    def _waits_for_more(self, known: SourceOffsets, end: SourceOffsets, limit: ReadLimit) -> bool:
        """minOffsetsPerTrigger: wait until there are enough, at most for maxTriggerDelay."""
        least = self._options.min_offsets
        # ReadAllAvailable means everything, and a run that ends must not leave records behind.
        if least is None or self._is_available_now or isinstance(limit, ReadAllAvailable):
            return False
        now = time.monotonic()
        is_early = (
            self._last_trigger is not None
            and (now - self._last_trigger) * 1000 < self._options.max_delay_ms
        )
        begin = self._begin(known, end)
        if is_early and sum(stop - begin[tp] for tp, stop in end.offsets.items()) < least:
            return True
        self._last_trigger = now
        return False

    # Running.

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        with plain_errors(self._options.client):
            ranges = self._ranges(start, end)
            filled = [wanted for wanted in ranges if wanted.size > 0]
            check_deleted(self._options, Positions(self._options), filled)
            return as_partitions(self._options, ranges)

    def _ranges(self, start: dict[str, Any], end: dict[str, Any]) -> list[OffsetRange]:
        known, until = self._begin_of(start, end), parse_offsets(end)
        self._report_gone(known, until)
        begin = _continued(known, until)
        begin |= self._begin_new(known, until, [tp for tp in until.offsets if tp not in begin])
        self._report_short(begin, until, is_first=START in end)
        return [
            OffsetRange(tp, begin.get(tp, stop), stop, until.topic_ids.get(tp.topic))
            for tp, stop in sorted(until.offsets.items())
        ]

    def _begin_of(self, start: dict[str, Any], end: dict[str, Any]) -> SourceOffsets:
        """Where a batch begins, in its first run or a later one."""
        if START in end:
            return parse_offsets(end[START])
        if INITIAL in start and not self._options.start_stays:
            raise DataLost(
                "the first batch of this checkpoint was begun by Spark's own kafka source and not "
                "finished, and startingOffsets does not say where: give startingOffsets the JSON "
                "of sources/0/0 in the checkpoint, or let Spark's source finish the batch"
            )
        return parse_offsets(start)

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        return read_ranges(self._options, partition.ranges)

    def _report_gone(self, known: SourceOffsets, until: SourceOffsets) -> None:
        """Reports partitions that were read before and are not in this batch."""
        recreated = known.recreated(until.topic_ids)
        if recreated:
            were = "topic was" if len(recreated) == 1 else "topics were"
            names = ", ".join(sorted(recreated))
            report_loss(self._options, f"the {were} deleted and created again: {names}")
        gone = known.offsets.keys() - until.offsets.keys()
        if left := sorted(tp for tp in gone if tp.topic not in recreated):
            names = ", ".join(map(str, left))
            report_loss(self._options, f"{names} no longer exists, or is no longer subscribed")

    def _report_short(
        self, begin: PartitionOffsets, until: SourceOffsets, *, is_first: bool
    ) -> None:
        """Reports partitions that end before the batch begins."""
        for tp, stop in sorted(until.offsets.items()):
            first = begin.get(tp, stop)
            if stop < first:
                was = "is to be read from" if is_first else "was read up to"
                report_loss(self._options, f"{tp} {was} {first} and ends at {stop}")

    def _begin_new(
        self, known: SourceOffsets, until: SourceOffsets, new: list[TopicPartition]
    ) -> PartitionOffsets:
        """New partitions are read from their first record, which must be at offset 0."""
        try:
            earliest = Positions(self._options).earliest(new)
        except UnknownTopicOrPartition as problem:
            report_loss(self._options, str(problem))
            return {}
        recreated = known.recreated(until.topic_ids)
        for tp, offset in sorted(earliest.items()):
            if offset and tp.topic not in recreated:
                report_loss(self._options, f"{tp} is new and begins at {offset} already")
        return earliest


def _continued(known: SourceOffsets, end: SourceOffsets) -> PartitionOffsets:
    """Where the partitions of `end` continue that were read before, in topics with the same id."""
    recreated = known.recreated(end.topic_ids)
    return {
        tp: offset
        for tp, offset in known.reached.items()
        if tp in end.offsets and tp.topic not in recreated
    }


def _is_same(known: SourceOffsets, end: SourceOffsets) -> bool:
    """Whether nothing has changed. Newly learned topic ids are no reason for a batch."""
    return (
        end.offsets == known.offsets
        and end.gone == known.gone
        and not known.recreated(end.topic_ids)
    )
