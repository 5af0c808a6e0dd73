"""The controller of several brokers: registration, failover, leaders, deadlines, other sizes."""

from __future__ import annotations

import copy
from collections import Counter
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.base.failures import ConfigError, StorageError
from fencepost.base.ids import TopicPartition
from fencepost.broker.controller.new_topics import NewTopic
from fencepost.coordinator.metadata.effects import LeadersChanged
from fencepost.coordinator.metadata.events import CreatePartitions, Election
from fencepost.coordinator.metadata.state import Endpoint
from fencepost.records.metadata_log import TOPIC_RESOURCE
from fencepost.simulation.disk import PowerLost
from tests.broker.controller.cluster_stage import ClusterStage
from tests.broker.controller.topics_stage import StubNode
from tests.coordinator.metadata.cluster import opens_at

if TYPE_CHECKING:
    from fencepost.broker.controller.controller import Outcome
    from fencepost.coordinator.metadata.events import PartitionOutcome

ORDERS_0 = TopicPartition("orders", 0)
INTERNAL = "__transaction_state"
OFFSETS = "__consumer_offsets"


def three() -> ClusterStage:
    return ClusterStage(1, 2, 3).start()


def elect(stage: ClusterStage, *partitions: TopicPartition) -> dict[TopicPartition, ErrorCode]:
    """Elects the preferred leaders of these partitions, or of all."""
    heard: list[PartitionOutcome] = []
    stage.controller.elect_leaders(Election.PREFERRED, partitions or None, heard.extend)
    while stage.turn():
        pass
    return {outcome.partition: outcome.error for outcome in heard}


def reassign(
    stage: ClusterStage, replicas: dict[TopicPartition, list[int] | None]
) -> dict[TopicPartition, ErrorCode]:
    heard: list[PartitionOutcome] = []
    stage.controller.alter_reassignments(list(replicas.items()), heard.extend)
    while stage.turn():
        pass
    return {outcome.partition: outcome.error for outcome in heard}


# -- brokers


def test_each_broker_registers_with_its_address_and_the_first_one_sets_the_features() -> None:
    stage = three()
    assert stage.metadata.endpoint(3, "PLAINTEXT") == Endpoint("PLAINTEXT", "localhost", 9094)
    assert stage.metadata.features
    assert stage.metadata.brokers[3].epoch == stage.log.partition.log_end_offset - 1


def test_a_dead_broker_is_fenced_and_others_lead_its_partitions() -> None:
    stage = three()
    stage.assign("orders", [1, 2], [2, 3])
    stage.follower.carried_out.clear()
    assert stage.done(lambda done: stage.controller.fence_brokers([1], done)) is ErrorCode.NONE
    assert stage.leaders("orders") == [2, 2]
    (effect,) = stage.follower.carried_out
    assert isinstance(effect, LeadersChanged)
    assert opens_at(effect.partitions[0], 2)


def test_a_fenced_broker_that_registers_and_is_unfenced_gets_its_share_by_a_rebalance() -> None:
    stage = three()
    stage.assign("orders", *[[1, 2, 3]] * 6)
    stage.done(lambda done: stage.controller.fence_brokers([1], done))
    stage.register(1, fenced=True)
    assert stage.metadata.live_brokers()[0].node_id == 2
    stage.done(lambda done: stage.controller.unfence_brokers([1], done))
    assert stage.state_of("orders").isr == (1, 2, 3)
    assert 1 not in stage.leaders("orders")
    stage.done(lambda done: stage.controller.rebalance(1, done))
    assert Counter(stage.leaders("orders"))[1] == 1
    stage.done(lambda done: stage.controller.rebalance(None, done))
    assert Counter(stage.leaders("orders")) == {1: 2, 2: 2, 3: 2}


def test_a_broker_that_is_about_to_stop_hands_its_partitions_over() -> None:
    stage = three()
    stage.assign("orders", [1, 2])
    stage.done(lambda done: stage.controller.controlled_shutdown(1, done))
    assert stage.leaders("orders") == [2]
    assert stage.metadata.active_nodes() == {2, 3}


