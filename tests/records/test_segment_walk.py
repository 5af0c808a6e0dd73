"""Walking any bytes ends with a place and a reason, never with another exception."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.records.batch import SealedBatch
from fencepost.records.builder import build_batch
from fencepost.records.opened import Record
from fencepost.records.segment_walk import TornSegmentError, is_zero, walk_segment

ONE = bytes(build_batch([Record(value=b"v")], timestamp_ms=1))


def walked(data: bytes) -> tuple[list[tuple[int, SealedBatch]], int | None]:
    """The batches, and the place of the damage."""
    found = []
    try:
        for each in walk_segment(data):
            found.append(each)
    except TornSegmentError as torn:
        return found, torn.position
    return found, None


@given(count=st.integers(0, 5), tail=st.binary(max_size=200))
def test_whole_batches_are_found_before_any_tail(count: int, tail: bytes) -> None:
    found, damage = walked(ONE * count + tail)
    assert [position for position, _ in found][:count] == [len(ONE) * n for n in range(count)]
    if damage is not None:
        assert damage >= len(ONE) * count
    if tail and not any(tail):
        assert damage is None


@given(cut=st.integers(1, len(ONE) - 1))
def test_a_torn_batch_is_reported_where_it_begins(cut: int) -> None:
    found, damage = walked(ONE + ONE[:cut])
    assert len(found) == 1
    # The first bytes of a batch at offset 0 are zeros, as preallocated space is.
    assert damage == (len(ONE) if any(ONE[:cut]) else None)


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 65_537, 200_000])
def test_zeros_are_recognised_at_any_size(size: int) -> None:
    assert is_zero(memoryview(bytes(size)))
    if size:
        assert not is_zero(memoryview(bytes(size - 1) + b"\1"))
