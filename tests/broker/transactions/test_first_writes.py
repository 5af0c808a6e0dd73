"""Verification of the first write of a transaction to a partition (Produce, TxnOffsetCommit)."""

from __future__ import annotations

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import TopicPartition
from fencepost.base.limits import IMPLICIT_ADD_WAIT_MS
from fencepost.coordinator.txn.states import State
from tests.broker.transactions.shell import ShellNode

pytestmark = pytest.mark.interpreted

NONE = ErrorCode.NONE
CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS


def initialised(*, fsync: bool = False) -> ShellNode:
    node = ShellNode(fsync=fsync)
    node.load()
    node.init()
    node.sync_all()
    return node


def test_a_write_to_an_added_partition_is_verified() -> None:
    node = initialised()
    node.add(9_000, 0, {"t": (0, 1)})
    assert node.verify(0, 1) == [[NONE, NONE]]


def test_a_write_to_a_partition_that_was_not_added_is_refused() -> None:
    node = initialised()
    node.add(9_000, 0)
    assert node.verify(0, 1) == [[NONE, ErrorCode.TRANSACTION_ABORTABLE]]


def test_a_write_without_a_transaction_is_refused() -> None:
    assert initialised().verify(0) == [[ErrorCode.TRANSACTION_ABORTABLE]]


def test_an_implicit_add_writes_all_partitions_of_a_request_in_one_record() -> None:
    node = initialised()
    assert node.verify(0, 1, 2, add=True) == [[NONE, NONE, NONE]]
    assert node.txn().partitions == {"t": (0, 1, 2)}
    assert node.txn().client_transaction_version == 2
    assert node.states() == [State.EMPTY, State.ONGOING]


def test_a_verification_waits_until_the_add_is_durable() -> None:
    node = initialised(fsync=True)
    node.add(9_000, 0)
    answers = node.verify(0)
    assert answers == []
    node.sync()
    assert answers == [[NONE]]


def test_a_verification_of_any_partition_waits_for_the_newest_add() -> None:
    """One record has them all, and a power loss may remove it until it is durable."""
    node = initialised(fsync=True)
    node.add(9_000, 0)
    node.sync()
    node.add(9_000, 0, {"t": (1,)})
    answers = [node.verify(0), node.verify(1), node.verify(0, 1)]
    assert answers == [[], [], []]
    node.sync()
    assert answers == [[[NONE]], [[NONE]], [[NONE, NONE]]]


def test_an_implicit_add_is_acknowledged_when_it_is_durable() -> None:
    node = initialised(fsync=True)
    answers = node.verify(0, add=True)
    assert answers == []
    node.sync()
    assert answers == [[NONE]]


def test_concurrent_implicit_adds_share_one_sync() -> None:
    node = initialised(fsync=True)
    first, second, same = (
        node.verify(0, add=True),
        node.verify(1, add=True),
        node.verify(0, add=True),
    )
    assert (first, second, same) == ([], [], [])
    node.sync()
    assert (first, second, same) == ([[NONE]], [[NONE]], [[NONE]])
    assert node.states() == [State.EMPTY, State.ONGOING, State.ONGOING]


def test_case_60_an_implicit_add_waits_for_the_end_of_the_last_transaction() -> None:
    node = initialised(fsync=True)
    node.verify(0, add=True)
    node.sync_all()
    end = node.end(9_000, 0, version=2)
    answers = node.verify(0, epoch=1, add=True)
    assert answers == []
    node.sync_all()
    assert end.error is NONE
    assert answers == [[NONE]]
    assert node.txn().state == State.ONGOING


def test_case_60_an_implicit_add_does_not_wait_forever() -> None:
    node = initialised()
    node.verify(0, add=True)
    node.fail_appends(TopicPartition("t", 0), times=1_000)
    node.end(9_000, 0, version=2)
    answers = node.verify(0, epoch=1, add=True)
    node.pass_time(IMPLICIT_ADD_WAIT_MS - 1)
    assert answers == []
    node.pass_time(1)
    assert answers == [[CONCURRENT]]


@pytest.mark.parametrize("jump_ms", [-3_600_000, 3_600_000])
def test_a_clock_that_is_set_neither_prolongs_nor_ends_the_wait_of_a_first_write(
    jump_ms: int,
) -> None:
    node = initialised()
    node.verify(0, add=True)
    node.fail_appends(TopicPartition("t", 0), times=1_000)
    node.end(9_000, 0, version=2)
    answers = node.verify(0, epoch=1, add=True)
    node.pass_time(IMPLICIT_ADD_WAIT_MS - 1)
    node.clock_is_off_by_ms = jump_ms
    assert answers == []
    node.pass_time(1)
    assert answers == [[CONCURRENT]]


def test_a_wrong_producer_id_or_epoch_is_refused_immediately() -> None:
    node = initialised()
    mapping = ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert node.verify(0, producer_id=1, add=True) == [[mapping]]
    assert node.verify(0, producer_id=1) == [[mapping]]
    assert node.verify(0, epoch=7, add=True) == [[ErrorCode.PRODUCER_FENCED]]
    assert node.verify(0, epoch=7) == [[ErrorCode.PRODUCER_FENCED]]


def test_waiting_requests_get_not_coordinator_when_the_partition_is_unloaded() -> None:
    node = initialised(fsync=True)
    node.add(9_000, 0)
    checked, added = node.verify(0), node.verify(0, add=True)
    node.transactions.unload(0)
    assert checked == [[ErrorCode.NOT_COORDINATOR]]
    assert added == [[ErrorCode.NOT_COORDINATOR]]


def test_a_write_during_the_end_of_its_transaction_is_not_verified() -> None:
    node = initialised(fsync=True)
    node.add(9_000, 0)
    node.sync_all()
    node.end(9_000, 0)
    assert node.verify(0) == [[CONCURRENT]]


def test_an_id_stays_pending_until_the_last_of_several_adds_is_durable() -> None:
    node = initialised(fsync=True)
    first, second = node.verify(0, add=True), node.verify(1, add=True)
    _, _, first_durable = node.waiting.pop(0)
    first_durable()
    assert (first, second) == ([[NONE]], [])
    assert node.end(9_000, 0, version=2).error is CONCURRENT
    node.sync()
    assert second == [[NONE]]


def test_a_repeated_add_waits_for_the_record_of_the_first() -> None:
    node = initialised(fsync=True)
    first = node.add(9_000, 0, version=2)
    second = node.add(9_000, 0, version=2)
    assert not first.replies
    assert not second.replies
    node.sync()
    assert first.error is NONE
    assert second.error is NONE
    assert node.states() == [State.EMPTY, State.ONGOING]
