"""The effects of the metadata log, and which of them a reply waits for."""

from __future__ import annotations

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import CONSUMER_OFFSETS_TOPIC, NO_NODE, TopicPartition
from fencepost.broker import turns
from fencepost.broker.controller.controller import Outcome
from fencepost.broker.controller.new_topics import NewTopic
from fencepost.coordinator.metadata.events import CreatePartitions
from fencepost.coordinator.metadata.registry import decide_bump_leader_epochs, decide_fence_brokers
from fencepost.records.metadata_log import RegisterBrokerRecord
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.metadata import MetadataRequest
from tests.broker.controller.topics_stage import StubNode
from tests.broker.groups.group_requests import FSYNC, commit
from tests.broker.groups.groups_stage import GroupNode

pytestmark = pytest.mark.interpreted


@pytest.mark.usefixtures("one_step_per_turn")
def test_a_topic_is_removed_when_no_power_loss_can_bring_its_offsets_back() -> None:
    node = GroupNode(FSYNC).begin()
    node.sync()
    node.advance(0)
    commit(node, {0: 5})
    node.sync()
    heard: list[Outcome] = []
    node.controller.delete(["orders"], heard.extend)
    node.sync()  # The deletion is durable.
    node.advance(0)  # The tombstones of the offsets are written, in several turns.
    assert node.partition("orders", 0) is None
    assert heard == []
    node.sync()
    assert [outcome.error for outcome in heard] == [ErrorCode.NONE]


def test_a_removal_that_overtakes_a_creation_leaves_no_partition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns, "TURN_SECONDS", 0.0)
    node = StubNode().start()
    heard: list[Outcome] = []
    node.controller.create([NewTopic("wide", 250)], heard.extend, validate_only=False)
    assert 0 < len(node.partitions.by_name) < 250
    monkeypatch.setattr(turns, "TURN_SECONDS", 1e9)
    node.controller.delete(["wide"], heard.extend)
    while node.turn():
        pass
    assert [outcome.error for outcome in heard] == [ErrorCode.NONE] * 2
    assert {name.topic for name in node.partitions.by_name} == {"__cluster_metadata"}


def test_what_is_not_durable_yet_is_shown_without_a_leader() -> None:
    node = StubNode(FSYNC).start()

    def leaders() -> list[int]:
        (topic,) = node.ask(ApiKey.METADATA, MetadataRequest(topics=None)).topics
        assert topic.topic_id == node.metadata.topic_id("orders")
        return [partition.leader_id for partition in topic.partitions]

    node.made("orders", 1)
    assert leaders() == [1]
    node.controller.create_partitions(
        [CreatePartitions("orders", 2)], lambda _: None, validate_only=False
    )
    assert leaders() == [1, NO_NODE]
    node.sync()
    assert leaders() == [1, 1]
    node.controller.delete(["orders"], lambda _: None)
    node.sync()
    node.controller.create([NewTopic("orders", 1)], lambda _: None, validate_only=False)
    assert leaders() == [NO_NODE]
    node.sync()
    assert leaders() == [1]


# -- leaders


def beside_another_broker() -> StubNode:
    """This broker is 1; 2 is a name in the metadata."""
    node = StubNode().start()
    node.follower.apply([RegisterBrokerRecord(broker_id=2, fenced=False)])
    return node


def test_a_broker_opens_a_partition_when_it_becomes_its_leader() -> None:
    node = beside_another_broker()
    node.create(NewTopic("orders", assignments=[(0, [2, 1])]))
    node.create(NewTopic("refunds", assignments=[(0, [2])]))
    effects = node.follower.apply(decide_fence_brokers(node.metadata, frozenset({2})).records)
    assert node.partition("orders", 0) is None
    node.follower.carry_out(effects, lambda: None)
    opened = node.partition("orders", 0)
    assert opened is not None
    assert opened.leader_epoch == 1
    assert node.partition("refunds", 0) is None
    topics = node.ask(ApiKey.METADATA, MetadataRequest(topics=None)).topics
    assert {topic.name: topic.partitions[0].leader_id for topic in topics} == {
        "orders": 1,
        "refunds": NO_NODE,
    }


def test_a_broker_loads_the_groups_of_the_partitions_that_it_takes_over() -> None:
    node = beside_another_broker()
    node.create(NewTopic(CONSUMER_OFFSETS_TOPIC, replication_factor=2))
    before = len(node.groups.loaded)
    assert 0 < before < 50
    effects = node.follower.apply(decide_fence_brokers(node.metadata, frozenset({2})).records)
    node.follower.carry_out(effects, lambda: None)
    assert sorted(node.groups.loaded) == list(range(50))


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_change_of_a_topic_that_was_deleted_meanwhile_has_no_effect(*, is_replaced: bool) -> None:
    node = beside_another_broker()
    node.create(NewTopic("orders", assignments=[(0, [2, 1]), (1, [1, 2])]))
    held = [
        *node.follower.apply(decide_fence_brokers(node.metadata, frozenset({2})).records),
        *node.follower.apply(
            decide_bump_leader_epochs(node.metadata, [TopicPartition("orders", 1)]).records
        ),
    ]
    node.controller.delete(["orders"], lambda _: None)
    if is_replaced:
        node.made("orders", 2)
    node.follower.carry_out(held, lambda: None)
    opened = [each for each in node.partitions.by_name.values() if each.name.topic == "orders"]
    new_id = node.metadata.topic_id("orders")
    expected = [(new_id, 0), (new_id, 0)] if is_replaced else []
    assert [(each.topic_id, each.leader_epoch) for each in opened] == expected
