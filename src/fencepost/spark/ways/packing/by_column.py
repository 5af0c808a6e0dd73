"""Packing in compiled loops over whole columns.

A task builds its batches in one array, cut into regions that are reused:

    acquire -> a batch grows, is sealed, travels, is acknowledged -> release

`acquire` waits while all regions are in flight. So a task that packs faster than brokers write
needs no more memory. Another thread releases regions; if it fails, `acquire` raises its failure.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, cast

import numpy as np
import pyarrow as pa

from fencepost.base.ids import TopicPartition
from fencepost.records.batch import HEADER_BYTES
from fencepost.records.columns import Bytes, Column, Ints, column_of
from fencepost.records.filling import (
    NOT_CHOSEN,
    RECORD_OVERHEAD_BYTES,
    EncodedBatch,
    OpenBatches,
    place_rows,
)
from fencepost.spark.ways.packing.by_record import (
    RUN_BYTES,
    PackedBatch,
    PackingPlan,
    Placement,
    no_such_partition,
    no_topic,
    too_large,
)

MEMORY_BYTES: Final = 64 * 1024 * 1024
"""The size of the array, unless batches are very large. Only used pages take up memory."""

LEAST_REGION_BYTES: Final = 16 * 1024 + HEADER_BYTES
"""Smaller batches are not worth their header, even with many partitions."""

MAX_REGIONS: Final = 4096
"""Enough, even for the smallest regions."""

ASSUMED_PARTITIONS: Final = 64
"""The assumed number of partitions that a task writes to, if it is unknown."""

_NONE: Ints = np.zeros(0, np.int64)


class Regions:
    """The regions of one task."""

    def __init__(self, batch_bytes: int, partitions: int) -> None:
        wanted = MEMORY_BYTES // (2 * max(1, partitions))
        self.region_bytes = min(batch_bytes + HEADER_BYTES, max(wanted, LEAST_REGION_BYTES))
        count = max(2, min(MEMORY_BYTES // self.region_bytes, MAX_REGIONS))
        self.memory: Bytes = np.empty(count * self.region_bytes, np.uint8)
        """All regions, one after the other."""
        self._free = list(range(count - 1, -1, -1))
        self._changed = threading.Condition()
        self._failure: BaseException | None = None

    def acquire(self) -> int:
        """A free region, the one with the warmest memory first; waits for one."""
        with self._changed:
            self._changed.wait_for(lambda: self._free or self._failure)
            if self._failure is not None:
                raise self._failure
            return self._free.pop()

    def release(self, region: int) -> None:
        """Frees a region."""
        with self._changed:
            self._free.append(region)
            self._changed.notify()

    def fail(self, problem: BaseException) -> None:
        """Makes `acquire` raise: no more regions will be released."""
        with self._changed:
            self._failure = problem
            self._changed.notify_all()


class ColumnPacker:
    """The open batches of one task, for rows without headers."""

    def __init__(
        self,
        plan: PackingPlan,
        placement: Placement,
        first_length: Callable[[TopicPartition], int],
    ) -> None:
        self._plan = plan
        self._placement = placement
        self._first_length = first_length
        self._topics: dict[str, int] = {}
        self._counts, self._first_lanes = _NONE, _NONE
        self._places: list[TopicPartition] = []
        partitions = sum(plan.partition_counts.values()) or ASSUMED_PARTITIONS
        self.regions = Regions(plan.batch_bytes, partitions)
        self._open = OpenBatches(
            self.regions.memory,
            self.regions.region_bytes,
            self.regions.acquire,
            self.regions.release,
            codec=plan.codec,
            clock=lambda: time.time_ns() // 1_000_000,
        )

    def pack(self, batch: pa.RecordBatch) -> Iterator[PackedBatch]:
        """Adds these rows; yields the batches that are full."""
        keys, values = (
            column_of(_column(batch, name), batch.num_rows) for name in ("key", "value")
        )
        self._check_sizes(keys, values)
        topics = self._topics_of(batch, keys)
        placed = place_rows(
            keys,
            values,
            topics,
            _chosen(batch),
            self._counts,
            self._first_lanes,
            first_turn=self._placement.first_turn,
            keyless_bytes=self._placement.keyless_bytes,
            run_bytes=RUN_BYTES,
        )
        if placed.wrong_row >= 0:
            raise self._wrong(batch, topics, placed.wrong_row)
        self._placement.keyless_bytes = placed.keyless_bytes
        yield from map(self._packed, self._open.fill(keys, values, placed.lanes))

    def close_all(self) -> Iterator[PackedBatch]:
        """The batches that are not full."""
        return map(self._packed, self._open.close_all())

    def _packed(self, batch: EncodedBatch) -> PackedBatch:
        place = self._places[batch.lane]
        if batch.region is None:
            return PackedBatch(place, batch.record_count, batch.data)
        done = partial(self.regions.release, batch.region)
        return PackedBatch(place, batch.record_count, batch.data, done)

    def _check_sizes(self, keys: Column, values: Column) -> None:
        sizes = np.diff(keys.offsets) + np.diff(values.offsets)
        # max and not argmax, which releases the GIL even for a few numbers and waits to get it
        # back.
        largest = int(sizes.max()) + RECORD_OVERHEAD_BYTES
        if largest > self._plan.max_record_bytes:
            raise too_large(self._plan, largest, _key(keys, int(sizes.argmax())))

    def _topics_of(self, batch: pa.RecordBatch, keys: Column) -> Ints:
        """The number of each row's topic; empty if the sink has one topic."""
        if self._plan.topic is not None:
            self._number(self._plan.topic)
            return _NONE
        column = _column(batch, "topic")
        assert column is not None, "the driver has checked the columns"
        if column.null_count:
            raise no_topic(_key(keys, int(np.asarray(column.is_null()).argmax())))
        encoded = column.dictionary_encode()
        numbers = np.array(
            [self._number(topic) for topic in encoded.dictionary.to_pylist()], np.int64
        )
        return cast("Ints", numbers[np.asarray(encoded.indices)])

    def _number(self, topic: str) -> int:
        """The number of a topic; its partitions become lanes when it is first seen."""
        found = self._topics.get(topic)
        if found is None:
            found = self._topics[topic] = len(self._topics)
            count = self._placement.count(topic)
            places = [TopicPartition(topic, partition) for partition in range(count)]
            self._first_lanes = np.append(self._first_lanes, len(self._places))
            self._counts = np.append(self._counts, count)
            self._places += places
            self._open.add_lanes([self._first_length(place) for place in places])
        return found

    def _wrong(self, batch: pa.RecordBatch, topics: Ints, row: int) -> Exception:
        number = int(topics[row]) if len(topics) else 0
        topic = list(self._topics)[number]
        return no_such_partition(topic, int(_chosen(batch)[row]), int(self._counts[number]))


def _column(batch: pa.RecordBatch, name: str) -> pa.Array | None:
    return batch.column(name) if name in batch.schema.names else None


def _chosen(batch: pa.RecordBatch) -> Ints:
    """The partition column as numbers; empty if no row chooses a partition."""
    column = _column(batch, "partition")
    if column is None or column.null_count == len(column):
        return _NONE
    chosen = np.asarray(column.fill_null(0)).astype(np.int64)
    if column.null_count:
        chosen[np.asarray(column.is_null())] = NOT_CHOSEN
    return chosen


def _key(keys: Column, row: int) -> bytes | None:
    if keys.nulls[row]:
        return None
    return keys.data[keys.offsets[row] : keys.offsets[row + 1]].tobytes()
