"""Goal: frames do not depend on how the bytes arrive, and memory follows the bytes received."""

from __future__ import annotations

import struct
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencepost.base.failures import WireError
from fencepost.wire.framing import INBOX_BYTES, FrameBuffer, LargeBuffers
from tests.halves import examples


def framed(*bodies: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(body)) + body for body in bodies)


def feed(buffer: FrameBuffer, data: bytes, at_most: int = 1 << 30) -> list[memoryview]:
    """Feed bytes as a socket would, within the room of the buffer and the size of a read."""
    frames: list[memoryview] = []
    position = 0
    while position < len(data):
        room = buffer.get_buffer(65536)
        assert len(room) > 0
        count = min(len(room), len(data) - position, at_most)
        room[:count] = data[position : position + count]
        frames += buffer.buffer_updated(count)
        position += count
    return frames


def test_frames_that_arrive_together_are_split() -> None:
    buffer = FrameBuffer()
    frames = feed(buffer, framed(b"one", b"", b"three"))
    assert [bytes(frame) for frame in frames] == [b"one", b"", b"three"]


def test_a_frame_may_arrive_byte_by_byte() -> None:
    buffer = FrameBuffer()
    assert [bytes(f) for f in feed(buffer, framed(b"hello", b"you"), at_most=1)] == [
        b"hello",
        b"you",
    ]


def test_a_frame_larger_than_the_inbox_arrives_whole() -> None:
    body = bytes(range(256)) * 4096
    frames = feed(FrameBuffer(), framed(b"first", body, b"last"))
    assert [bytes(frame) for frame in frames] == [b"first", body, b"last"]


@pytest.mark.parametrize("size", [INBOX_BYTES - 4, INBOX_BYTES - 3, 128 * 1024, 128 * 1024 + 1])
def test_a_frame_at_a_size_boundary_arrives_whole(size: int) -> None:
    body = bytes(size)
    assert [len(f) for f in feed(FrameBuffer(), framed(body, b"x"), at_most=1000)] == [size, 1]


@settings(max_examples=examples(60), deadline=None)
@given(
    sizes=st.lists(
        st.sampled_from([0, 1, 3, 100, 5000, INBOX_BYTES - 5, INBOX_BYTES, 300_000]), max_size=5
    ),
    cuts=st.lists(st.integers(1, 70_000), min_size=1, max_size=20),
)
def test_any_split_gives_the_same_frames(sizes: list[int], cuts: list[int]) -> None:
    bodies = [bytes([index + 1]) * size for index, size in enumerate(sizes)]
    data = framed(*bodies)
    buffer, frames, position, turn = FrameBuffer(), [], 0, 0
    while position < len(data):
        step = min(cuts[turn % len(cuts)], len(data) - position)
        frames += feed(buffer, data[position : position + step])
        position, turn = position + step, turn + 1
    assert [bytes(frame) for frame in frames] == bodies


@pytest.mark.parametrize("size", [10, 100_000])
def test_a_frame_does_not_change_while_more_arrive(size: int) -> None:
    buffer = FrameBuffer()
    (held,) = feed(buffer, framed(b"a" * size))
    feed(buffer, framed(b"b" * size, b"c" * INBOX_BYTES))
    assert bytes(held) == b"a" * size
    held[0] = 0  # The log writes offsets into it.


@pytest.mark.parametrize("size", [-1, -(2**31), 1001, 2**31 - 1])
def test_an_impossible_size_is_a_wire_error(size: int) -> None:
    buffer = FrameBuffer(max_bytes=1000)
    with pytest.raises(WireError, match=f"a frame of {size} bytes"):
        feed(buffer, struct.pack(">i", size))
    assert buffer.broken is not None


def test_a_frame_of_the_maximum_size_is_accepted() -> None:
    assert len(feed(FrameBuffer(max_bytes=100_000), framed(bytes(100_000)))) == 1


def test_frames_before_an_invalid_size_are_not_lost() -> None:
    buffer = FrameBuffer()
    frames = feed(buffer, framed(b"good") + b"\xff\xff\xff\xff")
    assert [bytes(frame) for frame in frames] == [b"good"]
    assert buffer.broken is not None
    with pytest.raises(WireError, match="negative"):
        feed(buffer, b"more")


def test_a_large_size_allocates_nothing_until_its_bytes_arrive() -> None:
    buffer = FrameBuffer()
    tracemalloc.start()
    try:
        feed(buffer, struct.pack(">i", 100_000_000) + b"x")
        buffer.get_buffer(65536)
        assert tracemalloc.get_traced_memory()[1] < 300_000
    finally:
        tracemalloc.stop()


def test_the_buffer_of_a_large_frame_is_reused_once_all_views_of_it_are_gone() -> None:
    buffers = LargeBuffers()
    frame = buffers.get(100_000)
    part = frame[500:600]
    memory = frame.obj
    del frame
    assert buffers.get(50_000).obj is not memory
    del part
    assert buffers.get(100_000).obj is memory


def test_after_one_large_frame_the_next_gets_its_whole_buffer_immediately() -> None:
    buffer = FrameBuffer()
    large = framed(bytes(1_000_000))
    feed(buffer, large[:50_000])
    assert len(buffer.get_buffer()) < 500_000
    feed(buffer, large[50_000:])
    feed(buffer, large[:50_000])
    assert len(buffer.get_buffer()) > 900_000


@settings(max_examples=examples(60), deadline=None)
@given(data=st.binary(max_size=300))
def test_random_bytes_are_frames_or_a_wire_error(data: bytes) -> None:
    buffer = FrameBuffer(max_bytes=200)
    try:
        frames = feed(buffer, data)
    except WireError:
        return
    assert all(len(frame) <= 200 for frame in frames)
