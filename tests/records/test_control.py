"""Markers: their bytes, and readers that accept later versions."""

from __future__ import annotations

import struct

import pytest

from fencepost.records.batch import BatchError, SealedBatch, read_header, seal_check
from fencepost.records.builder import build_pairs, rebuild_batch
from fencepost.records.control import Marker, build_marker, read_marker
from fencepost.records.entry import Entry, entries_of

COMMIT_SAMPLE = bytes.fromhex(
    "000000000000002a 00000042 00000000 02 9511fa90 0030 00000000 0000018bcfe56800 0000018bcfe56800"
    "0000000000000fa0 0001 ffffffff 00000001 20 00 00 00 08 00000001 0c 000000000007 00"
)


def control_batch(key: bytes | None, value: bytes | None) -> SealedBatch:
    return build_pairs([(key, value)], timestamp_ms=0, transactional=True, control=True)


def test_a_commit_marker_matches_the_sample_byte_for_byte() -> None:
    built = build_marker(
        Marker(commit=True, coordinator_epoch=7),
        producer_id=4000,
        producer_epoch=1,
        timestamp_ms=1700000000000,
        base_offset=42,
    )
    assert built.data == COMMIT_SAMPLE


def test_the_sample_is_read_as_a_commit_marker() -> None:
    batch = read_header(COMMIT_SAMPLE)
    seal_check(batch)
    assert batch.is_control
    assert batch.is_transactional
    assert (batch.base_offset, batch.producer_id, batch.producer_epoch) == (42, 4000, 1)
    assert read_marker(batch) == Marker(commit=True, coordinator_epoch=7)


@pytest.mark.parametrize("commit", [True, False])
def test_markers_read_back(commit: bool) -> None:
    marker = Marker(commit, 2**31 - 1)
    built = build_marker(marker, producer_id=1, producer_epoch=0, timestamp_ms=0)
    assert built.size_bytes == 78
    assert read_marker(read_header(built.data)) == marker


def test_data_batches_and_emptied_markers_are_not_markers() -> None:
    assert read_marker(build_pairs([(b"k", b"v")], timestamp_ms=0)) is None
    emptied = rebuild_batch(read_header(COMMIT_SAMPLE), (), delete_horizon_ms=None)
    assert read_marker(read_header(emptied)) is None


def test_higher_versions_are_read_as_version_zero() -> None:
    batch = control_batch(struct.pack(">hhq", 3, 0, 9), struct.pack(">hiq", 5, 11, 1))
    assert read_marker(batch) == Marker(commit=False, coordinator_epoch=11)


@pytest.mark.parametrize("kind", [2, 3, 4, 5, 6, 99, -1])
def test_other_control_records_are_skipped(kind: int) -> None:
    batch = control_batch(struct.pack(">hh", 0, kind), b"anything")
    assert read_marker(batch) is None
    assert list(entries_of(batch)) == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b""),
        (b"\x00\x00\x00", b""),
        (struct.pack(">hh", -1, 1), struct.pack(">hi", 0, 1)),
        (struct.pack(">hh", 0, 1), None),
        (struct.pack(">hh", 0, 1), b"\x00\x00\x00"),
        (struct.pack(">hh", 0, 1), struct.pack(">hi", -1, 1)),
    ],
)
def test_a_damaged_marker_is_a_batch_error(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(BatchError):
        read_marker(control_batch(key, value))


def test_entries_have_their_producer_and_offset() -> None:
    batch = build_pairs(
        [(b"k", b"v"), (b"t", None)],
        timestamp_ms=0,
        base_offset=10,
        producer_id=5,
        producer_epoch=2,
        transactional=True,
    )
    assert list(entries_of(batch)) == [
        Entry(10, 5, 2, True, b"k", b"v"),
        Entry(11, 5, 2, True, b"t", None),
    ]
    assert list(entries_of(read_header(COMMIT_SAMPLE))) == [
        Entry(42, 4000, 1, True, None, None, Marker(commit=True, coordinator_epoch=7))
    ]
