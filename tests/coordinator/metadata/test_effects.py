"""What a broker that follows the metadata log concludes from its records."""

from __future__ import annotations

from fencepost.base.ids import TopicPartition
from fencepost.coordinator.metadata.effects import (
    LeadersChanged,
    PartitionsCreated,
    SettingsChanged,
    TopicRemoved,
    effects_of,
)
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
from tests.coordinator.metadata.cluster import one_broker


def setting(kind: int, resource: str, name: str) -> ConfigRecord:
    return ConfigRecord(resource_type=kind, resource_name=resource, name=name, value="1")


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
        TopicRemoved("old", 2),
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
    changes = [
        PartitionChangeRecord(topic_id=cluster.state.topics[name].topic_id, partition_id=index)
        for name, index in (("orders", 1), ("refunds", 0))
    ]
    changed = TopicPartition("orders", 1), TopicPartition("refunds", 0)
    assert effects_of(cluster.state, changes) == [LeadersChanged(changed)]


def test_a_block_of_producer_ids_means_nothing_to_a_broker() -> None:
    cluster = one_broker()
    cluster.take(decide_allocate_block(cluster.state, 1))
    assert cluster.effects == []