def test_a_change_of_brokers_is_done_when_all_brokers_have_carried_it_out() -> None:
    stage = three()
    stage.assign("orders", [1, 2])
    stage.follower.is_held = True
    heard: list[ErrorCode] = []
    stage.controller.fence_brokers([1], heard.append)
    assert stage.leaders("orders") == [2], "it is decided at once"
    assert not heard
    stage.follower.finish()
    assert heard == [ErrorCode.NONE]


def test_a_change_of_brokers_that_cannot_be_written_changes_nothing() -> None:
    stage = three()
    stage.assign("orders", [1, 2])
    stage.disk.fill()
    error = stage.done(lambda done: stage.controller.fence_brokers([1], done))
    assert error is ErrorCode.KAFKA_STORAGE_ERROR
    assert stage.leaders("orders") == [1]
    assert stage.metadata.active_nodes() == {1, 2, 3}


def test_producer_ids_are_reserved_for_the_broker_that_asks_and_wait_for_no_broker() -> None:
    stage = three()
    stage.follower.is_held = True
    blocks: list[range | None] = []
    stage.controller.reserve_block(blocks.append, node_id=2)
    stage.controller.reserve_block(blocks.append, node_id=3)
    assert blocks == [range(1000), range(1000, 2000)]


# -- leaders and replicas


@pytest.mark.parametrize("before", [[1], [1, 2], [1, 2, 3], [2, 3]])
@pytest.mark.parametrize("target", [1, 2, 3])
def test_a_partition_moves_to_any_broker_by_a_reassignment_and_an_election(
    before: list[int], target: int
) -> None:
    """The steps of `fencepost cluster move`."""
    stage = three()
    stage.assign("orders", before)
    others = [node for node in before if node != target]
    moved = reassign(stage, {ORDERS_0: [target, *others][: len(before)]})
    elected = elect(stage, ORDERS_0)
    assert moved == {ORDERS_0: ErrorCode.NONE}
    assert elected[ORDERS_0] in (ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED)
    after = stage.state_of("orders")
    assert (after.leader, len(after.replicas)) == (target, len(before))
    assert after.leader_epoch == (before[0] != target), "the leader changes once"


def test_an_election_that_cannot_be_written_is_refused_and_others_keep_their_errors() -> None:
    stage = three()
    stage.assign("orders", [1, 2], [2, 1])
    reassign(stage, {ORDERS_0: [2, 1]})
    stage.disk.fill()
    missing, second = TopicPartition("missing", 0), TopicPartition("orders", 1)
    assert elect(stage, ORDERS_0, missing, second) == {
        ORDERS_0: ErrorCode.KAFKA_STORAGE_ERROR,
        missing: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        second: ErrorCode.ELECTION_NOT_NEEDED,
    }
    assert stage.leaders("orders") == [1, 2]


# -- deadlines


def test_a_topic_is_reported_as_timed_out_when_a_broker_does_not_finish_in_time() -> None:
    stage = three()
    stage.follower.is_held = True
    heard: list[Outcome] = []
    stage.controller.create(
        [NewTopic("orders", 1), NewTopic("no way", 1)],
        heard.extend,
        validate_only=False,
        timeout_ms=5_000,
    )
    assert not heard
    (timer,) = stage.runtime.timers
    assert timer.delay_ms == 5_000
    stage.runtime.fire_timers()
    assert [(each.name, each.error) for each in heard] == [
        ("orders", ErrorCode.REQUEST_TIMED_OUT),
        ("no way", ErrorCode.INVALID_TOPIC_EXCEPTION),
    ]
    assert "orders" in stage.metadata.topics, "it exists nevertheless"
    stage.follower.finish()
    assert len(heard) == 2, "a client is answered once"


def test_a_topic_that_brokers_open_in_time_is_answered_once() -> None:
    stage = three()
    stage.follower.is_held = True
    heard: list[Outcome] = []
    stage.controller.create([NewTopic("orders")], heard.extend, validate_only=False, timeout_ms=9)
    stage.follower.finish()
    stage.runtime.fire_timers()
    assert [each.error for each in heard] == [ErrorCode.NONE]


def test_a_request_that_is_done_in_its_turn_sets_no_timer() -> None:
    stage = three()
    heard: list[Outcome] = []
    stage.controller.create([NewTopic("orders")], heard.extend, validate_only=False, timeout_ms=9)
    assert [each.error for each in heard] == [ErrorCode.NONE]
    assert not stage.runtime.timers


