"""What ends by itself is waited for; all else ends the iteration with a sentence."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from fencepost.base.errors import ErrorCode
from fencepost.outside.consumer.member import Waiting, explain
from fencepost.outside.failures import KafkaRefused


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
