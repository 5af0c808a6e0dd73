"""Batches as a client sends them."""

from __future__ import annotations

from fencepost.records.batch import SealedBatch, read_header
from fencepost.records.builder import build_batch
from fencepost.records.opened import Record


def client_batch(
    *values: bytes,
    producer_id: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    transactional: bool = False,
    timestamp_ms: int = 1_000,
    key: bytes | None = b"k",
    codec: int = 0,
) -> SealedBatch:
    """One batch of the given values, or of one value `v`."""
    records = [Record(0, timestamp_ms, key, value, ()) for value in values or (b"v",)]
    data = build_batch(
        records,
        timestamp_ms=timestamp_ms,
        codec=codec,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
    )
    return read_header(memoryview(data))
