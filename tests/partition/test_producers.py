"""Epochs and sequences of one partition's producers, without a log."""

from __future__ import annotations

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import MAX_SEQUENCE
from fencepost.partition.producers import Producers
from fencepost.records.batch import SealedBatch
from fencepost.records.control import Marker, build_marker
from tests.partition.batches import client_batch

PID = 7


def numbered(
    sequence: int, *, count: int = 1, epoch: int = 0, offset: int = 0, transactional: bool = False
) -> SealedBatch:
    batch = client_batch(
        *[b"v"] * count,
        producer_id=PID,
        epoch=epoch,
        sequence=sequence,
        transactional=transactional,
    )
    batch.assign(offset, 0)
    return batch


def marker(epoch: int, coordinator_epoch: int = 0) -> SealedBatch:
    return build_marker(
        Marker(True, coordinator_epoch), producer_id=PID, producer_epoch=epoch, timestamp_ms=5
    )


def error_of(
    producers: Producers, batch: SealedBatch, *, starts_at_zero: bool = False
) -> ErrorCode:
    refusal = producers.check_epoch(
        batch.producer_id, batch.producer_epoch
    ) or producers.check_sequence(batch, starts_at_zero=starts_at_zero)
    return refusal.error if refusal else ErrorCode.NONE


def end(producers: Producers, epoch: int, coordinator_epoch: int = 0) -> None:
    producers.apply_marker(marker(epoch, coordinator_epoch), Marker(True, coordinator_epoch))


