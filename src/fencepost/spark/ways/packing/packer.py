"""Rows into batches: the first step of every task that has rows.

Theory of operation. A task decides for each row its topic and partition, and builds record batches
of one partition each: finished but for the producer's identity, the sequence and the CRC, which the
writer of that partition puts into the header. So a few large pieces travel to the writer instead of
single records, and encoding and compression use all cores.

Two implementations give the same result: `by_record.py` works record by record,
`by_column.py` in compiled loops over whole columns. Both keep the order of rows within a
partition.

A task keeps a manifest: how many rows it saw and how many it packed for each partition. The driver
compares this with what was acknowledged, before it commits.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from fencepost.base.ids import TopicPartition
from fencepost.client.options import ClientOptions
from fencepost.spark.compiled import WARM_ROWS, compiled_columns, freeze_loaded_objects
from fencepost.spark.ways.accounts import manifest_of
from fencepost.spark.ways.packing.by_record import Placement, pack_plain
from fencepost.spark.ways.packing.rows import TIMESTAMP_MS

if TYPE_CHECKING:
    import pyarrow as pa

    from fencepost.spark.ways.packing.by_column import ColumnPacker

ANY_LENGTH: Final = 2**31 - 1

BYTES_LIKE_A_ROW: Final = 5_500
"""Packing a row of 100 bytes record by record takes as long as copying this many more bytes."""


class PlainWork:
    """How much this process has packed record by record, in rows of 100 bytes.

    A worker that Spark reuses packs little in each batch, but over time enough to justify loading
    the compiled loops.
    """

    def __init__(self) -> None:
        self.rows = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Counts the rows of a batch; large rows count several times."""
        self.rows += batch.num_rows + batch.nbytes // BYTES_LIKE_A_ROW


_plain_work: Final = PlainWork()


@dataclass(frozen=True, slots=True)
class PackingPlan:
    """What the driver passes to the tasks that pack."""

    batch_id: int
    slots: int
    topic: str | None
    partition_counts: Mapping[str, int]
    codec: int
    batch_bytes: int
    max_record_bytes: int
    options: ClientOptions
    reserved: Mapping[str, str] = field(default_factory=dict)
    """Topics that rows must not name, and why."""


def _nothing() -> None:
    pass


class PackedBatch(NamedTuple):
    """Records of one partition; producer, sequence and CRC are still missing."""

    place: TopicPartition
    record_count: int
    data: bytearray | memoryview
    done: Callable[[], None] = _nothing
    """Called when the bytes are no longer needed."""


def slot_of(place: TopicPartition, slots: int) -> int:
    """The task that writes this partition: partitions of one topic are spread evenly."""
    return (zlib.crc32(place.topic.encode("utf-8")) + place.partition) % slots


class Packer:
    """Packs the rows of one task."""

    def __init__(
        self,
        plan: PackingPlan,
        map_id: int,
        first_length: Callable[[TopicPartition], int] = lambda _: ANY_LENGTH,
    ) -> None:
        """`first_length` limits the records of this task's first batch for a partition."""
        self._plan = plan
        self._map_id = map_id
        self._first = first_length
        self._placement = Placement(plan, map_id)
        self._packed: dict[TopicPartition, int] = {}
        self._rows = 0
        self._columnwise: ColumnPacker | None = None

    def give_up(self, problem: BaseException) -> None:
        """Makes a wait for memory raise this. Called by other threads."""
        if self._columnwise is not None:
            self._columnwise.regions.fail(problem)

    def pack(self, batch: pa.RecordBatch) -> Iterator[PackedBatch]:
        """Adds rows; yields the batches that are full."""
        self._rows += batch.num_rows
        if not batch.num_rows:
            return
        yield from map(self._counted, self._batches(batch))

    def finish(self) -> Iterator[PackedBatch]:
        """The batches that are not full."""
        if self._columnwise is not None:
            yield from map(self._counted, self._columnwise.close_all())

    def end_task(self) -> None:
        """The last call: what this task has loaded stays in this worker."""
        freeze_loaded_objects()

    def manifest(self) -> str:
        """What was packed, for the driver's check."""
        return manifest_of(self._map_id, self._rows, self._packed)

    def _batches(self, batch: pa.RecordBatch) -> Iterator[PackedBatch]:
        if _has(batch, "headers") or _has(batch, TIMESTAMP_MS) or not self._is_compiled():
            _plain_work.add(batch)
            # The rows of open batches came first, and must stay first.
            yield from self.finish()
            yield from pack_plain(
                self._plan, self._placement, batch.to_pylist(), self._first_length
            )
        else:
            assert self._columnwise is not None
            yield from self._columnwise.pack(batch)

    def _is_compiled(self) -> bool:
        """Whether to use the compiled loops; once chosen, they stay."""
        if self._columnwise is None and compiled_columns(self._rows, self._expected()) is not None:
            from fencepost.spark.ways.packing.by_column import ColumnPacker

            self._columnwise = ColumnPacker(self._plan, self._placement, self._first_length)
        return self._columnwise is not None

    def _expected(self) -> int:
        """How many rows the compiled loops may save, judging by the past."""
        return _plain_work.rows if self._rows >= WARM_ROWS else 0

    def _first_length(self, place: TopicPartition) -> int:
        return ANY_LENGTH if place in self._packed else self._first(place)

    def _counted(self, packed: PackedBatch) -> PackedBatch:
        self._packed[packed.place] = self._packed.get(packed.place, 0) + packed.record_count
        return packed


def _has(batch: pa.RecordBatch, name: str) -> bool:
    """Whether a row has a value in a column that the compiled loops do not know."""
    if name not in batch.schema.names:
        return False
    column = batch.column(name)
    return bool(column.null_count < len(column))
