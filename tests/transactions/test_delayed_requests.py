"""Requests that arrive late: the hazard of TV1 (KAFKA-17754), shown, and its absence in TV2.

Method: the fault hook holds one request before the broker handles it. The client gives up on it,
sends it again on another connection, gets the reply, and begins the next transaction. Then the
first request is released.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.wire.apis import ApiKey
from tests.broker.node_stage import Line, Stage
from tests.broker.requests import create_topic
from tests.transactions.protocol import TV1, TV2, Protocol
from tests.transactions.requests import produce_request
from tests.transactions.wire import (
    GROUP,
    NONE,
    WireProducer,
    await_coordinator,
    logged_states,
    state_of,
    values,
)


@pytest.fixture(autouse=True)
def _topics(stage: Stage) -> None:
    create_topic(stage, "t", 2)
    await_coordinator(stage, "g", GROUP)


class Delayed:
    """A request that the broker has received but not yet handled."""

    def __init__(self, stage: Stage, api: ApiKey, version: int, request: object) -> None:
        self._api, self._version = api, version
        self._held: list[Callable[[], None]] = []
        stage.node.faults.delay(api, self._held.append)
        self._line: Line = stage.connect()
        self._number = self._line.send(api, version, request)
        assert self._held, "the fault hook has it"

    def arrives(self) -> Any:
        """Releases it; returns the reply that no client waits for."""
        self._held.pop()()
        return self._line.reply(self._api, self._version, self._number)


def producer(stage: Stage, protocol: Protocol) -> WireProducer:
    return WireProducer(stage, "a", protocol).initialise()


# -- KAFKA-17754 -----------------------------------------------------------------------------------


def test_kafka_17754_a_late_tv1_commit_commits_the_transaction_that_is_open_by_then(
    stage: Stage,
) -> None:
    """A torn transaction: half of the second one is visible before the rest is written."""
    one = producer(stage, TV1)
    one.send("t", b"first")
    late = Delayed(stage, ApiKey.END_TXN, 4, one.end_request(commit=True))
    one.commit()
    one.send("t", b"second, half")
    assert values(stage, "t") == [b"first"]
    assert late.arrives().error_code == NONE
    assert values(stage, "t") == [b"first", b"second, half"], "no producer requested this commit"
    assert state_of(stage, "a") == "CompleteCommit"
    # The producer continues, and its next write begins a third transaction unnoticed.
    one.send("t", b"second, rest", index=1)
    one.abort()
    assert values(stage, "t") == [b"first", b"second, half"]
    assert values(stage, "t", index=1) == []


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_kafka_17754_a_late_tv2_end_has_an_old_epoch_and_decides_nothing(
    stage: Stage, commit: bool
) -> None:
    one = producer(stage, TV2)
    one.send("t", b"first")
    late = Delayed(stage, ApiKey.END_TXN, 5, one.end_request(commit=commit))
    assert one.end(commit=commit) == NONE
    one.send("t", b"second")
    assert late.arrives().error_code == ErrorCode.PRODUCER_FENCED
    assert state_of(stage, "a") == "Ongoing"
    one.commit()
    assert values(stage, "t") == [b"first", b"second"][not commit :]


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_a_late_end_between_two_transactions_gets_the_same_reply_in_both_protocols(
    stage: Stage, protocol: Protocol, commit: bool
) -> None:
    one = producer(stage, protocol)
    one.send("t", b"first")
    late = Delayed(stage, ApiKey.END_TXN, protocol.end_txn, one.end_request(commit=commit))
    assert one.end(commit=commit) == NONE
    before = logged_states(stage, "a")
    told = late.arrives()
    assert told.error_code == NONE
    if protocol is TV2:
        assert (told.producer_id, told.producer_epoch) == one.identity
    assert logged_states(stage, "a") == before


# -- the other requests of a transaction -----------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_kafka_14402_a_late_write_after_the_end_opens_no_hanging_transaction(
    stage: Stage, protocol: Protocol, commit: bool
) -> None:
    """KIP-890. TV1: there is no open transaction. TV2: its epoch is old."""
    one = producer(stage, protocol)
    one.send("t", b"first")
    batch = one.batch(b"late", topic="t")
    request = produce_request({("t", 0): batch}, transactional_id="a")
    late = Delayed(stage, ApiKey.PRODUCE, protocol.produce, request)
    assert one.end(commit=commit) == NONE
    told = late.arrives().responses[0].partition_responses[0]
    expected = (
        ErrorCode.TRANSACTION_ABORTABLE if protocol is TV1 else ErrorCode.INVALID_PRODUCER_EPOCH
    )
    assert told.error_code == expected
    partition = stage.partition("t", 0)
    assert len(partition.open_txns) == 0
    assert values(stage, "t") == [b"first"][not commit :]
    one.send("t", b"next")
    one.commit()
    assert values(stage, "t")[-1] == b"next"


def test_a_late_tv1_write_during_the_next_transaction_is_out_of_order(stage: Stage) -> None:
    """In TV1 only its sequence shows that it is late, once the next transaction has written."""
    one = producer(stage, TV1)
    one.send("t", b"first")
    late = one.twin()
    one.commit()
    one.send("t", b"second")
    assert late.produce("t", b"late", b"later").error_code == (
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    )
    one.commit()
    assert values(stage, "t") == [b"first", b"second"]


def test_a_late_tv1_add_begins_an_empty_transaction_that_times_out(stage: Stage) -> None:
    one = producer(stage, TV1)
    one.send("t", b"first")
    late = one.twin()
    one.commit()
    assert late.add_one("t", 1) == NONE
    assert state_of(stage, "a") == "Ongoing"
    assert values(stage, "t", index=1) == []
    stage.advance(75_000)
    assert state_of(stage, "a") == "CompleteAbort"
    assert values(stage, "t") == [b"first"]


def test_a_late_init_fences_the_producer_that_initialised_before_it_arrived(
    stage: Stage, protocol: Protocol
) -> None:
    """As in Kafka: the producer whose InitProducerId arrives last owns the id."""
    one = producer(stage, protocol)
    two = one.twin()
    one.send("t", b"v")
    assert two.init() == ErrorCode.CONCURRENT_TRANSACTIONS, "the open transaction is aborted first"
    assert one.end(commit=True) == (
        ErrorCode.PRODUCER_FENCED if protocol is TV1 else ErrorCode.INVALID_TXN_STATE
    )
    assert values(stage, "t") == []
    assert two.init() == NONE
    assert one.end(commit=True) == ErrorCode.PRODUCER_FENCED
