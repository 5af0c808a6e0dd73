"""Walks the batches in the bytes of a segment, up to the first damage.

The bytes may be those of a running broker: the last batch may be half written, and the end may be
preallocated zeros. Nothing is skipped: after damage the next batch cannot be found reliably.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from fencepost.base.seams import Buffer
from fencepost.records.batch import HEADER_BYTES, BatchError, SealedBatch, read_header

_ZEROS: Final = bytes(1 << 16)


class TornSegmentError(Exception):
    """A segment cannot be read beyond a position."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(f"at byte {position}: {reason}")
        self.position = position
        self.reason = reason


def walk_segment(data: Buffer) -> Iterator[tuple[int, SealedBatch]]:
    """Yields positions and whole batches; TornSegmentError where no batch begins.

    The CRC is not checked (`SealedBatch.is_sound`). Zeros up to the end are preallocated space.
    """
    view = memoryview(data)
    position, size = 0, len(view)
    while position < size:
        left = size - position
        if left < HEADER_BYTES:
            if is_zero(view[position:]):
                return
            raise TornSegmentError(position, f"{left} bytes are too few for a batch")
        try:
            batch = read_header(view, position)
        except BatchError as problem:
            if is_zero(view[position:]):
                return
            raise TornSegmentError(position, str(problem)) from None
        if batch.size_bytes > left:
            raise TornSegmentError(
                position, f"a batch of {batch.size_bytes} bytes ends after {left} bytes"
            )
        yield position, batch
        position += batch.size_bytes


def is_zero(data: memoryview) -> bool:
    """Whether there are only zeros."""
    step = len(_ZEROS)
    for start in range(0, len(data), step):
        part = data[start : start + step]
        if part != memoryview(_ZEROS)[: len(part)]:
            return False
    return True
