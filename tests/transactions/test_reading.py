"""What readers of a transactional partition see, over the wire (cases 75 to 77)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fencepost.wire.apis import ApiKey
from tests.broker.node_stage import Line, Stage
from tests.broker.requests import FETCH_VERSION, batch_of, create_topic, fetch_request, records_in
from tests.transactions.protocol import Protocol
from tests.transactions.requests import produce_request
from tests.transactions.wire import (
    NONE,
    READ_COMMITTED,
    WireProducer,
    consume,
    end_offset,
    offset_at,
)

START_MS = 1_700_000_000_000

NewProducer = Callable[[str], WireProducer]


@pytest.fixture
def new(stage: Stage, protocol: Protocol) -> NewProducer:
    create_topic(stage, "t", 20)
    return lambda name: WireProducer(stage, name, protocol).initialise()


def plain(stage: Stage, *given: bytes, index: int = 0) -> None:
    request = produce_request({("t", index): batch_of(*given)}, transactional_id=None)
    reply = stage.call(ApiKey.PRODUCE, 11, request)
    assert reply.responses[0].partition_responses[0].error_code == NONE


# -- what an open transaction hides ----------------------------------------------------------------


def test_case_75_the_end_offset_for_read_committed_is_the_last_stable_offset(
    stage: Stage, new: NewProducer
) -> None:
    early, late = new("early"), new("late")
    assert end_offset(stage, "t") == 0
    plain(stage, b"plain")
    early.send("t", b"open")
    late.send("t", b"done")
    late.commit()
    assert end_offset(stage, "t") == 1
    assert end_offset(stage, "t", committed=False) == 4
    early.commit()
    assert end_offset(stage, "t") == end_offset(stage, "t", committed=False) == 5


def test_case_75_timestamps_after_the_last_stable_offset_are_not_found(
    stage: Stage, new: NewProducer
) -> None:
    one = new("one")
    one.join(("t", 0))
    assert one.produce("t", b"a", timestamp_ms=START_MS + 1).error_code == NONE
    one.commit()
    one.join(("t", 0))
    assert one.produce("t", b"b", timestamp_ms=START_MS + 2).error_code == NONE
    assert offset_at(stage, "t", START_MS + 1) == 0
    assert offset_at(stage, "t", START_MS + 2) == -1
    assert offset_at(stage, "t", START_MS + 2, committed=False) == 2
    one.commit()
    assert offset_at(stage, "t", START_MS + 2) == 2


# -- long polls ------------------------------------------------------------------------------------


class WaitingFetch:
    """A fetch that waits on a separate connection."""

    def __init__(self, stage: Stage, *, min_bytes: int = 1, max_wait_ms: int = 60_000) -> None:
        self._stage = stage
        self._line: Line = stage.connect()
        request = fetch_request(
            "t", isolation_level=READ_COMMITTED, min_bytes=min_bytes, max_wait_ms=max_wait_ms
        )
        self._number = self._line.send(ApiKey.FETCH, FETCH_VERSION, request)

    @property
    def is_answered(self) -> bool:
        self._stage.settle()
        return self._number in self._line.replies

    def result(self) -> Any:
        reply = self._line.reply(ApiKey.FETCH, FETCH_VERSION, self._number)
        return reply.responses[0].partitions[0]


@pytest.mark.parametrize("min_bytes", [1, 100, 300])
def test_case_76_a_fetch_that_waited_for_an_abort_lists_the_aborted_transaction(
    stage: Stage, new: NewProducer, min_bytes: int
) -> None:
    """Also with a large min_bytes: the records that were hidden become readable."""
    kept, dropped = new("kept"), new("dropped")
    kept.send("t", b"0")
    dropped.send("t", b"1", b"2")
    kept.send("t", b"3")
    poll = WaitingFetch(stage, min_bytes=min_bytes)
    assert not poll.is_answered
    dropped.abort()
    assert not poll.is_answered, "the first record is still undecided"
    started_ms = stage.clock.now_ms()
    kept.commit()
    got = poll.result()
    assert stage.clock.now_ms() == started_ms, "the commit woke it, not its timeout"
    assert [record.offset for record in records_in(got.records)] == [0, 1, 2, 3]
    assert [(t.producer_id, t.first_offset) for t in got.aborted_transactions] == [
        (dropped.producer_id, 1)
    ]
    assert [record.offset for record in consume(stage, "t").records] == [0, 3]


# -- how much is hidden ----------------------------------------------------------------------------
