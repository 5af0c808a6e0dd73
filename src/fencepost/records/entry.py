"""One record of an internal topic, as a coordinator applies it, live and at load."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from fencepost.records.batch import SealedBatch
from fencepost.records.control import Marker, marker_of
from fencepost.records.opened import iterate_records


class Entry(NamedTuple):
    """A key and a value, or a marker, with its offset and producer."""

    offset: int
    producer_id: int
    producer_epoch: int
    transactional: bool
    key: bytes | None
    value: bytes | None
    marker: Marker | None = None


def entries_of(batch: SealedBatch) -> Iterator[Entry]:
    """The entries of one batch, without control records that are not markers."""
    producer_id, producer_epoch = batch.producer_id, batch.producer_epoch
    transactional = batch.is_transactional
    if not batch.is_control:
        for record in iterate_records(batch):
            yield Entry(
                record.offset, producer_id, producer_epoch, transactional, record.key, record.value
            )
        return
    for record in iterate_records(batch):
        marker = marker_of(record)
        if marker is not None:
            yield Entry(record.offset, producer_id, producer_epoch, True, None, None, marker)
