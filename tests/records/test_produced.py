"""What a broker requires of a client's batch, with Kafka's codes."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from fencepost.base.errors import ErrorCode
from fencepost.base.refusal import Refusal
from fencepost.base.seams import Buffer
from fencepost.records.batch import SealedBatch, read_header
from fencepost.records.builder import build_batch, build_pairs
from fencepost.records.opened import Record
from fencepost.records.produced import check_produced, check_timestamps, read_produced

MAX_BYTES = 1000


def sent(*, reseal: bool = True, **changes: tuple[str, int, int]) -> bytearray:
    """A client's batch in which fields were changed: name=(format, position, value)."""
    data = build_batch([Record(key=b"k", value=b"v")] * 3, timestamp_ms=1000)
    for form, position, value in changes.values():
        struct.pack_into(form, data, position, value)
    if reseal:
        struct.pack_into(">I", data, 17, crc32c(memoryview(data)[21:]))
    return data


def checked(data: Buffer | None) -> SealedBatch | Refusal:
    """The batch if it passes both checks."""
    batch = read_produced(data)
    if isinstance(batch, Refusal):
        return batch
    return check_produced(batch, max_bytes=MAX_BYTES) or batch


def accepted(data: Buffer) -> SealedBatch:
    batch = checked(data)
    assert isinstance(batch, SealedBatch)
    return batch


def refusal(data: Buffer | None) -> ErrorCode:
    refused = checked(data)
    assert isinstance(refused, Refusal)
    return refused.error


def test_a_valid_batch_is_read_without_a_copy() -> None:
    data = memoryview(sent())
    batch = accepted(data)
    batch.assign(5, 0)
    assert read_header(data).base_offset == 5


def test_a_missing_batch_is_an_invalid_record() -> None:
    assert refusal(None) is ErrorCode.INVALID_RECORD
    assert refusal(b"") is ErrorCode.INVALID_RECORD


def test_a_second_batch_is_refused() -> None:
    assert refusal(sent() + sent()) is ErrorCode.INVALID_RECORD


def test_a_truncated_batch_is_refused() -> None:
    assert refusal(sent()[:-1]) is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("size", [1, 16, 17, 60])
def test_part_of_a_header_is_not_a_batch(size: int) -> None:
    assert refusal(sent()[:size]) is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize(
    ("change", "is_whole"),
    [
        ((">q", 0, 7), True),  # base offset
        ((">i", 57, 0), True),  # record count
        ((">i", 57, 1000), True),
        ((">h", 21, 0x20), True),  # control batch
        ((">b", 16, 1), False),  # magic
    ],
)
def test_a_complete_batch_is_read_and_then_refused_for_its_header(
    change: tuple[str, int, int], is_whole: bool
) -> None:
    data = sent(change=change)
    assert refusal(data) is ErrorCode.INVALID_RECORD
    assert isinstance(read_produced(data), SealedBatch) == is_whole


def test_an_old_message_format_is_an_invalid_record() -> None:
    assert refusal(sent(magic=(">b", 16, 1))) is ErrorCode.INVALID_RECORD


def test_a_wrong_crc_is_corrupt() -> None:
    assert refusal(sent(reseal=False, count=(">i", 57, 2))) is ErrorCode.CORRUPT_MESSAGE


def test_a_batch_with_a_base_offset_other_than_zero_is_refused() -> None:
    assert refusal(sent(base_offset=(">q", 0, 5))) is ErrorCode.INVALID_RECORD


def test_a_batch_above_the_limit_is_too_large() -> None:
    large = bytes(build_pairs([(b"k", bytes(MAX_BYTES))], timestamp_ms=0).data)
    assert refusal(large) is ErrorCode.MESSAGE_TOO_LARGE


def test_counts_must_agree() -> None:
    assert refusal(sent(count=(">i", 57, 2))) is ErrorCode.INVALID_RECORD
    assert refusal(sent(last_delta=(">i", 23, 3))) is ErrorCode.INVALID_RECORD
    empty = sent(count=(">i", 57, 0), last_delta=(">i", 23, 0))
    assert refusal(empty) is ErrorCode.INVALID_RECORD


def test_clients_may_not_write_control_records() -> None:
    assert refusal(sent(attributes=(">h", 21, 0x20))) is ErrorCode.INVALID_RECORD


def test_a_batch_with_a_producer_id_needs_a_sequence() -> None:
    assert refusal(sent(producer_id=(">q", 43, 7))) is ErrorCode.INVALID_RECORD
    numbered = sent(producer_id=(">q", 43, 7), epoch=(">h", 51, 0), sequence=(">i", 53, 0))
    assert accepted(numbered).producer_id == 7


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_an_unknown_codec_is_refused(codec: int) -> None:
    code = refusal(sent(attributes=(">h", 21, codec)))
    assert code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


def test_timestamps_too_far_from_the_clock_are_refused() -> None:
    assert check_timestamps(1000, 1000, 1000, before_max_ms=0, after_max_ms=0) is None
    early = check_timestamps(1000, 1000, 999, before_max_ms=2**63 - 1, after_max_ms=0)
    late = check_timestamps(1000, 1000, 1101, before_max_ms=100, after_max_ms=0)
    assert early is not None
    assert late is not None
    assert early.error is late.error is ErrorCode.INVALID_TIMESTAMP


@given(st.binary(max_size=150))
def test_any_bytes_are_a_batch_or_are_refused(data: bytes) -> None:
    assert isinstance(checked(data), SealedBatch | Refusal)
