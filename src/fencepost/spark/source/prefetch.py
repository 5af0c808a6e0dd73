"""Small batches of a stream are read where they are planned, and need no task in Python.

Starting a task in a Python worker takes longer than reading a few records, so it is most of the
time that passes until such a batch is visible. Spark's planning process may pass rows to the JVM
together with the plan: `SimpleDataSourceStreamReader` does. Spark stores them as a block, and one
task in the JVM reads them. If the block is lost, Spark runs the task in Python after all, which
reads the same offsets.

One Fetch must return everything, up to a limit. If it does not, or fails for any reason but that no
broker answers, tasks read the batch, and report what is wrong. Batches of half as many offsets are
still tried, and with every batch that is not, somewhat larger ones: large records cost a Fetch now
and then, and a broker that was away for a moment costs no more than a few batches. Options that ask
for more tasks switch prefetching off.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from fencepost.base.failures import FencepostError
from fencepost.client.failures import RetriesExhausted
from fencepost.spark.connection import cluster_of
from fencepost.spark.source.range_reader import arrow_batches
from fencepost.spark.source.ranges import OffsetRange

if TYPE_CHECKING:
    import pyarrow as pa

    from fencepost.spark.source.options import SourceOptions

MAX_OFFSETS: Final = 1_000
MAX_BYTES: Final = 1024 * 1024
_GROWTH: Final = 10
"""The limit grows by one in so many with a batch that is not tried."""


class Prefetcher:
    """Reads small batches in the planning process."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._is_off = bool(options.min_partitions or options.max_records_per_partition)
        self._limit = MAX_OFFSETS
        """Batches with more offsets are not tried."""

    def read(self, ranges: Sequence[OffsetRange]) -> list[pa.RecordBatch] | None:
        """All visible records of the ranges; None if tasks should read them."""
        count = sum(wanted.size for wanted in ranges)
        if self._is_off or not 0 < count <= MAX_OFFSETS:
            return None
        if count > self._limit:
            self._limit += 1 + self._limit // _GROWTH
            return None
        found = self._fetch(ranges)
        self._limit = count // 2 if found is None else MAX_OFFSETS
        return found

    def _fetch(self, ranges: Sequence[OffsetRange]) -> list[pa.RecordBatch] | None:
        ids = {wanted.partition.topic: wanted.topic_id for wanted in ranges}
        known = {topic: topic_id for topic, topic_id in ids.items() if topic_id is not None}
        if known and len(known) < len(ids):
            # One request names its topics by id or by name.
            return None
        try:
            fetched = cluster_of(self._options.client).fetch(
                {wanted.partition: wanted.start for wanted in ranges},
                max_wait_ms=0,
                max_bytes=MAX_BYTES,
                partition_max_bytes=MAX_BYTES,
                topic_ids=known or None,
            )
            rows: list[pa.RecordBatch] = []
            for wanted in ranges:
                found = fetched.get(wanted.partition)
                if found is None or found.next_offset < wanted.end:
                    return None
                batches = [
                    batch for batch in found.visible_batches() if batch.base_offset < wanted.end
                ]
                rows += arrow_batches(wanted, self._options.columns, batches, wanted.start)
        except RetriesExhausted:
            raise
        except FencepostError:
            return None
        return rows
