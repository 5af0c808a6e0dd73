"""Zigzag varints against aiokafka's reader, and invalid bytes."""

from __future__ import annotations

import pytest
from aiokafka.record import util as oracle
from hypothesis import given
from hypothesis import strategies as st

from fencepost.records.varint import read_varint, read_varlong, write_varint


@given(st.integers(-(2**63), 2**63 - 1))
def test_a_varlong_matches_aiokafka_and_reads_back(value: int) -> None:
    expected = bytearray()
    oracle.encode_varint_py(value, expected.append)
    assert write_varint(value) == expected
    assert read_varlong(b"\xff" + expected + b"\x01", 1) == (value, 1 + len(expected))


@given(st.integers(-(2**31), 2**31 - 1))
def test_a_varint_reads_back(value: int) -> None:
    encoded = write_varint(value)
    assert len(encoded) <= 5
    assert read_varint(encoded, 0) == (value, len(encoded))


@pytest.mark.parametrize(
    ("value", "encoded"),
    [(0, "00"), (-1, "01"), (1, "02"), (63, "7e"), (-64, "7f"), (64, "8001"), (-65, "8101")],
)
def test_small_numbers_have_the_bytes_of_the_protocol(value: int, encoded: str) -> None:
    assert write_varint(value).hex() == encoded


def test_a_number_that_is_too_long_is_refused() -> None:
    with pytest.raises(ValueError):
        read_varint(b"\x80" * 5 + b"\x01", 0)
    with pytest.raises(ValueError):
        read_varlong(b"\x80" * 10 + b"\x01", 0)


def test_a_number_that_ends_too_early_is_refused() -> None:
    with pytest.raises(IndexError):
        read_varint(b"\x80\x80", 0)
