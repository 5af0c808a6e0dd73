"""Batches and markers of one producer."""

from __future__ import annotations

from fencepost.records.batch import SealedBatch, read_header
from fencepost.records.builder import build_batch
from fencepost.records.control import Marker, build_marker
from fencepost.records.opened import Record

PRODUCER = 40


def data(offset: int, at_ms: int, *, sequence: int = 9, producer: int = PRODUCER) -> SealedBatch:
    batch = build_batch(
        [Record(0, at_ms, None, b"v")],
        timestamp_ms=at_ms,
        producer_id=producer,
        producer_epoch=0,
        base_sequence=sequence,
        transactional=True,
    )
    sealed = read_header(bytearray(batch))
    sealed.assign(offset, 0)
    return sealed


def marker(
    offset: int, at_ms: int, *, commit: bool = True, producer: int = PRODUCER
) -> SealedBatch:
    return build_marker(
        Marker(commit, 3),
        producer_id=producer,
        producer_epoch=0,
        timestamp_ms=at_ms,
        base_offset=offset,
    )
