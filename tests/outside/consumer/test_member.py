"""What ends by itself is waited for; all else is one sentence. Starts and stops of partitions."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import NewPartitions

from fencepost.base.errors import ErrorCode
from fencepost.outside.consumer.member import Member, Waiting, explain
from fencepost.outside.consumer.rule import Partition
from fencepost.outside.failures import KafkaRefused
from tests.outside.consumer.stage import DEADLINE_SECONDS, QUIET, Stage


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.REQUEST_TIMED_OUT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._MAX_POLL_EXCEEDED,
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
    ],
)
def test_what_ends_by_itself_is_waited_for(code: int) -> None:
    assert isinstance(explain(KafkaError(int(code)), "this"), Waiting)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.FENCED_INSTANCE_ID,
        KafkaError._AUTHENTICATION,
        KafkaError._FATAL,
    ],
)
def test_what_lasts_is_one_sentence(code: int) -> None:
    refused = explain(KafkaError(int(code)), "topic 'orders'")
    assert isinstance(refused, KafkaRefused)
    assert str(refused).startswith("Kafka refuses topic 'orders': ")


@pytest.mark.parametrize("strategy", ["cooperative-sticky", "range"])
def test_a_partition_continues_where_it_is_while_others_start_and_stop(
    stage: Stage, strategy: str
) -> None:
    first, second = Partition(stage.topic, 0), Partition(stage.topic, 1)
    new_parts = stage.admin.create_partitions([NewPartitions(stage.topic, 2)])
    new_parts[stage.topic].result(DEADLINE_SECONDS)
    stage.send("a", "b", "c")
    stage.send("x", partition=1)
    config = {"partition.assignment.strategy": strategy, "bootstrap.servers": stage.servers}
    member = Member([stage.topic], "starts", {**QUIET, **config})

    def values(count: int) -> list[bytes]:
        found: list[bytes] = []
        while len(found) < count:
            found += [each.value() for each in member.receive(10, 0.5)]
        return found

    while member.assigned != {first, second}:
        assert member.receive(10, 0.5) == []
    member.start({first: 1})
    assert values(2) == [b"b", b"c"]
    member.start({second: 0})
    assert member.positions() == {first: 3, second: 0}
    assert values(1) == [b"x"]
    member.stop([second])
    assert member.positions() == member.started | {first: 3}
    stage.send("d")
    assert values(1) == [b"d"]
    assert member.positions() == {first: 4}
    member.close()