def test_a_name_stays_taken_until_its_topic_is_removed_even_after_the_deadline() -> None:
    stage = three()
    stage.create("orders")
    stage.follower.is_held = True
    deleted: list[Outcome] = []
    created: list[Outcome] = []
    stage.controller.delete(["orders", "missing"], deleted.extend, timeout_ms=100)
    stage.runtime.fire_timers()
    assert [each.error for each in deleted] == [
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    stage.controller.create(
        [NewTopic("orders")], created.extend, validate_only=False, timeout_ms=100
    )
    stage.runtime.fire_timers()
    assert [each.error for each in created] == [ErrorCode.REQUEST_TIMED_OUT]
    assert "orders" not in stage.metadata.topics, "folders of the old topic are still there"
    stage.follower.finish()
    assert "orders" in stage.metadata.topics


def test_new_partitions_time_out() -> None:
    stage = three()
    stage.create("orders")
    stage.follower.is_held = True
    heard: list[Outcome] = []
    stage.controller.create_partitions(
        [CreatePartitions("orders", 2)], heard.extend, validate_only=False, timeout_ms=0
    )
    (timer,) = (stage.runtime.turn() and stage.runtime.timers) or [None]
    assert timer is None
    assert [each.error for each in heard] == [ErrorCode.REQUEST_TIMED_OUT]


def test_elections_and_reassignments_time_out() -> None:
    stage = three()
    stage.assign("orders", [1, 2], [2, 1])
    stage.follower.is_held = True
    names = [ORDERS_0, TopicPartition("orders", 1)]
    moved: list[PartitionOutcome] = []
    wanted = [(names[0], [2, 1]), (names[1], [9])]
    stage.controller.alter_reassignments(wanted, moved.extend, timeout_ms=10)
    elected: list[PartitionOutcome] = []
    stage.controller.elect_leaders(Election.PREFERRED, names, elected.extend, timeout_ms=10)
    stage.runtime.fire_timers()
    assert [each.error for each in moved] == [
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
    ]
    assert [each.error for each in elected] == [
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.ELECTION_NOT_NEEDED,
    ]
    assert stage.leaders("orders") == [2, 2]


def test_an_election_of_all_that_times_out_lists_only_what_it_changed() -> None:
    stage = three()
    stage.assign("orders", [1, 2], [2, 1])
    reassign(stage, {ORDERS_0: [2, 1]})
    stage.follower.is_held = True
    elected: list[PartitionOutcome] = []
    stage.controller.elect_leaders(Election.PREFERRED, None, elected.extend, timeout_ms=10)
    stage.runtime.fire_timers()
    assert [(each.partition, each.error) for each in elected] == [
        (ORDERS_0, ErrorCode.REQUEST_TIMED_OUT)
    ]


def test_a_single_broker_sets_no_deadline() -> None:
    node = StubNode({"durability": "fsync"}).start()
    heard: list[Outcome] = []
    node.controller.create([NewTopic("orders")], heard.extend, validate_only=False, timeout_ms=0)
    assert not heard
    assert not node.runtime.timers
    node.sync()
    assert [each.error for each in heard] == [ErrorCode.NONE]


# -- replication factors


def test_new_topics_have_three_replicas_if_there_are_three_brokers() -> None:
    stage = three()
    orders, internal = stage.create(NewTopic("orders", 2), NewTopic(INTERNAL))
    assert (orders.partition_count, orders.replication_factor) == (2, 3)
    assert (internal.partition_count, internal.replication_factor) == (50, 3)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, {INTERNAL: "2", OFFSETS: "2"}),
        ({"min.insync.replicas": "1"}, {INTERNAL: "2", OFFSETS: None}),
        ({"transaction.state.log.min.isr": "1"}, {INTERNAL: "1", OFFSETS: "2"}),
    ],
)
def test_two_live_replicas_are_enough_for_the_internal_topics(
    settings: dict[str, str], expected: dict[str, str | None]
) -> None:
    stage = ClusterStage(1, 2, 3, settings=settings).start()
    stage.create(INTERNAL, OFFSETS)
    found = {
        topic: stage.metadata.settings_of(TOPIC_RESOURCE, topic).get("min.insync.replicas")
        for topic in expected
    }
    assert found == expected


