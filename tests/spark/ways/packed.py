"""Both implementations of packing, each for all rows at once."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import pyarrow as pa

from fencepost.base.ids import TopicPartition
from fencepost.spark.ways.packing.by_column import ColumnPacker
from fencepost.spark.ways.packing.by_record import PackedBatch, PackingPlan, Placement, pack_plain
from fencepost.spark.ways.packing.packer import ANY_LENGTH


def any_length(_: TopicPartition) -> int:
    return ANY_LENGTH


def plainly(plan: PackingPlan, rows: pa.RecordBatch) -> Iterator[PackedBatch]:
    return pack_plain(plan, Placement(plan, 0), rows.to_pylist(), any_length)


def columnwise(plan: PackingPlan, rows: pa.RecordBatch) -> Iterator[PackedBatch]:
    """Copies the bytes, so that the packer can reuse its memory."""
    packer = ColumnPacker(plan, Placement(plan, 0), any_length)
    for packed in chain(packer.pack(rows), packer.close_all()):
        yield packed._replace(data=bytearray(packed.data))
        packed.done()
