"""The three index formats."""

from __future__ import annotations

import struct
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.records.index import (
    AbortedTxn,
    decode_aborted_txns,
    decode_offset_index,
    decode_time_index,
    encode_aborted_txn,
    encode_offset_index,
    encode_time_index,
)

int32 = st.integers(0, 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)


@given(st.lists(st.tuples(int32, int32)))
def test_an_offset_index_is_pairs_of_big_endian_integers(entries: list[tuple[int, int]]) -> None:
    offsets = array("i", [offset for offset, _ in entries])
    positions = array("i", [position for _, position in entries])
    data = encode_offset_index(offsets, positions)
    assert data == b"".join(struct.pack(">ii", *entry) for entry in entries)
    assert decode_offset_index(data) == (offsets, positions)


@given(st.lists(st.tuples(int64, int32)))
def test_a_time_index_is_pairs_of_a_long_and_an_integer(entries: list[tuple[int, int]]) -> None:
    timestamps = array("q", [timestamp for timestamp, _ in entries])
    offsets = array("i", [offset for _, offset in entries])
    data = encode_time_index(timestamps, offsets)
    assert data == b"".join(struct.pack(">qi", *entry) for entry in entries)
    assert decode_time_index(data) == (timestamps, offsets)


def test_an_aborted_transaction_matches_the_sample_byte_for_byte() -> None:
    txn = AbortedTxn(983493, 137, 299, 200)
    sample = bytes.fromhex(
        "0000 00000000000f01c5 0000000000000089 000000000000012b 00000000000000c8"
    )
    assert encode_aborted_txn(txn) == sample
    assert decode_aborted_txns(sample) == [txn]


def test_aborted_transactions_are_stored_one_after_the_other() -> None:
    txns = [AbortedTxn(5, 0, 10, 11), AbortedTxn(6, 3, 20, 21)]
    assert decode_aborted_txns(b"".join(map(encode_aborted_txn, txns))) == txns
    assert decode_aborted_txns(b"") == []


@pytest.mark.parametrize("data", [b"\x00" * 33, b"\x00\x01" + bytes(32), b"\xff\xff" + bytes(32)])
def test_a_damaged_transaction_index_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        decode_aborted_txns(data)


def test_a_transaction_index_out_of_order_is_refused() -> None:
    entry = encode_aborted_txn(AbortedTxn(5, 0, 10, 11))
    with pytest.raises(ValueError):
        decode_aborted_txns(entry + entry)


def test_indexes_that_end_inside_an_entry_are_refused() -> None:
    with pytest.raises(ValueError):
        decode_offset_index(bytes(7))
    with pytest.raises(ValueError):
        decode_time_index(bytes(13))
