"""Rows into batches: the first step of every task that has rows.

Theory of operation. A task decides for each row its topic and partition (`by_record.py`), and
builds record batches of one partition each: finished but for the producer's identity, the sequence
and the CRC, which the writer of that partition puts into the header. So a few large pieces travel
to the writer instead of single records, and encoding and compression use all cores.

Two implementations give the same result: `by_record.py` works record by record, `by_column.py` in
compiled loops over whole columns. Both keep the order of rows within a partition.

A task keeps a manifest: how many rows it saw and how many it packed for each partition. The driver
compares this with what was acknowledged, before it commits (`accounts.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final

from fencepost.base.ids import TopicPartition
from fencepost.spark.compiled import WARM_ROWS, compiled_columns
from fencepost.spark.ways.accounts import Manifest, manifest_of
from fencepost.spark.ways.packing.by_record import (
    PackedBatch,
    PackingPlan,
    Placement,
    pack_plain,
)
from fencepost.spark.ways.packing.rows import TIMESTAMP_MS

if TYPE_CHECKING:
    import pyarrow as pa

    from fencepost.spark.ways.packing.by_column import ColumnPacker

ANY_LENGTH: Final = 2**31 - 1

BYTES_LIKE_A_ROW: Final = 5_500
"""Packing a row of 100 bytes record by record takes as long as copying this many more bytes."""

_plain_rows = 0
"""How much this process has packed record by record, in rows of 100 bytes. A worker that Spark
reuses packs little in each batch, but over time enough to justify loading the compiled loops."""


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

    def pack_all(self, batches: Iterable[pa.RecordBatch]) -> Iterator[PackedBatch]:
        """All batches of these rows."""
        for batch in batches:
            yield from self.pack(batch)
        yield from self.finish()

    def pack(self, batch: pa.RecordBatch) -> Iterator[PackedBatch]:
        """Adds rows; yields the batches that are full."""
        self._rows += batch.num_rows
        if batch.num_rows:
            yield from map(self._counted, self._batches(batch))

    def finish(self) -> Iterator[PackedBatch]:
        """The batches that are not full."""
        if self._columnwise is not None:
            yield from map(self._counted, self._columnwise.close_all())

    def manifest(self) -> Manifest:
        """What was packed, for the driver's check."""
        return manifest_of(self._map_id, self._rows, self._packed)

    def _batches(self, batch: pa.RecordBatch) -> Iterator[PackedBatch]:
        global _plain_rows
        is_plain = _has(batch, "headers") or _has(batch, TIMESTAMP_MS)
        if is_plain or (columnwise := self._compiled()) is None:
            _plain_rows += batch.num_rows + batch.nbytes // BYTES_LIKE_A_ROW
            if self._columnwise is not None:
                # The rows of open batches came first, and must stay first.
                yield from self._columnwise.close_all()
            rows = batch.to_pylist()
            yield from pack_plain(self._plan, self._placement, rows, self._first_length)
        else:
            yield from columnwise.pack(batch)

    def _compiled(self) -> ColumnPacker | None:
        """The compiled loops, if they are worth it; once chosen, they stay."""
        # How many rows they may save, judging by the past.
        expected = _plain_rows if self._rows >= WARM_ROWS else 0
        if self._columnwise is None and compiled_columns(self._rows, expected) is not None:
            from fencepost.spark.ways.packing.by_column import ColumnPacker

            self._columnwise = ColumnPacker(self._plan, self._placement, self._first_length)
        return self._columnwise

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
