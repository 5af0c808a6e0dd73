"""Packing in compiled loops over whole columns."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from fencepost.base.ids import TopicPartition
from fencepost.records.columns import Column, Ints, column_of, encode_lane, hash_keys
from fencepost.spark.packing import PackedBatch
from fencepost.spark.placement import RECORD_OVERHEAD_BYTES, RUN_BYTES, no_such_partition, no_topic

if TYPE_CHECKING:
    from fencepost.spark.packing import PackingPlan
    from fencepost.spark.placement import Placement


def pack_columnwise(
    plan: PackingPlan, placement: Placement, table: pa.Table
) -> Iterator[PackedBatch]:
    """Batches of these rows, which have no headers."""
    keys, values = (column_of(_column(table, name), table.num_rows) for name in ("key", "value"))
    sizes = _sizes(keys) + _sizes(values) + RECORD_OVERHEAD_BYTES
    widest = int(sizes.argmax())
    placement.check_size(int(sizes[widest]), _key(keys, widest))
    topics, codes = _topics(plan, table, keys)
    counts = np.array([placement.count(topic) for topic in topics], np.int64)
    partitions = _partitions(placement, table, keys, sizes, topics, codes, counts)
    now_ms = time.time_ns() // 1_000_000
    for topic, partition, rows in _lanes(topics, codes, partitions, counts):
        batches = encode_lane(
            keys, values, rows, timestamp_ms=now_ms, codec=plan.codec, batch_bytes=plan.batch_bytes
        )
        for batch in batches:
            yield PackedBatch(TopicPartition(topic, partition), batch.record_count, batch.data)


def _column(table: pa.Table, name: str) -> pa.Array | None:
    if name not in table.schema.names:
        return None
    found = table[name].combine_chunks()
    return found.chunk(0) if isinstance(found, pa.ChunkedArray) else found


def _sizes(column: Column) -> Ints:
    return np.diff(column.offsets)


def _key(keys: Column, row: int) -> bytes | None:
    if keys.nulls[row]:
        return None
    return keys.data[keys.offsets[row] : keys.offsets[row + 1]].tobytes()


def _topics(plan: PackingPlan, table: pa.Table, keys: Column) -> tuple[list[str], Ints]:
    """The different topics, and which one each row goes to."""
    if plan.topic is not None:
        return [plan.topic], np.zeros(table.num_rows, np.int64)
    column = _column(table, "topic")
    assert column is not None, "the driver has checked the columns"
    if column.null_count:
        row = int(np.asarray(column.is_null()).argmax())
        raise no_topic(_key(keys, row))
    encoded = column.dictionary_encode()
    return encoded.dictionary.to_pylist(), np.asarray(encoded.indices).astype(np.int64)


def _partitions(
    placement: Placement,
    table: pa.Table,
    keys: Column,
    sizes: Ints,
    topics: list[str],
    codes: Ints,
    counts: Ints,
) -> Ints:
    """The partition of every row, by column, by key, or by turn."""
    hashes = hash_keys(keys)
    keyless = hashes < 0
    wanted = _column(table, "partition")
    chosen = None if wanted is None or wanted.null_count == len(wanted) else wanted
    if chosen is not None:
        keyless &= np.asarray(chosen.is_null())
    before = np.cumsum(np.where(keyless, sizes, 0)) - np.where(keyless, sizes, 0)
    turns = placement.first_turn + (placement.keyless_bytes + before) // RUN_BYTES
    placement.keyless_bytes += int(sizes[keyless].sum())
    partitions = np.where(keyless, turns, hashes) % counts[codes]
    return partitions if chosen is None else _chosen(chosen, partitions, topics, codes, counts)


def _chosen(
    wanted: pa.Array, partitions: Ints, topics: list[str], codes: Ints, counts: Ints
) -> Ints:
    given = ~np.asarray(wanted.is_null())
    values = np.asarray(wanted.fill_null(0)).astype(np.int64)
    wrong = given & ((values < 0) | (values >= counts[codes]))
    if wrong.any():
        row = int(wrong.argmax())
        topic = int(codes[row])
        raise no_such_partition(topics[topic], int(values[row]), int(counts[topic]))
    return np.where(given, values, partitions)


def _lanes(
    topics: list[str], codes: Ints, partitions: Ints, counts: Ints
) -> Iterator[tuple[str, int, Ints]]:
    """The rows of each topic-partition, in their order."""
    width = int(counts.max())
    lanes = codes * width + partitions
    order = np.argsort(lanes, kind="stable")
    sorted_lanes = lanes[order]
    cuts: Any = np.flatnonzero(np.diff(sorted_lanes)) + 1
    for rows in np.split(order, cuts):
        lane = int(lanes[rows[0]])
        yield topics[lane // width], lane % width, rows
