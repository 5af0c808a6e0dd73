"""AddPartitionsToTxn, AddOffsetsToTxn and the first write of a transaction.

Numbers are those of docs/cases.md.
"""

from __future__ import annotations

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.coordinator.txn.decide import contains_all, merged, verify_partition
from fencepost.coordinator.txn.states import State
from tests.coordinator.txn.ledger import T0, T0_T1, TXN, Ledger, transaction

NONE = ErrorCode.NONE
CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS
MAPPING = ErrorCode.INVALID_PRODUCER_ID_MAPPING
FENCED = ErrorCode.PRODUCER_FENCED


def verify(ledger: Ledger, producer_id: int = 4000, epoch: int = 0, index: int = 0) -> ErrorCode:
    return verify_partition(ledger.state, TXN, producer_id, epoch, "t", index)


def test_case_19_an_unknown_id_has_no_producer() -> None:
    assert Ledger().add(4000, 0) is MAPPING


def test_case_19_another_producer_id_is_refused() -> None:
    assert Ledger(transaction()).add(4001, 0) is MAPPING


@pytest.mark.parametrize("epoch", [4, 6])
def test_case_19_a_lower_or_higher_epoch_is_fenced(epoch: int) -> None:
    assert Ledger(transaction(epoch=5)).add(4000, epoch) is FENCED


def test_case_20_partitions_that_were_added_are_not_written_again() -> None:
    ledger = Ledger(transaction(State.ONGOING, partitions=T0_T1))
    assert ledger.add(4000, 0, T0) is NONE
    assert len(ledger.log) == 1


def test_adding_partitions_to_an_open_transaction_keeps_its_start_time() -> None:
    ledger = Ledger(transaction(State.ONGOING, start_ms=777))
    assert ledger.add(4000, 0, {"t": (1,), "u": (3,)}) is NONE
    assert ledger.txn.partitions == {"t": (0, 1), "u": (3,)}
    assert ledger.txn.start_ms == 777


@pytest.mark.parametrize("state", [State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT])
def test_case_21_the_first_partition_begins_a_transaction(state: State) -> None:
    ledger = Ledger(transaction(state, start_ms=777))
    ledger.now_ms = 5_000
    assert ledger.add(4000, 0) is NONE
    assert ledger.txn.state == State.ONGOING
    assert ledger.txn.partitions == T0
    assert ledger.txn.start_ms == 5_000


@pytest.mark.parametrize("state", [State.PREPARE_COMMIT, State.PREPARE_ABORT])
def test_case_22_no_partition_can_be_added_to_a_transaction_that_is_ending(state: State) -> None:
    assert Ledger(transaction(state)).add(4000, 0) is CONCURRENT


def test_case_22_an_add_with_the_next_identity_waits_for_the_completion() -> None:
    ledger = Ledger(transaction(State.ONGOING, epoch=32766))
    reply = ledger.end(4000, 32766, commit=True, version=2)
    ledger.pending.add(TXN)
    assert ledger.add(reply.producer_id, 0, version=2) is CONCURRENT
    ledger.pending.remove(TXN)
    ledger.complete()
    assert ledger.add(reply.producer_id, 0, version=2) is NONE


def test_case_24_verification_succeeds_only_for_added_partitions() -> None:
    ledger = Ledger(transaction(State.ONGOING))
    assert verify(ledger) is NONE
    assert verify(ledger, index=1) is ErrorCode.TRANSACTION_ABORTABLE
    assert verify(ledger, producer_id=1) is MAPPING
    assert verify(ledger, epoch=1) is FENCED
    assert verify(Ledger()) is MAPPING


@pytest.mark.parametrize("state", [State.PREPARE_COMMIT, State.PREPARE_ABORT])
def test_case_24_verification_waits_for_the_end(state: State) -> None:
    assert verify(Ledger(transaction(state))) is CONCURRENT


def test_case_24_kafka_14904_verification_ignores_pending_ids() -> None:
    ledger = Ledger(transaction(State.ONGOING))
    ledger.pending.add(TXN)
    assert verify(ledger) is NONE


@pytest.mark.parametrize("state", [State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT])
def test_kafka_14402_a_write_after_the_end_is_not_verified(state: State) -> None:
    assert verify(Ledger(transaction(state))) is ErrorCode.TRANSACTION_ABORTABLE


def test_an_explicit_add_waits_for_a_pending_transition() -> None:
    ledger = Ledger(transaction(State.ONGOING))
    ledger.pending.add(TXN)
    assert ledger.add(4000, 0, T0_T1, version=0) is CONCURRENT


def test_a_pending_transition_is_reported_before_a_wrong_identity() -> None:
    ledger = Ledger(transaction(State.COMPLETE_COMMIT))
    ledger.pending.add(TXN)
    assert ledger.add(1, 1) is CONCURRENT


def test_an_implicit_add_does_not_wait_for_one_that_is_not_durable_yet() -> None:
    ledger = Ledger(transaction(State.ONGOING))
    ledger.pending.add(TXN)
    assert ledger.add(4000, 0, T0_T1, version=2) is NONE
    assert ledger.txn.partitions == T0_T1


def test_an_implicit_add_does_not_begin_a_transaction_during_a_pending_transition() -> None:
    ledger = Ledger(transaction(State.COMPLETE_COMMIT))
    ledger.pending.add(TXN)
    assert ledger.add(4000, 0, version=2) is CONCURRENT


@pytest.mark.parametrize("version", [0, 2])
def test_the_record_has_the_transaction_version_of_the_add(version: int) -> None:
    ledger = Ledger(transaction())
    ledger.add(4000, 0, version=version)
    assert ledger.txn.client_transaction_version == version


def test_merging_partitions_changes_neither_argument() -> None:
    known, added = {"t": (0, 2)}, {"t": (1,), "u": (0,)}
    assert merged(known, added) == {"t": (0, 1, 2), "u": (0,)}
    assert known == {"t": (0, 2)}
    assert added == {"t": (1,), "u": (0,)}


def test_partitions_are_compared_by_topic_and_index() -> None:
    assert contains_all({"t": (0, 1)}, {"t": (1,)})
    assert not contains_all({"t": (0, 1)}, {"t": (2,)})
    assert not contains_all({"t": (0, 1)}, {"u": (0,)})
