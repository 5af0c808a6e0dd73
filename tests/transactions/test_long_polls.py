"""Which long polls an append reads again: those that it may satisfy, and no others."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import TopicPartition
from fencepost.broker.handlers import fetch
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.fetch import FetchRequest
from tests.broker.controller.topics_stage import bump_leader_epochs
from tests.broker.network.test_connection import A_MINUTE_MS
from tests.broker.node_stage import Line, Stage
from tests.broker.requests import (
    FETCH_VERSION,
    batch_of,
    create_topic,
    delete_records,
    fetch_request,
    produce,
    records_in,
)
from tests.transactions.protocol import TV2
from tests.transactions.wire import READ_COMMITTED, WireProducer

Reads = Callable[[], int]
TOPIC = "polled"
SIZE = len(batch_of(b"x" * 100))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    """The number of fetches read since the last call."""
    count = 0
    original = fetch.read_all

    def counted(*arguments: object) -> fetch.Read:
        nonlocal count
        count += 1
        return original(*arguments)  # type: ignore[arg-type]

    def since() -> int:
        nonlocal count
        seen, count = count, 0
        return seen

    monkeypatch.setattr(fetch, "read_all", counted)
    return since


class ParkedFetch:
    """A parked fetch on a separate connection."""

    def __init__(self, stage: Stage, request: FetchRequest, *, settled: bool = True) -> None:
        self._stage = stage
        self._line: Line = stage.connect()
        self._id = self._line.send(ApiKey.FETCH, FETCH_VERSION, request)
        if settled:
            stage.settle()

    def is_answered(self) -> bool:
        self._stage.settle()
        return self._id in self._line.replies

    def values(self) -> list[bytes | None]:
        assert self.is_answered()
        reply = self._line.reply(ApiKey.FETCH, FETCH_VERSION, self._id)
        return [
            record.value
            for topic in reply.responses
            for partition in topic.partitions
            for record in records_in(partition.records)
        ]

    def error(self) -> int:
        assert self.is_answered()
        reply = self._line.reply(ApiKey.FETCH, FETCH_VERSION, self._id)
        codes: list[int] = [p.error_code for topic in reply.responses for p in topic.partitions]
        return max(codes)


def poll(stage: Stage, offset: int = 0, **more: int) -> ParkedFetch:
    return ParkedFetch(stage, fetch_request(TOPIC, offset, max_wait_ms=A_MINUTE_MS, **more))


def committed_poll(stage: Stage, offset: int = 0, **more: int) -> ParkedFetch:
    return poll(stage, offset, isolation_level=READ_COMMITTED, **more)


def write(stage: Stage, count: int = 1, topic: str = TOPIC) -> None:
    for _ in range(count):
        assert produce(stage, topic, batch_of(b"x" * 100)).error_code == 0
        stage.settle()


def test_read_committed_polls_are_not_woken_while_a_transaction_is_open(reads: Reads) -> None:
    with Stage(durability="os") as stage:
        create_topic(stage, TOPIC)
        producer = WireProducer(stage, "t", TV2).initialise()
        producer.send(TOPIC, b"first")
        polls = [committed_poll(stage) for _ in range(50)]
        stage.settle()
        reads()
        for number in range(20):
            producer.send(TOPIC, b"%d" % number)
            write(stage)
        assert reads() == 0
        producer.commit()
        assert all(each.is_answered() for each in polls)
        assert reads() == len(polls)
        assert len(polls[0].values()) == 41


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_the_end_of_a_transaction_wakes_read_committed_polls(commit: bool) -> None:
    with Stage(durability="os") as stage:
        create_topic(stage, TOPIC)
        producer = WireProducer(stage, "t", TV2).initialise()
        waiting = committed_poll(stage)
        producer.send(TOPIC, b"value")
        assert not waiting.is_answered()
        assert producer.end(commit=commit) == 0
        assert waiting.is_answered()


def test_the_end_of_a_transaction_wakes_no_poll_while_an_older_one_is_open(reads: Reads) -> None:
    with Stage(durability="os") as stage:
        create_topic(stage, TOPIC)
        older, younger = (WireProducer(stage, name, TV2).initialise() for name in "ab")
        older.send(TOPIC, b"older")
        younger.send(TOPIC, b"younger")
        waiting = committed_poll(stage)
        reads()
        younger.commit()
        assert not waiting.is_answered()
        assert reads() == 0
        older.commit()
        assert waiting.values() == [b"older", b"younger"]


def test_a_poll_for_many_bytes_is_read_only_once_they_are_available(reads: Reads) -> None:
    with Stage(durability="os") as stage:
        create_topic(stage, TOPIC)
        polls = [poll(stage, min_bytes=10 * SIZE) for _ in range(20)]
        reads()
        write(stage, 9)
        assert reads() == 0
        write(stage)
        assert all(each.is_answered() for each in polls)
        assert reads() == len(polls)
        assert len(polls[0].values()) == 10


def test_a_read_committed_poll_counts_only_bytes_that_it_may_read(reads: Reads) -> None:
    with Stage(durability="os") as stage:
        create_topic(stage, TOPIC)
        producer = WireProducer(stage, "t", TV2).initialise()
        waiting = committed_poll(stage, min_bytes=3_000)
        reads()
        for _ in range(2):
            producer.send(TOPIC, b"x" * 1000)
            producer.commit()
            stage.settle()
        assert reads() == 0
        producer.send(TOPIC, b"x" * 1000)
        assert not waiting.is_answered()
        producer.commit()
        assert len(waiting.values()) == 3


def test_bytes_may_come_from_one_of_several_partitions(reads: Reads) -> None:
    with Stage(durability="os") as stage:
        create_topic(stage, TOPIC)
        create_topic(stage, "other")
        request = fetch_request(TOPIC, max_wait_ms=A_MINUTE_MS, min_bytes=8 * SIZE)
        request.topics += fetch_request("other").topics
        waiting = ParkedFetch(stage, request)
        reads()
        write(stage, 3)
        assert reads() == 0
        write(stage, 4)
        assert not waiting.is_answered()
        write(stage, 1)
        assert waiting.is_answered()
        assert len(waiting.values()) == 8


def test_bytes_from_several_partitions_add_up() -> None:
    with Stage(durability="os") as stage:
        create_topic(stage, TOPIC)
        create_topic(stage, "other")
        request = fetch_request(TOPIC, max_wait_ms=A_MINUTE_MS, min_bytes=8 * SIZE)
        request.topics += fetch_request("other").topics
        waiting = ParkedFetch(stage, request)
        write(stage, 5)
        write(stage, 2, "other")
        assert not waiting.is_answered()
        write(stage, 1, "other")
        assert len(waiting.values()) == 8


def test_retention_does_not_make_a_poll_wait_longer() -> None:
    with Stage(durability="os") as stage:
        create_topic(stage, TOPIC, settings={"segment.bytes": "1048576"})
        for _ in range(3):
            produce(stage, TOPIC, batch_of(b"x" * 500_000))
        partition = stage.partition(TOPIC, 0)
        assert len(partition.log.segments) == 2
        waiting = poll(stage, 3, min_bytes=4 * SIZE)
        partition.delete_before(2)
        write(stage, 4)
        assert len(waiting.values()) == 4


def test_a_poll_near_the_end_of_a_segment_returns_the_rest_of_it_immediately() -> None:
    with Stage(durability="os") as stage:
        create_topic(stage, TOPIC, settings={"segment.bytes": "1048576"})
        for _ in range(4):
            produce(stage, TOPIC, batch_of(b"x" * 400_000))
        assert len(poll(stage, 1, min_bytes=1_000_000).values()) == 1


def test_a_roll_wakes_polls_that_wait_for_more_bytes_than_the_segment_has() -> None:
    with Stage(durability="os") as stage:
        create_topic(stage, TOPIC, settings={"segment.bytes": "1048576"})
        for _ in range(2):
            produce(stage, TOPIC, batch_of(b"x" * 400_000))
        waiting = poll(stage, 1, min_bytes=1_000_000)
        assert not waiting.is_answered()
        produce(stage, TOPIC, batch_of(b"x" * 400_000))
        assert waiting.is_answered()
        assert len(waiting.values()) == 1


@pytest.mark.parametrize("isolation_level", [0, READ_COMMITTED])
def test_a_poll_below_the_new_log_start_is_woken(isolation_level: int) -> None:
    with Stage(durability="os") as stage:
        create_topic(stage, TOPIC)
        write(stage, 3)
        waiting = poll(stage, 1, min_bytes=1 << 20, isolation_level=isolation_level)
        assert not waiting.is_answered()
        assert delete_records(stage, TOPIC, 3) == ErrorCode.NONE
        assert waiting.error() == ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_new_leader_epoch_wakes_polls() -> None:
    with Stage(durability="os") as stage:
        create_topic(stage, TOPIC)
        waiting = ParkedFetch(stage, fetch_request(TOPIC, max_wait_ms=A_MINUTE_MS, leader_epoch=0))
        assert not waiting.is_answered()
        bump_leader_epochs(stage.node.controller, [TopicPartition(TOPIC, 0)])
        assert waiting.error() == ErrorCode.FENCED_LEADER_EPOCH


def test_polls_wait_for_durability() -> None:
    with Stage(durability="fsync") as stage:
        create_topic(stage, TOPIC)
        polls = [poll(stage, min_bytes=3 * SIZE), committed_poll(stage, min_bytes=3 * SIZE)]
        write(stage, 2)
        assert not any(each.is_answered() for each in polls)
        write(stage)
        assert [len(each.values()) for each in polls] == [3, 3]


def test_finished_polls_leave_nothing_behind(reads: Reads) -> None:
    with Stage(durability="os") as stage:
        create_topic(stage, TOPIC)
        name = TopicPartition(TOPIC, 0)
        polls = [
            poll(stage, min_bytes=1),
            committed_poll(stage, min_bytes=1 << 20),
            poll(stage, min_bytes=1 << 20),
        ]
        assert name in stage.node.partitions.fetch_waiters
        polls[2]._line.wire.close()
        stage.advance(A_MINUTE_MS)
        assert all(each.is_answered() for each in polls[:2])
        assert name not in stage.node.partitions.fetch_waiters
        reads()
        write(stage)
        assert reads() == 0


@pytest.mark.parametrize("max_wait_ms", [0, A_MINUTE_MS])
def test_fetches_that_exceed_the_time_of_a_turn_are_read_in_the_next_turns(
    monkeypatch: pytest.MonkeyPatch, max_wait_ms: int
) -> None:
    monkeypatch.setattr("fencepost.broker.turns.TURN_SECONDS", 0.0)
    with Stage(durability="os") as stage:
        create_topic(stage, TOPIC)
        write(stage)
        stage.settle()
        request = fetch_request(TOPIC, max_wait_ms=max_wait_ms)
        polls = [ParkedFetch(stage, request, settled=False) for _ in range(6)]
        assert [poll._id in poll._line.replies for poll in polls] == [True] + [False] * 5
        turns = 0
        while polls[-1]._id not in polls[-1]._line.replies:
            stage.loop.turn()
            turns += 1
        assert turns >= 5
        assert [len(each.values()) for each in polls] == [1] * 6
        empty = [
            ParkedFetch(stage, fetch_request(TOPIC, 1, max_wait_ms=max_wait_ms)) for _ in range(3)
        ]
        assert [each.is_answered() for each in empty] == [max_wait_ms == 0] * 3
        write(stage)
        assert [len(each.values()) for each in empty] == [int(max_wait_ms > 0)] * 3


def test_hundreds_of_polls_that_expire_together_all_return() -> None:
    with Stage(durability="os") as stage:
        create_topic(stage, TOPIC)
        polls = [poll(stage) for _ in range(300)]
        stage.advance(A_MINUTE_MS)
        assert all(each.is_answered() for each in polls)