# -- other numbers of brokers


def test_a_new_cluster_has_no_brokers_until_they_register() -> None:
    stage = ClusterStage(1, 2).load()
    assert not stage.metadata.brokers


def test_a_directory_of_one_broker_can_be_served_by_three_and_by_one_again() -> None:
    node = StubNode().start()
    node.made("orders", 6)
    node.create(INTERNAL)
    node.stop()
    cluster = ClusterStage(1, 2, 3, disk=node.disk).start()
    assert Counter(cluster.leaders("orders")) == {1: 2, 2: 2, 3: 2}
    assert len(cluster.state_of(INTERNAL).replicas) == 3
    settings = cluster.metadata.settings_of(TOPIC_RESOURCE, INTERNAL)
    assert settings["min.insync.replicas"] == "2"
    cluster.stop()
    again = StubNode(disk=node.disk).start()
    assert list(again.metadata.brokers) == [1]
    assert {p.leader for t in again.metadata.topics.values() for p in t.partitions} == {1}
    assert again.partition("orders", 5) is not None, "it is open"
    assert "min.insync.replicas" not in again.metadata.settings_of(TOPIC_RESOURCE, INTERNAL)


def test_the_same_brokers_start_with_their_partitions_and_without_a_record() -> None:
    cluster = three()
    cluster.create(NewTopic("orders", 6))
    end_offset = cluster.log.partition.log_end_offset
    before = list(cluster.metadata.topics["orders"].partitions)
    again = cluster.served_by(1, 2, 3).load()
    assert again.log.partition.log_end_offset == end_offset
    assert again.metadata.topics["orders"].partitions == before


def test_the_epochs_of_all_partitions_rise_after_an_unclean_stop() -> None:
    cluster = three()
    cluster.assign("orders", [1], [2], [3])
    cluster.done(lambda done: cluster.controller.fence_brokers([3], done))
    before = [p.leader_epoch for p in cluster.metadata.topics["orders"].partitions]
    again = cluster.served_by(1, 2, 3, clean=False).load()
    after = [p.leader_epoch for p in again.metadata.topics["orders"].partitions]
    assert all(new > old for old, new in zip(before, after, strict=True))


def test_folders_of_partitions_of_all_brokers_stay_where_they_are() -> None:
    node = StubNode().start()
    node.made("orders", 3)
    for index in range(3):
        node.fill("orders", 1, index)
    node.stop()
    cluster = ClusterStage(1, 2, 3, disk=node.disk).start()
    assert Counter(cluster.leaders("orders")) == {1: 1, 2: 1, 3: 1}
    names = cluster.disk.list_dir("/data")
    assert {"orders-0", "orders-1", "orders-2"} <= set(names)
    assert not [name for name in names if name.endswith("-stray")]


@pytest.mark.parametrize("failure", ["fails", "kills", "loses power"])
def test_a_start_with_other_brokers_that_dies_at_any_disk_call_is_repeated(failure: str) -> None:
    """The brokers and partitions are those of before, or the new ones; the next start is right."""
    node = StubNode().start()
    node.made("orders", 6)
    node.create(INTERNAL)
    node.stop()
    for number in count(1):
        disk = copy.deepcopy(node.disk)
        first = disk.calls
        if failure == "fails":
            disk.fail_call(number)
        else:
            disk.lose_power_at(number)
        with suppress(OSError, ConfigError, StorageError, PowerLost):
            ClusterStage(1, 2, 3, disk=disk).load()
        was_reached = disk.calls - first >= number
        disk.heal()
        if failure == "loses power":
            disk.crash()
        else:
            disk.kill()
        again = ClusterStage(1, 2, 3, disk=disk).load()
        assert set(again.metadata.brokers) == {1, 2, 3}
        assert Counter(again.leaders("orders")) == {1: 2, 2: 2, 3: 2}
        assert len(again.state_of(INTERNAL).replicas) == 3
        settings = again.metadata.settings_of(TOPIC_RESOURCE, INTERNAL)
        assert settings["min.insync.replicas"] == "2"
        if not was_reached:
            assert number > 10
            return
