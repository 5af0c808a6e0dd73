"""What a broker that follows the metadata log concludes from its records."""

from __future__ import annotations

from typing import Any

from fencepost.base.ids import NO_NODE
from fencepost.coordinator.metadata.effects import (
    LeadersChanged,
    PartitionChange,
    PartitionsCreated,
    SettingsChanged,
    TopicRemoved,
    effects_of,
)
from fencepost.coordinator.metadata.events import Decision
from fencepost.coordinator.metadata.registry import decide_allocate_block
from fencepost.records.metadata_log import (
    BROKER_RESOURCE,
    TOPIC_RESOURCE,
    ConfigRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from tests.coordinator.metadata.cluster import Cluster, brokers, one_broker, opens_at


def setting(kind: int, resource: str, name: str) -> ConfigRecord:
    return ConfigRecord(resource_type=kind, resource_name=resource, name=name, value="1")


SOMETHING_ELSE = setting(BROKER_RESOURCE, "", "log.retention.ms")


def change(cluster: Cluster, topic: str, index: int, **fields: Any) -> PartitionChangeRecord:
    topic_id = cluster.state.topics[topic].topic_id
    return PartitionChangeRecord(topic_id=topic_id, partition_id=index, **fields)


def test_a_topic_with_settings_is_one_effect() -> None:
    cluster = one_broker()
    cluster.create("orders", 3, {"retention.ms": "5", "segment.bytes": "2000000"})
    topic_id = cluster.state.topics["orders"].topic_id
    assert cluster.effects == [PartitionsCreated("orders", 0, 3, topic_id)]


def test_records_of_several_topics_in_one_batch_keep_their_order() -> None:
    cluster = one_broker()
    cluster.create("old", 2)
    old_id = cluster.state.topics["old"].topic_id
    records: list[MetadataRecord] = [
        RemoveTopicRecord(topic_id=old_id),
        TopicRecord(name="a", topic_id=b"a" * 16),
        TopicRecord(name="b", topic_id=b"b" * 16),
        PartitionRecord(topic_id=b"a" * 16, partition_id=0),
        PartitionRecord(topic_id=b"a" * 16, partition_id=1),
        PartitionRecord(topic_id=b"b" * 16, partition_id=0),
    ]
    assert effects_of(cluster.state, records) == [
        TopicRemoved("old", 2, old_id),
        PartitionsCreated("a", 0, 2, b"a" * 16),
        PartitionsCreated("b", 0, 1, b"b" * 16),
    ]


def test_all_settings_of_a_resource_are_one_effect() -> None:
    cluster = one_broker()
    cluster.create("orders")
    records: list[MetadataRecord] = [
        setting(TOPIC_RESOURCE, "orders", "retention.ms"),
        setting(TOPIC_RESOURCE, "orders", "segment.ms"),
        setting(BROKER_RESOURCE, "", "log.retention.ms"),
    ]
    assert effects_of(cluster.state, records) == [
        SettingsChanged(TOPIC_RESOURCE, "orders"),
        SettingsChanged(BROKER_RESOURCE, ""),
    ]


def test_a_resource_that_has_the_name_of_a_new_topic_is_not_that_topic() -> None:
    records: list[MetadataRecord] = [
        TopicRecord(name="1", topic_id=b"1" * 16),
        setting(TOPIC_RESOURCE, "1", "retention.ms"),
        setting(BROKER_RESOURCE, "1", "log.retention.ms"),
    ]
    assert effects_of(one_broker().state, records) == [SettingsChanged(BROKER_RESOURCE, "1")]


def test_partitions_that_change_together_are_one_effect() -> None:
    cluster = one_broker()
    cluster.create("orders", 2)
    cluster.create("refunds")
    records = [change(cluster, "orders", 1, isr=[1]), change(cluster, "refunds", 0, leader=1)]
    orders_id, refunds_id = (cluster.state.topics[name].topic_id for name in ("orders", "refunds"))
    assert effects_of(cluster.state, records) == [
        LeadersChanged(
            (
                PartitionChange("orders", 1, orders_id, 1, 1, leader_epoch=0, last_leader=1),
                PartitionChange("refunds", 0, refunds_id, 1, 1, leader_epoch=1, last_leader=1),
            )
        )
    ]


def test_a_partition_that_changes_twice_in_a_batch_has_one_change() -> None:
    cluster = brokers(3)
    cluster.assign("orders", [1, 2, 3])
    topic_id = cluster.state.topics["orders"].topic_id
    records: list[MetadataRecord] = [
        change(cluster, "orders", 0, leader=2, isr=[2, 3]),
        SOMETHING_ELSE,
        change(cluster, "orders", 0, leader=3),
        change(cluster, "orders", 0, isr=[3]),
    ]
    cluster.take(Decision(tuple(records)))
    net = PartitionChange("orders", 0, topic_id, 1, 3, leader_epoch=2, last_leader=1)
    assert cluster.effects == [SettingsChanged(BROKER_RESOURCE, ""), LeadersChanged((net,))]
    assert [node for node in (1, 2, 3) if opens_at(net, node)] == [3]
    assert [node for node in (1, 2, 3) if net.closes_at(node)] == [1]


def test_a_leader_that_a_batch_replaces_and_sets_again_stays_open() -> None:
    cluster = brokers(2)
    cluster.assign("orders", [1, 2])
    records = [change(cluster, "orders", 0, leader=NO_NODE), change(cluster, "orders", 0, leader=1)]
    cluster.take(Decision(tuple(records)))
    (effect,) = cluster.effects
    assert isinstance(effect, LeadersChanged)
    (net,) = effect.partitions
    assert (net.leader_before, net.leader, net.leader_epoch) == (1, 1, 2)
    assert not any(opens_at(net, node) or net.closes_at(node) for node in (1, 2))


def test_a_partition_that_is_created_and_changed_in_one_batch_is_only_created() -> None:
    cluster = brokers(2)
    cluster.assign("orders", [1])
    orders_id, refunds_id = cluster.state.topics["orders"].topic_id, b"r" * 16

    def new(topic_id: bytes, index: int) -> PartitionRecord:
        return PartitionRecord(
            topic_id=topic_id,
            partition_id=index,
            replicas=[1, 2],
            isr=[1, 2],
            leader=1,
            leader_epoch=0,
        )

    records: list[MetadataRecord] = [
        TopicRecord(name="refunds", topic_id=refunds_id),
        new(refunds_id, 0),
        new(orders_id, 1),
        PartitionChangeRecord(topic_id=refunds_id, partition_id=0, leader=2),
        PartitionChangeRecord(topic_id=orders_id, partition_id=1, leader=2),
    ]
    cluster.take(Decision(tuple(records)))
    assert cluster.effects == [
        PartitionsCreated("refunds", 0, 1, refunds_id),
        PartitionsCreated("orders", 1, 1, orders_id),
    ]


def test_a_block_of_producer_ids_means_nothing_to_a_broker() -> None:
    cluster = one_broker()
    cluster.take(decide_allocate_block(cluster.state, 1))
    assert cluster.effects == []
