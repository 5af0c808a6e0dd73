"""A broker whose killed process does not end: what the parent does until it is reaped."""

from __future__ import annotations

import pytest

from fencepost.base.ids import TopicPartition
from tests.cluster.parent.parent_stage import ParentStage, StageBroker
from tests.cluster.parent.test_parent_crashes import PARTITIONS, Clients


@pytest.fixture
def clients() -> Clients:
    made = Clients(ParentStage().start())
    made.create("kept")
    made.write("kept")
    return made


def kill_without_end(clients: Clients, broker_id: int) -> StageBroker:
    """Kills a broker that the kernel does not let end."""
    broker = clients.stage.broker(broker_id)
    assert broker is not None
    broker.is_unreapable = True
    clients.stage.parent.kill(broker_id)
    return broker


def led_by(clients: Clients, broker_id: int) -> list[int]:
    partitions = clients.stage.node.metadata.topics["kept"].partitions
    return [index for index, each in enumerate(partitions) if each.leader == broker_id]


def test_others_take_over_when_the_process_has_been_reaped_and_not_before(clients: Clients) -> None:
    stage = clients.stage
    lost = led_by(clients, 2)
    epochs = [each.leader_epoch for each in stage.node.metadata.topics["kept"].partitions]
    broker = kill_without_end(clients, 2)
    stage.advance(30_000)
    assert stage.states() == ["serving", "suspended", "serving"]
    assert led_by(clients, -1) == lost != []
    assert led_by(clients, 2) == []
    clients.create("new")
    clients.write("new")
    clients.delete("new")
    clients.alter("kept", "1000")
    clients.reserve(1)
    assert not stage.holders(TopicPartition("kept", lost[0]))
    broker.is_unreapable = False
    stage.advance(1_000)
    assert led_by(clients, -1) == []
    for index in lost:
        after = stage.node.metadata.topics["kept"].partitions[index]
        assert after.leader_epoch == epochs[index] + 2
    clients.write("kept")
    stage.parent.restart(2)
    stage.advance(5_000)
    clients.check()
    stage.die()


def test_a_full_disk_delays_the_record_and_lets_nobody_take_over(clients: Clients) -> None:
    stage = clients.stage
    lost = led_by(clients, 2)
    broker = kill_without_end(clients, 2)
    stage.disk.fill()
    stage.advance(3_000)
    assert led_by(clients, 2) == lost, "the record could not be written"
    stage.disk.empty()
    stage.advance(1_000)
    assert led_by(clients, -1) == lost
    broker.is_unreapable = False
    stage.advance(1_000)
    stage.parent.restart(2)
    stage.advance(5_000)
    clients.check()
    stage.die()


def test_a_move_that_the_process_has_not_released_waits_until_it_is_reaped(
    clients: Clients,
) -> None:
    stage = clients.stage
    (first, *_) = led_by(clients, 2)
    broker = kill_without_end(clients, 2)
    # It is moved in the second before the parent gives the process up.
    answers: list[object] = []
    stage.node.controller.alter_reassignments(
        [(TopicPartition("kept", first), [1, 3])], answers.append
    )
    stage.advance(30_000)
    assert answers == []
    assert stage.node.metadata.leader("kept", first) == 1
    assert not stage.holders(TopicPartition("kept", first)), "the process may still write"
    broker.is_unreapable = False
    stage.advance(1_000)
    assert [each.broker_id for each in stage.holders(TopicPartition("kept", first))] == [1]
    assert len(answers) == 1
    stage.parent.restart(2)
    stage.advance(5_000)
    clients.check()
    stage.die()


def test_a_move_that_overtakes_the_delayed_record_waits_as_well(clients: Clients) -> None:
    stage = clients.stage
    (first, *_) = led_by(clients, 2)
    broker = kill_without_end(clients, 2)
    stage.disk.fill()
    stage.advance(1_600)
    assert stage.states()[1] == "suspended"
    assert first in led_by(clients, 2), "the record could not be written"
    stage.disk.empty()
    stage.node.controller.alter_reassignments(
        [(TopicPartition("kept", first), [1, 3])], lambda outcomes: None
    )
    stage.advance(30_000)
    assert not stage.holders(TopicPartition("kept", first)), "the process may still write"
    broker.is_unreapable = False
    stage.advance(1_000)
    assert [each.broker_id for each in stage.holders(TopicPartition("kept", first))] == [1]
    stage.parent.restart(2)
    stage.advance(5_000)
    clients.check()
    stage.die()


def test_a_cluster_that_stops_does_not_wait_for_it(clients: Clients) -> None:
    kill_without_end(clients, 2)
    clients.stage.advance(3_000)
    clients.stage.stop()
    clients.stage = clients.stage.again()
    clients.check()
    assert len(clients.stage.node.metadata.topics["kept"].partitions) == PARTITIONS
    clients.stage.die()
