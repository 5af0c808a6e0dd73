"""Iterates over the batches of a segment.

The iteration may pause between two batches for as long as its caller likes. During a pause the
segment may grow or be removed, and its file may be closed. So each read asks the segment for its
file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fencepost.log.segment.damage import run_at
from fencepost.log.segment.survey import SCAN_BYTES
from fencepost.log.segment.walk import NoBatchError
from fencepost.records.batch import HEADER_BYTES, BatchError, SealedBatch, read_header

if TYPE_CHECKING:
    from fencepost.log.segment.segment import Segment


def batches_of(
    segment: Segment, position: int = 0, *, headers_only: bool = False
) -> Iterator[SealedBatch]:
    """Iterates over the batches from `position` on; with `headers_only` they may lack their data.

    Control batches always have their data, and it passes its check: a marker must not end a
    transaction the other way. Damage is skipped. The iteration ends early when the segment is
    removed.
    """
    while position < segment.size_bytes and not segment.is_gone:
        size = segment.size_bytes
        if segment.damage:
            if (run := run_at(segment.damage, position)) is not None:
                position = run.end
                continue
            size = segment.end_of_run(position)[0]
        try:
            for batch in sound_run(segment, position, size, headers_only):
                if batch.is_control and not batch.is_sound:
                    raise NoBatchError(position)
                yield batch
                position += batch.size_bytes
        except NoBatchError:
            _pass_over(segment, position)


def _pass_over(segment: Segment, position: int) -> None:
    """Examines the segment where there is no batch; raises if that finds no damage."""
    if segment.is_gone:
        return
    segment.examine()
    is_known = run_at(segment.damage, position) is not None
    if not is_known and segment.end_of_run(position)[0] == segment.size_bytes:
        raise segment.corrupt(position)


def sound_run(
    segment: Segment, position: int, size: int, headers_only: bool
) -> Iterator[SealedBatch]:
    """The batches between two positions without known damage; NoBatchError where there is none."""
    while position < size and not segment.is_gone:
        chunk = segment.file().read(position, min(SCAN_BYTES, size - position))
        view = memoryview(chunk)
        start = 0
        while start + HEADER_BYTES <= len(chunk):
            batch = _batch_at(view, start, position, size)
            if len(batch.data) < batch.size_bytes and (batch.is_control or not headers_only):
                break
            yield batch
            start += batch.size_bytes
        if start == 0:
            batch = _large_batch(segment, position, size)
            yield batch
            start = batch.size_bytes
        position += start


def _batch_at(view: memoryview, start: int, position: int, size: int) -> SealedBatch:
    """The batch at `start` in a chunk that begins at `position`; it must end before `size`."""
    try:
        batch = read_header(view, start)
    except BatchError as problem:
        raise NoBatchError(position + start) from problem
    if position + start + batch.size_bytes > size:
        raise NoBatchError(position + start)
    return batch


def _large_batch(segment: Segment, position: int, size: int) -> SealedBatch:
    """Reads a batch that is larger than one chunk."""
    file = segment.file()
    header = memoryview(file.read(position, HEADER_BYTES))
    batch = _batch_at(header, 0, position, size)
    return read_header(file.read(position, batch.size_bytes))
