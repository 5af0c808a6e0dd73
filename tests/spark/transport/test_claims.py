"""Claims on partitions: one attempt of one task gets each, whoever asks first."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("pyarrow", reason="the spark extra is not installed")

from fencepost.base.ids import TopicPartition
from fencepost.spark.failures import PeerLost, RowRefused
from fencepost.spark.transport.delivery import Attempt
from fencepost.spark.transport.meeting.claims import ClaimCall, Claims

SECRET = b"sixteen letters."
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
def claims() -> Iterator[Claims]:
    with Claims("127.0.0.1", "127.0.0.1", SECRET) as found:
        yield found


def call(claims: Claims, task: int, attempt: int | None = None) -> ClaimCall:
    return ClaimCall(claims.address, SECRET, Attempt(task, 0, attempt or 100 + task))


def test_a_partition_is_granted_to_the_first_task_and_refused_to_a_second(claims: Claims) -> None:
    with call(claims, 0) as first, call(claims, 1) as second:
        first.claim(T0)
        first.claim(T0)
        second.claim(T1)
        with pytest.raises(RowRefused, match="tasks 0 and 1 both have rows for partition 0"):
            second.claim(T0)


def test_a_second_attempt_of_the_same_task_is_refused(claims: Claims) -> None:
    """After a lost fetch Spark runs a task again, and shows it as attempt 0."""
    with call(claims, 0, attempt=7) as first:
        first.claim(T0)
    with (
        call(claims, 0, attempt=8) as second,
        pytest.raises(RowRefused, match="task 0 of the write stage runs for a second time"),
    ):
        second.claim(T0)


def test_of_many_tasks_that_claim_at_once_exactly_one_gets_the_partition(claims: Claims) -> None:
    def outcome(task: int) -> bool:
        with call(claims, task) as mine:
            try:
                mine.claim(T0)
            except RowRefused:
                return False
            return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(outcome, range(8))) == 1


def test_a_caller_without_the_secret_gets_nothing(claims: Claims) -> None:
    with pytest.raises(PeerLost, match="does not know this job"):
        ClaimCall(claims.address, b"another  secret!", Attempt(0, 0, 1))
    with call(claims, 1) as mine:
        mine.claim(T0)


def test_a_claim_without_a_driver_fails() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = closed.getsockname()[:2]
    with pytest.raises(PeerLost, match="the driver cannot be reached"):
        ClaimCall(address, SECRET, Attempt(0, 0, 1))
    with Claims("127.0.0.1", "127.0.0.1", SECRET) as claims:
        abandoned = call(claims, 0)
    with abandoned, pytest.raises(PeerLost):
        abandoned.claim(T0)