def test_case_51_the_last_five_batches_are_recognised_and_the_sixth_is_not() -> None:
    producers = Producers()
    batches = [numbered(n * 2, count=2, offset=n * 2) for n in range(6)]
    for batch in batches:
        producers.apply_batch(batch)
    state = producers.get(PID)
    assert state is not None
    for batch in batches[1:]:
        known = state.find_duplicate(batch)
        assert known is not None
        assert (known.base_offset, known.last_offset) == (batch.base_offset, batch.last_offset)
    assert state.find_duplicate(batches[0]) is None
    assert error_of(producers, batches[0]) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_case_51_a_partial_overlap_is_out_of_order() -> None:
    producers = Producers()
    producers.apply_batch(numbered(0, count=4))
    overlapping = numbered(2, count=4)
    assert producers.get(PID).find_duplicate(overlapping) is None  # type: ignore[union-attr]
    assert error_of(producers, overlapping) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_case_52_a_gap_is_out_of_order() -> None:
    producers = Producers()
    producers.apply_batch(numbered(0))
    assert error_of(producers, numbered(2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert error_of(producers, numbered(1)) is ErrorCode.NONE


def test_case_52_sequences_wrap_to_zero_and_not_to_one() -> None:
    producers = Producers()
    producers.apply_batch(numbered(MAX_SEQUENCE))
    assert error_of(producers, numbered(0)) is ErrorCode.NONE
    assert error_of(producers, numbered(1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_case_52_a_batch_may_span_the_wrap() -> None:
    producers = Producers()
    spanning = numbered(MAX_SEQUENCE - 1, count=4)
    producers.apply_batch(spanning)
    state = producers.get(PID)
    assert state is not None
    assert state.last_sequence == 1
    assert state.find_duplicate(spanning) is not None
    assert error_of(producers, numbered(2)) is ErrorCode.NONE


def test_case_53_a_higher_epoch_starts_at_zero_and_a_lower_one_is_refused() -> None:
    producers = Producers()
    producers.apply_batch(numbered(0, epoch=3))
    assert error_of(producers, numbered(1, epoch=4)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert error_of(producers, numbered(0, epoch=4)) is ErrorCode.NONE
    assert error_of(producers, numbered(1, epoch=2)) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_case_54_after_only_a_marker_the_next_sequence_is_zero() -> None:
    producers = Producers()
    end(producers, 2)
    assert error_of(producers, numbered(17, epoch=2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert error_of(producers, numbered(0, epoch=2)) is ErrorCode.NONE
    assert error_of(producers, numbered(0, epoch=0)) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_case_55_a_marker_with_a_higher_epoch_resets_the_sequence() -> None:
    producers = Producers()
    producers.apply_batch(numbered(0, count=5, transactional=True))
    end(producers, 1)
    assert error_of(producers, numbered(5, epoch=1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert error_of(producers, numbered(0, epoch=1)) is ErrorCode.NONE


def test_case_55_a_marker_of_the_same_epoch_keeps_the_sequence() -> None:
    producers = Producers()
    producers.apply_batch(numbered(0, count=5, transactional=True))
    end(producers, 0)
    assert error_of(producers, numbered(5)) is ErrorCode.NONE


def test_case_55_the_state_of_a_fencing_marker_is_kept_until_it_expires() -> None:
    producers = Producers()
    end(producers, 2)  # The marker's time is 5.
    producers.expire(now_ms=14, expiration_ms=10)
    assert producers.get(PID) is not None
    producers.expire(now_ms=15, expiration_ms=10)
    assert producers.get(PID) is None


def test_case_56_a_plain_batch_inside_an_open_transaction_is_an_invalid_state() -> None:
    producers = Producers()
    producers.apply_batch(numbered(0, transactional=True))
    assert error_of(producers, numbered(1)) is ErrorCode.INVALID_TXN_STATE


def test_case_56_a_plain_batch_of_a_higher_epoch_cannot_bypass_an_open_transaction() -> None:
    """Otherwise the marker, with its lower epoch, would be refused and the transaction hang."""
    producers = Producers()
    producers.apply_batch(numbered(0, transactional=True))
    assert error_of(producers, numbered(1, epoch=1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert error_of(producers, numbered(0, epoch=1)) is ErrorCode.INVALID_TXN_STATE
    end(producers, epoch=0)
    assert error_of(producers, numbered(0, epoch=1)) is ErrorCode.NONE


@pytest.mark.parametrize(
    ("starts_at_zero", "expected"),
    [(True, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER), (False, ErrorCode.NONE)],
)
def test_case_57_an_unknown_producer_may_start_anywhere_except_in_tv2(
    starts_at_zero: bool, expected: ErrorCode
) -> None:
    batch = numbered(5, transactional=True)
    assert error_of(Producers(), batch, starts_at_zero=starts_at_zero) is expected


def marker_error(
    producers: Producers, epoch: int, *, coordinator_epoch: int = 0, version: int = 0
) -> ErrorCode:
    refusal = producers.check_marker(
        PID, epoch, coordinator_epoch=coordinator_epoch, transaction_version=version
    )
    return refusal.error if refusal else ErrorCode.NONE


def test_case_64_an_older_coordinator_is_fenced_even_without_a_transaction() -> None:
    producers = Producers()
    end(producers, 0, coordinator_epoch=2)
    fenced = ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert marker_error(producers, 0, coordinator_epoch=1) is fenced
    reloaded = Producers()
    reloaded.restore(producers.snapshot())
    assert marker_error(reloaded, 0, coordinator_epoch=1) is fenced
    assert marker_error(reloaded, 0, coordinator_epoch=2) is ErrorCode.NONE


def test_a_stale_epoch_is_reported_before_an_old_coordinator() -> None:
    producers = Producers()
    end(producers, 3, coordinator_epoch=5)
    refusal = producers.check_marker(PID, 2, coordinator_epoch=4, transaction_version=0)
    assert refusal is not None
    assert refusal.error is ErrorCode.INVALID_PRODUCER_EPOCH


def test_case_65_tv1_markers_may_have_the_same_epoch_but_not_a_lower_one() -> None:
    producers = Producers()
    producers.apply_batch(numbered(0, epoch=3, transactional=True))
    assert marker_error(producers, 3) is ErrorCode.NONE
    assert marker_error(producers, 2) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_case_65_tv2_markers_need_a_higher_epoch_while_the_transaction_is_open() -> None:
    producers = Producers()
    producers.apply_batch(numbered(0, epoch=3, transactional=True))
    assert marker_error(producers, 2, version=2) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert marker_error(producers, 3, version=2) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert marker_error(producers, 4, version=2) is ErrorCode.NONE


def test_case_65_a_repeated_tv2_marker_is_accepted() -> None:
    producers = Producers()
    producers.apply_batch(numbered(0, epoch=3, transactional=True))
    end(producers, 4)
    assert marker_error(producers, 4, version=2) is ErrorCode.NONE


def test_case_67_a_snapshot_keeps_epoch_sequence_and_open_transaction() -> None:
    producers = Producers()
    producers.apply_batch(numbered(0, count=3, offset=10, epoch=1, transactional=True))
    reloaded = Producers()
    assert reloaded.restore(producers.snapshot()) == [(10, PID)]
    assert error_of(reloaded, numbered(3, epoch=1, transactional=True)) is ErrorCode.NONE
    assert error_of(reloaded, numbered(0, epoch=0)) is ErrorCode.INVALID_PRODUCER_EPOCH
    again = numbered(0, count=3, epoch=1, transactional=True)
    known = reloaded.get(PID).find_duplicate(again)  # type: ignore[union-attr]
    assert known is not None
    assert known.base_offset == 10


def test_a_snapshot_of_a_batch_that_spans_the_wrap_finds_the_duplicate() -> None:
    producers = Producers()
    spanning = numbered(MAX_SEQUENCE - 1, count=4, offset=100)
    producers.apply_batch(spanning)
    reloaded = Producers()
    reloaded.restore(producers.snapshot())
    assert reloaded.get(PID).find_duplicate(spanning) is not None  # type: ignore[union-attr]


def test_case_68_producers_with_an_open_transaction_never_expire() -> None:
    producers = Producers()
    producers.apply_batch(numbered(0, transactional=True))
    assert producers.expire(now_ms=10**15, expiration_ms=1) == 0
    end(producers, 0)
    assert producers.expire(now_ms=10**15, expiration_ms=1) == 1
    assert error_of(producers, numbered(99)) is ErrorCode.NONE
