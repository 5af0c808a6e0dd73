"""Producer snapshots: a sample, and damage."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.records.snapshot import ProducerSnapshotEntry, decode_snapshot, encode_snapshot

SAMPLE = bytes.fromhex(
    "0001 5b83e057 00000001 0000000000000001 0002 00000001 0000000000000002 00000003"
    "ffffffffffffffff 00000003 0000000000000064"
)
SAMPLE_ENTRY = ProducerSnapshotEntry(1, 2, 1, 2, 3, -1, 3, 100)

int64 = st.integers(-(2**63), 2**63 - 1)
int32 = st.integers(-(2**31), 2**31 - 1)
an_entry = st.builds(
    ProducerSnapshotEntry,
    int64,
    st.integers(-(2**15), 2**15 - 1),
    int32,
    int64,
    int32,
    int64,
    int32,
    int64,
)


def test_a_snapshot_matches_the_sample_byte_for_byte() -> None:
    assert encode_snapshot([SAMPLE_ENTRY]) == SAMPLE
    assert decode_snapshot(SAMPLE) == [SAMPLE_ENTRY]


@given(st.lists(an_entry, max_size=5))
def test_snapshots_read_back(entries: list[ProducerSnapshotEntry]) -> None:
    assert decode_snapshot(encode_snapshot(entries)) == entries


@pytest.mark.parametrize("position", range(len(SAMPLE)))
def test_a_flipped_bit_is_detected(position: int) -> None:
    damaged = bytearray(SAMPLE)
    damaged[position] ^= 0x10
    with pytest.raises(ValueError):
        decode_snapshot(bytes(damaged))


@pytest.mark.parametrize("size", range(len(SAMPLE)))
def test_a_truncated_snapshot_is_detected(size: int) -> None:
    with pytest.raises(ValueError):
        decode_snapshot(SAMPLE[:size])
