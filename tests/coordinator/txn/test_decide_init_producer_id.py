"""InitProducerId: epochs, and fencing.

Numbers are those of docs/cases.md.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.coordinator.txn.decide import refuse_init_producer_id
from fencepost.coordinator.txn.events import InitProducerId, Reply
from fencepost.coordinator.txn.prepare import timed_out_ids
from fencepost.coordinator.txn.states import State
from tests.coordinator.txn.ledger import TXN, Ledger, transaction

NONE = ErrorCode.NONE
FENCED = ErrorCode.PRODUCER_FENCED
CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS
MAX_TIMEOUT_MS = 900_000


def refused(event: InitProducerId, *, two_phase_commit: bool = False) -> ErrorCode:
    return refuse_init_producer_id(
        event, max_timeout_ms=MAX_TIMEOUT_MS, two_phase_commit_enabled=two_phase_commit
    )


def test_case_2_an_empty_transactional_id_is_refused() -> None:
    assert refused(InitProducerId("", 1_000)) is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("timeout_ms", [0, -1, MAX_TIMEOUT_MS + 1])
def test_case_3_a_timeout_out_of_range_is_refused(timeout_ms: int) -> None:
    assert refused(InitProducerId(TXN, timeout_ms)) is ErrorCode.INVALID_TRANSACTION_TIMEOUT


@pytest.mark.parametrize("timeout_ms", [1, MAX_TIMEOUT_MS])
def test_case_3_a_timeout_at_the_bounds_is_accepted(timeout_ms: int) -> None:
    assert refused(InitProducerId(TXN, timeout_ms)) is NONE


def test_case_4_a_new_id_begins_at_epoch_0_and_every_init_raises_it_by_one() -> None:
    ledger = Ledger()
    first = ledger.init()
    assert first.error is NONE
    assert first.producer_epoch == 0
    second = ledger.init()
    assert (second.producer_id, second.producer_epoch) == (first.producer_id, 1)
    assert ledger.ids_taken == 1


def test_case_5_a_producer_whose_state_has_expired_gets_a_fresh_id() -> None:
    ledger = Ledger()
    reply = ledger.init(4000, 17)
    assert reply.error is NONE
    assert reply.producer_id != 4000
    assert reply.producer_epoch == 0


def test_case_7_a_retried_init_gets_the_same_next_epoch() -> None:
    ledger = Ledger(transaction(epoch=10, last_epoch=9))
    assert ledger.init(4000, 10) == Reply(ErrorCode.NONE, 4000, 11)
    assert ledger.init(4000, 10) == Reply(ErrorCode.NONE, 4000, 11)
    assert ledger.txn.last_producer_epoch == 10


def test_case_7_a_retried_init_gets_the_same_reply_after_a_coordinator_move() -> None:
    """Kafka loses the last epoch then; here it is in the log."""
    ledger = Ledger(transaction(epoch=10, last_epoch=9))
    ledger.init(4000, 10)
    assert ledger.moved().init(4000, 10) == Reply(ErrorCode.NONE, 4000, 11)


def test_case_8_a_producer_is_fenced_once_another_one_has_initialised() -> None:
    ledger = Ledger(transaction(epoch=10, last_epoch=9))
    assert ledger.init() == Reply(ErrorCode.NONE, 4000, 11)
    assert ledger.init(4000, 10).error is FENCED


def test_case_9_a_producer_with_the_previous_producer_id_is_fenced() -> None:
    ledger = Ledger(transaction(producer_id=4001, epoch=3, previous=4000))
    assert ledger.init(4000, 2).error is FENCED


def test_case_10_at_the_last_epoch_an_init_and_its_retry_get_the_same_fresh_producer_id() -> None:
    ledger = Ledger(transaction(epoch=32766))
    first = ledger.init(4000, 32766)
    assert first.error is NONE
    assert first.producer_epoch == 0
    assert first.producer_id != 4000
    assert ledger.txn.previous_producer_id == 4000
    assert ledger.init(4000, 32766) == first
    assert ledger.ids_taken == 1


def test_case_10_an_older_epoch_of_the_exhausted_id_is_fenced() -> None:
    ledger = Ledger(transaction(epoch=32766))
    ledger.init(4000, 32766)
    assert ledger.init(4000, 32765).error is FENCED


def test_case_10_a_new_owner_of_an_exhausted_id_leaves_no_last_epoch() -> None:
    ledger = Ledger(transaction(epoch=32766))
    assert ledger.init().producer_epoch == 0
    assert ledger.txn.last_producer_epoch == -1


@pytest.mark.parametrize("state", [State.PREPARE_COMMIT, State.PREPARE_ABORT])
def test_case_11_a_new_producer_waits_for_a_transaction_that_is_ending(state: State) -> None:
    ledger = Ledger(transaction(state))
    assert ledger.init().error is CONCURRENT
    assert len(ledger.log) == 1


def test_case_12_a_new_producer_waits_for_a_pending_transition_without_an_epoch_bump() -> None:
    ledger = Ledger(transaction(epoch=4))
    ledger.pending.add(TXN)
    assert ledger.init().error is CONCURRENT
    assert ledger.identity == (4000, 4)


@pytest.mark.parametrize("version", [0, 2])
def test_case_13_an_open_transaction_is_aborted_and_the_retry_gets_the_epoch_after_that(
    version: int,
) -> None:
    ledger = Ledger(transaction(State.ONGOING, epoch=4), cluster_version=version)
    assert ledger.init().error is CONCURRENT
    assert ledger.txn.state == State.PREPARE_ABORT
    assert ledger.identity == (4000, 5)
    assert ledger.txn.partitions == {"t": (0,)}
    ledger.complete()
    assert ledger.init() == Reply(ErrorCode.NONE, 4000, 6)


def test_case_14_a_fence_whose_append_fails_raises_the_epoch_only_once_in_tv1() -> None:
    ledger = Ledger(transaction(State.ONGOING, epoch=4), cluster_version=0)
    ledger.append_fails = 2
    assert ledger.init().error is ErrorCode.NOT_COORDINATOR
    assert ledger.init().error is ErrorCode.NOT_COORDINATOR
    assert ledger.init().error is CONCURRENT
    assert ledger.identity == (4000, 5)


def test_case_15_a_fence_whose_append_fails_raises_the_epoch_only_once_in_tv2() -> None:
    ledger = Ledger(transaction(State.ONGOING, epoch=1))
    ledger.append_fails = 1
    assert ledger.init().error is ErrorCode.NOT_COORDINATOR
    assert ledger.identity == (4000, 1)
    assert ledger.init().error is CONCURRENT
    assert ledger.identity == (4000, 2)
    ledger.complete()
    assert ledger.init().producer_epoch == 3


def test_case_16_a_fence_at_the_last_epoch_in_tv1() -> None:
    ledger = Ledger(transaction(State.ONGOING, epoch=32766), cluster_version=0)
    assert ledger.init().error is CONCURRENT
    assert ledger.identity == (4000, 32767)
    ledger.complete()
    assert ledger.identity == (4000, 32767)
    reply = ledger.init()
    assert reply.producer_epoch == 0
    assert reply.producer_id != 4000


def test_case_16_a_fence_at_the_last_epoch_in_tv2() -> None:
    ledger = Ledger(transaction(State.ONGOING, epoch=32766))
    assert ledger.init().error is CONCURRENT
    assert ledger.identity == (4000, 32767)
    following = ledger.txn.next_producer_id
    assert following != -1
    ledger.complete()
    assert ledger.identity == (following, 0)
    assert ledger.txn.previous_producer_id == 4000
    assert ledger.txn.last_producer_epoch == 32766


def test_case_18_two_phase_commit_is_refused_unless_enabled() -> None:
    event = InitProducerId(TXN, 1_000, enable_two_phase_commit=True)
    assert refused(event) is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert refused(event, two_phase_commit=True) is NONE


def test_case_18_a_prepared_transaction_cannot_be_kept() -> None:
    event = InitProducerId(TXN, 1_000, keep_prepared_txn=True)
    assert refused(event) is ErrorCode.UNSUPPORTED_VERSION


@pytest.mark.parametrize("timeout_ms", [-1, 0, MAX_TIMEOUT_MS + 1])
def test_case_18_two_phase_commit_has_no_timeout(timeout_ms: int) -> None:
    event = InitProducerId(TXN, timeout_ms, enable_two_phase_commit=True)
    assert refused(event, two_phase_commit=True) is NONE
    ledger = Ledger()
    identity = ledger.init(timeout_ms=timeout_ms, two_phase_commit=True)
    assert ledger.txn.timeout_ms == 2**31 - 1
    ledger.add(identity.producer_id, 0)
    assert timed_out_ids(ledger.state, ledger.pending, 2**60) == []


def test_checks_are_made_in_kafkas_order() -> None:
    everything_wrong = InitProducerId("", -1, enable_two_phase_commit=True, keep_prepared_txn=True)
    assert refused(everything_wrong) is ErrorCode.INVALID_REQUEST
    assert (
        refused(replace(everything_wrong, transactional_id=TXN))
        is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    )
    without_two_phase = replace(
        everything_wrong, transactional_id=TXN, enable_two_phase_commit=False
    )
    assert refused(without_two_phase) is ErrorCode.UNSUPPORTED_VERSION


def test_a_pending_transition_is_reported_before_a_wrong_identity() -> None:
    ledger = Ledger(transaction(epoch=4))
    ledger.pending.add(TXN)
    assert ledger.init(1, 1).error is CONCURRENT


def test_a_wrong_identity_is_reported_before_an_ending_transaction() -> None:
    ledger = Ledger(transaction(State.PREPARE_COMMIT, epoch=4))
    assert ledger.init(1, 1).error is FENCED


def test_an_earlier_owner_cannot_abort_an_open_transaction_by_initialising_again() -> None:
    """Kafka compares only the producer id here, aborts the transaction and fences both."""
    ledger = Ledger(transaction(State.ONGOING, epoch=4))
    for epoch in range(4):
        assert ledger.init(4000, epoch).error is FENCED
    assert ledger.txn.state == State.ONGOING
    assert ledger.identity == (4000, 4)


@pytest.mark.parametrize("epoch", [4, 5])
def test_the_owner_may_initialise_again_in_an_open_transaction(epoch: int) -> None:
    """Also at a later epoch than ours: a power loss may have removed the end of the log."""
    ledger = Ledger(transaction(State.ONGOING, epoch=4))
    assert ledger.init(4000, epoch).error is CONCURRENT
    assert ledger.txn.state == State.PREPARE_ABORT


def test_an_init_writes_an_empty_transaction_with_its_timeout() -> None:
    ledger = Ledger()
    reply = ledger.init(timeout_ms=5_000)
    txn = ledger.txn
    assert txn.state == State.EMPTY
    assert txn.previous_producer_id == reply.producer_id
    assert (txn.timeout_ms, txn.start_ms, txn.last_update_ms) == (5_000, -1, ledger.now_ms)


def test_kafka_19367_an_epoch_never_exceeds_the_maximum() -> None:
    ledger = Ledger(transaction(State.ONGOING, epoch=32767), cluster_version=0)
    assert ledger.init().error is CONCURRENT
    assert ledger.identity == (4000, 32767)


def test_kafka_20090_a_fence_beyond_the_last_epoch_recovers_with_a_fresh_producer_id() -> None:
    ledger = Ledger(transaction(State.ONGOING, epoch=32767))
    assert ledger.init().error is CONCURRENT
    assert ledger.identity == (4000, 32767)
    ledger.complete()
    assert ledger.identity == (9000, 0)


@pytest.mark.parametrize("epoch", [0, 1, 2])
@pytest.mark.parametrize("state", [State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT])
def test_only_the_last_epoch_counts_as_a_retry(state: State, epoch: int) -> None:
    """Any earlier epoch belongs to a fenced producer."""
    ledger = Ledger(transaction(state, epoch=4, last_epoch=3))
    assert ledger.init(4000, epoch).error is FENCED
    assert ledger.identity == (4000, 4)
    assert ledger.init(4000, 3).error is NONE
