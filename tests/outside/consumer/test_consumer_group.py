"""Partitions that move between consumers are applied once and in order; the loser is refused."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

import fencepost
from fencepost.outside import ConsumerFenced, PostgresConsumer
from fencepost.outside.consumer import consumer as consumer_module
from tests.outside.consumer.scenarios import saying
from tests.outside.consumer.stage import Stage, apply

STRATEGIES = ("cooperative-sticky", "range")


def owners(stage: Stage) -> list[tuple[str, int]]:
    return stage.query("SELECT owner, epoch FROM fencepost_offsets ORDER BY partition")


def take_turns(consumers: list[PostgresConsumer], until: Callable[[], bool]) -> None:
    """Each one applies what it can get, until something is the case."""
    while not until():
        for consumer in consumers:
            # One look: an iteration would wait for the others, which are in this thread.
            consumer._batch = batch = consumer._look(consumer._connected())
            if batch is not None:
                apply(batch)


@pytest.fixture
def wide(broker: fencepost.Broker, dsn: str) -> Stage:
    """A topic of four partitions."""
    return Stage(broker.bootstrap_servers, dsn, f"wide-{dsn.rpartition('_')[2]}", partitions=4)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_partitions_move_to_a_new_member_and_back(wide: Stage, strategy: str) -> None:
    settings = {"idle_seconds": 0.3, "config": {"partition.assignment.strategy": strategy}}
    sent: dict[int, list[str]] = {partition: [] for partition in range(4)}

    def send() -> None:
        for partition, values in sent.items():
            values.append(f"{partition}-{len(values)}")
            wide.send(values[-1], partition=partition)

    def is_all_applied() -> bool:
        return all(wide.applied(partition) == values for partition, values in sent.items())

    with wide, wide.consumer(**settings) as one:
        send()
        take_turns([one], is_all_applied)
        before = owners(wide)
        two = wide.consumer(**settings)
        # Two partitions have been claimed by the new member.
        take_turns([one, two], lambda: len(set(owners(wide)) - set(before)) >= 2)
        send()
        take_turns([one, two], is_all_applied)
        between = owners(wide)
        two.close()
        send()
        take_turns([one], is_all_applied)
        assert owners(wide) != between
    rows = wide.query("SELECT part, pos FROM applied")
    assert len(rows) == len(set(rows)) == 12


def test_a_late_claim_fences_the_owner_which_claims_again(stage: Stage) -> None:
    stage.send("a")
    consumer = stage.consumer()
    batch = next(consumer)
    stage.query("UPDATE fencepost_offsets SET epoch = 7, owner = 'a late one'")
    with pytest.raises(ConsumerFenced, match="claimed by a late one, epoch 7"):
        apply(batch)
    assert (stage.applied(), stage.position()) == ([], 0)
    apply(next(consumer))
    assert stage.applied() == ["a"]
    assert stage.query("SELECT epoch FROM fencepost_offsets") == [(8,)]


def test_the_same_epoch_of_another_owner_is_not_enough(stage: Stage) -> None:
    """As after a restore: the numbers come again, the owners do not."""
    stage.send("a")
    batch = next(stage.consumer())
    stage.query("UPDATE fencepost_offsets SET owner = 'another'")
    with pytest.raises(ConsumerFenced, match="claimed by another, epoch 1"):
        apply(batch)
    assert stage.applied() == []


def test_a_member_that_the_group_gave_up_claims_nothing(stage: Stage) -> None:
    """It was suspended between its assignment and its claim."""
    stage.send("a")
    late = stage.consumer(
        idle_seconds=0.2, config={"max.poll.interval.ms": 1_000, "group.instance.id": "late"}
    )
    late._member.receive(1, 0.1)
    while not late._member.assigned:
        late._member.receive(1, 0.1)
    # A new process of the same instance takes its place in the group at once.
    owner = stage.consumer(config={"group.instance.id": "late"})
    apply(next(owner))
    found = owners(stage)
    assert not late._member.confirm(dict.fromkeys(late._member.assigned, 0))
    late._claim(late._connection)
    assert owners(stage) == found
    stage.send("b")
    apply(next(owner))
    assert (stage.applied(), owners(stage)) == (["a", "b"], found)


def test_a_block_that_outlasts_the_poll_interval_is_fenced(stage: Stage) -> None:
    stage.send("a", "b")
    slow = stage.consumer(config={"max.poll.interval.ms": 1_000})
    other = stage.consumer()
    # Only one of the two gets the partition; it takes its batch, and its time.
    batch = next(slow)
    with pytest.raises(ConsumerFenced, match="was claimed by"), batch.transaction() as cursor:
        cursor.execute("INSERT INTO applied (part, value) VALUES (0, 'twice')")
        apply(next(other))
    assert stage.applied() == ["a", "b"]
    other.close()
    stage.send("c")
    apply(next(slow))
    assert stage.applied() == ["a", "b", "c"]


def session(milliseconds: int) -> dict[str, Any]:
    return {"session.timeout.ms": milliseconds}


def test_the_next_run_after_a_kill_waits_for_the_dead_member_and_applies_all(
    stage: Stage, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group gives out no partition until the session of the dead one ends, which is longer."""
    monkeypatch.setattr(consumer_module, "HEARTBEAT_SECONDS", 0.0)
    process = stage.worker(**session(3_000))
    stage.send("before")
    process.wait_for_line(saying("applied"), 30)
    process.kill()
    stage.send("a", "b")
    for batch in stage.consumer(idle_seconds=0.2):
        apply(batch)
    assert stage.applied() == ["before", "a", "b"]
    assert "waits for a member that died" in caplog.text


def test_a_member_without_partitions_waits_for_those_of_a_dead_one(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    owner = stage.worker(**session(3_000))
    stage.send("before")
    owner.wait_for_line(saying("applied"), 30)
    spare = stage.consumer(idle_seconds=0.2)
    assert list(spare) == [], "all is applied, and the owner is alive"
    assert not spare._member.assigned
    os.kill(owner.pid, signal.SIGKILL)
    stage.send("a", "b")
    for batch in spare:
        apply(batch)
    assert stage.applied() == ["before", "a", "b"]
    assert "belong to another member" in caplog.text


def test_an_iteration_ends_although_a_living_member_is_behind(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_module, "HEARTBEAT_SECONDS", 0.5)
    busy = stage.worker(step="before the update", then="suspended", **session(20_000))
    busy.wait_for_line(saying("at before the records"), 30)
    spare = stage.consumer(idle_seconds=0.2)
    assert list(spare) == []
    stage.send("a")
    busy.wait_for_line(saying("suspended"), 30)
    assert list(spare) == []
    assert stage.applied() == []
