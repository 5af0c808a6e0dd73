"""Lines of a pipe or a file."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.cli.record_lines import read_lines


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    yield reading, writing
    os.close(reading)


@given(st.lists(st.binary(max_size=5).map(lambda line: line.replace(b"\n", b"")), max_size=9))
def test_lines_are_read_whole_with_or_without_an_end(lines: list[bytes]) -> None:
    for end in (b"", b"\n"):
        reading, writing = os.pipe()
        os.write(writing, b"\n".join(lines) + (end if lines else b""))
        os.close(writing)
        found = [line for line in read_lines(reading) if line is not None]
        os.close(reading)
        # An empty last line without an end is no line.
        expected = lines if end or not lines or lines[-1] else lines[:-1]
        assert found == expected


def test_a_line_longer_than_a_chunk_is_one_line(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    long = b"x" * 3_000_000

    def write() -> None:
        with os.fdopen(writing, "wb") as out:
            out.write(long + b"\nshort")

    thread = threading.Thread(target=write)
    thread.start()
    assert [line for line in read_lines(reading) if line is not None] == [long, b"short"]
    thread.join()


def test_a_pause_of_the_input_is_told(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    os.write(writing, b"first\n")
    lines = read_lines(reading)
    assert next(lines) == b"first"
    assert next(lines) is None
    os.write(writing, b"second")
    os.close(writing)
    assert list(lines) == [b"second"]
