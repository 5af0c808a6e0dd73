"""A state as the shortest log that leads to it."""

from __future__ import annotations

from collections.abc import Iterator

from fencepost.base.ids import NO_NODE
from fencepost.coordinator.acl.changes import record_of
from fencepost.coordinator.metadata.state import Broker, MetadataState, Topic
from fencepost.coordinator.metadata.users import credential_record
from fencepost.records.metadata_log import (
    BrokerEndpoint,
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    TopicRecord,
)


def frozen(state: MetadataState) -> MetadataState:
    """Copy a state for a snapshot; records that are applied later do not change the copy."""
    copy = MetadataState()
    copy.features.update(state.features)
    copy.brokers.update(state.brokers)
    for topic in state.topics.values():
        copy.topics[topic.name] = copied = Topic(topic.name, topic.topic_id)
        copied.partitions = topic.partitions.copy()
    copy.settings.update(state.settings)  # A change of settings makes a new dict.
    copy.users.update(state.users)  # So does a change of a user.
    copy.next_producer_id = state.next_producer_id
    copy.acls.rules.update(state.acls.rules)  # A snapshot reads no index of them.
    return copy


def snapshot(state: MetadataState) -> Iterator[MetadataRecord]:
    """The records that lead from an empty state to this one."""
    for name, level in state.features.items():
        yield FeatureLevelRecord(name=name, feature_level=level)
    for broker in state.brokers.values():
        yield _registration(broker)
    for topic in state.topics.values():
        yield TopicRecord(name=topic.name, topic_id=topic.topic_id)
        yield from _partitions(topic)
    for (resource_type, resource_name), settings in state.settings.items():
        for name, value in settings.items():
            yield ConfigRecord(
                resource_type=resource_type, resource_name=resource_name, name=name, value=value
            )
    for rule_id, rule in state.acls.rules.items():
        yield record_of(rule_id, rule)
    for name, credentials in state.users.items():
        for mechanism, credential in credentials.items():
            yield credential_record(name, mechanism, credential)
    if state.next_producer_id > 0:
        yield ProducerIdsRecord(broker_id=NO_NODE, next_producer_id=state.next_producer_id)


def _registration(broker: Broker) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id=broker.node_id,
        incarnation_id=broker.incarnation_id,
        broker_epoch=broker.epoch,
        end_points=[BrokerEndpoint(**each._asdict()) for each in broker.endpoints],
        rack=broker.rack,
        fenced=broker.fenced,
        in_controlled_shutdown=broker.in_controlled_shutdown,
    )


def _partitions(topic: Topic) -> Iterator[PartitionRecord]:
    for index, partition in enumerate(topic.partitions):
        yield PartitionRecord(
            partition_id=index,
            topic_id=topic.topic_id,
            replicas=list(partition.replicas),
            isr=list(partition.isr),
            leader=partition.leader,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
        )
