"""The first unstable offset of a partition."""

from __future__ import annotations

from fencepost.partition.open_txns import OpenTxns
from fencepost.partition.producers import CompletedTxn


def test_case_69_a_transaction_stays_unstable_until_its_marker_is_durable() -> None:
    txns = OpenTxns()
    txns.begin(99, producer_id=1)
    txns.begin(105, producer_id=2)
    txns.end(CompletedTxn(1, 99, 109, aborted=False))
    txns.forget_ended(high_watermark=109)
    assert txns.first_unstable_offset() == 99
    txns.forget_ended(high_watermark=110)
    assert txns.first_unstable_offset() == 105
    txns.end(CompletedTxn(2, 105, 112, aborted=True))
    txns.forget_ended(high_watermark=113)
    assert txns.first_unstable_offset() is None


def test_the_aborted_index_stores_the_next_open_transaction_of_another_producer() -> None:
    txns = OpenTxns()
    txns.begin(0, producer_id=1)
    txns.begin(8, producer_id=2)
    assert txns.stable_after(CompletedTxn(1, 0, 29, aborted=True)) == 8
    assert txns.stable_after(CompletedTxn(2, 8, 74, aborted=True)) == 0


def test_without_another_open_transaction_everything_up_to_the_marker_is_stable() -> None:
    txns = OpenTxns()
    txns.begin(5, producer_id=1)
    assert txns.stable_after(CompletedTxn(1, 5, 9, aborted=True)) == 10


def test_the_oldest_open_transaction_determines_the_first_unstable_offset() -> None:
    txns = OpenTxns()
    assert txns.first_unstable_offset() is None
    txns.begin(3, producer_id=11)
    txns.begin(4, producer_id=12)
    assert txns.first_unstable_offset() == 3
