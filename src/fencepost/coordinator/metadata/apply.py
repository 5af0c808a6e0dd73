"""The only mutation of the metadata state: one record at a time, live and at load alike.

A record that contradicts the state is a bug of the code that decided it, never a client's mistake,
so these checks are assertions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from fencepost.base.failures import CorruptError, WireError
from fencepost.base.ids import NO_NODE
from fencepost.base.scram import Credential
from fencepost.base.topic_names import collision_key
from fencepost.coordinator.acl.changes import rule_of
from fencepost.coordinator.metadata.state import (
    Broker,
    Endpoint,
    MetadataState,
    PartitionState,
    Topic,
)
from fencepost.records.entry import Entry
from fencepost.records.metadata_log import (
    NO_LEADER_CHANGE,
    TOPIC_RESOURCE,
    UNFENCED,
    AccessControlEntryRecord,
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RemoveAccessControlEntryRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    TopicRecord,
    UnregisterBrokerRecord,
    UserScramCredentialRecord,
    decode_record,
)


def apply(state: MetadataState, record: MetadataRecord) -> None:
    """Apply a record that is in the log."""
    _APPLY[type(record)](state, record)
    state.version += 1


def load(state: MetadataState, entries: Iterable[Entry]) -> int:
    """Fold a log into the state and return the number of records.

    CorruptError for a record that cannot be read.
    """
    count = 0
    for entry in entries:
        assert entry.value is not None, "metadata records have no tombstones"
        try:
            apply(state, decode_record(bytes(entry.value)))
        except WireError as problem:
            raise CorruptError(
                f"the metadata log cannot be read at offset {entry.offset}: {problem}"
            ) from problem
        count += 1
    return count


# -- brokers


def _register_broker(state: MetadataState, record: RegisterBrokerRecord) -> None:
    state.brokers[record.broker_id] = Broker(
        node_id=record.broker_id,
        epoch=record.broker_epoch,
        incarnation_id=bytes(record.incarnation_id),
        endpoints=tuple(
            Endpoint(e.name, e.host, e.port, e.security_protocol) for e in record.end_points
        ),
        rack=record.rack,
        fenced=record.fenced,
        in_controlled_shutdown=record.in_controlled_shutdown,
    )


def _change_broker(state: MetadataState, record: BrokerRegistrationChangeRecord) -> None:
    broker = state.brokers[record.broker_id]
    assert broker.epoch == record.broker_epoch, "a change names the registration it belongs to"
    if record.fenced:
        broker = broker._replace(fenced=record.fenced != UNFENCED)
    if record.in_controlled_shutdown:
        broker = broker._replace(in_controlled_shutdown=True)
    state.brokers[record.broker_id] = broker


def _unregister_broker(state: MetadataState, record: UnregisterBrokerRecord) -> None:
    del state.brokers[record.broker_id]


# -- topics


def _add_topic(state: MetadataState, record: TopicRecord) -> None:
    assert record.name not in state.topics, f"topic {record.name} exists"
    topic = Topic(record.name, bytes(record.topic_id))
    assert topic.topic_id not in state.topics_by_id, f"the id of {topic.name} is taken"
    state.topics[topic.name] = topic
    state.topics_by_id[topic.topic_id] = topic
    state.names_by_collision_key.setdefault(collision_key(topic.name), []).append(topic.name)


def _add_partition(state: MetadataState, record: PartitionRecord) -> None:
    topic = state.topics_by_id[bytes(record.topic_id)]
    assert record.partition_id == len(topic.partitions), "partitions come in their order"
    assert record.leader_epoch >= 0, "a partition begins with an epoch"
    _count_leader(state, record.leader, 1)
    topic.partitions.append(
        PartitionState(
            leader=record.leader,
            leader_epoch=record.leader_epoch,
            partition_epoch=record.partition_epoch,
            replicas=tuple(record.replicas),
            isr=tuple(record.isr),
        )
    )


def _change_partition(state: MetadataState, record: PartitionChangeRecord) -> None:
    topic = state.topics_by_id[bytes(record.topic_id)]
    before = topic.partitions[record.partition_id]
    leader, leader_epoch = before.leader, before.leader_epoch
    if record.leader != NO_LEADER_CHANGE:
        leader, leader_epoch = record.leader, leader_epoch + 1
        _count_leader(state, before.leader, -1)
        _count_leader(state, leader, 1)
    after = PartitionState(
        leader,
        leader_epoch,
        before.partition_epoch + 1,
        before.replicas if record.replicas is None else tuple(record.replicas),
        before.isr if record.isr is None else tuple(record.isr),
    )
    assert after.isr, "a partition has an in-sync replica, dead or alive"
    assert after.leader == NO_NODE or after.leader in after.isr, "a leader is in sync"
    topic.partitions[record.partition_id] = after


def _count_leader(state: MetadataState, leader: int, difference: int) -> None:
    count = state.leader_counts.get(leader, 0) + difference
    if count:
        state.leader_counts[leader] = count
    else:
        state.leader_counts.pop(leader, None)


def _remove_topic(state: MetadataState, record: RemoveTopicRecord) -> None:
    topic = state.topics_by_id.pop(bytes(record.topic_id))
    for partition in topic.partitions:
        _count_leader(state, partition.leader, -1)
    del state.topics[topic.name]
    state.settings.pop((TOPIC_RESOURCE, topic.name), None)
    alike = state.names_by_collision_key[collision_key(topic.name)]
    alike.remove(topic.name)
    if not alike:
        del state.names_by_collision_key[collision_key(topic.name)]


# -- the rest


def _change_setting(state: MetadataState, record: ConfigRecord) -> None:
    resource = (record.resource_type, record.resource_name)
    # A new dict each time, so that holders of the old one keep a consistent view.
    settings = dict(state.settings.get(resource, ()))
    if record.value is None:
        settings.pop(record.name, None)
    else:
        settings[record.name] = record.value
    if settings:
        state.settings[resource] = settings
    else:
        state.settings.pop(resource, None)


def _change_feature(state: MetadataState, record: FeatureLevelRecord) -> None:
    if record.feature_level == 0:
        state.features.pop(record.name, None)
    else:
        state.features[record.name] = record.feature_level


def _reserve_producer_ids(state: MetadataState, record: ProducerIdsRecord) -> None:
    assert record.next_producer_id > state.next_producer_id, (
        "producer ids are never given out twice"
    )
    state.next_producer_id = record.next_producer_id


def _add_acl(state: MetadataState, record: AccessControlEntryRecord) -> None:
    state.acls.add(bytes(record.id), rule_of(record))


def _remove_acl(state: MetadataState, record: RemoveAccessControlEntryRecord) -> None:
    state.acls.remove(bytes(record.id))


def _set_credential(state: MetadataState, record: UserScramCredentialRecord) -> None:
    # A new dict each time, as for settings: a snapshot may hold the old one.
    state.users[record.name] = {
        **state.users.get(record.name, {}),
        record.mechanism: Credential(
            bytes(record.salt),
            bytes(record.stored_key),
            bytes(record.server_key),
            record.iterations,
        ),
    }


def _remove_credential(state: MetadataState, record: RemoveUserScramCredentialRecord) -> None:
    credentials = dict(state.users[record.name])
    del credentials[record.mechanism]
    if credentials:
        state.users[record.name] = credentials
    else:
        del state.users[record.name]


def _nothing(state: MetadataState, record: NoOpRecord) -> None:
    """A sign of life of Kafka's controller."""


_APPLY: Final[dict[type[MetadataRecord], Callable[[MetadataState, Any], None]]] = {
    RegisterBrokerRecord: _register_broker,
    BrokerRegistrationChangeRecord: _change_broker,
    UnregisterBrokerRecord: _unregister_broker,
    TopicRecord: _add_topic,
    PartitionRecord: _add_partition,
    PartitionChangeRecord: _change_partition,
    RemoveTopicRecord: _remove_topic,
    ConfigRecord: _change_setting,
    FeatureLevelRecord: _change_feature,
    ProducerIdsRecord: _reserve_producer_ids,
    AccessControlEntryRecord: _add_acl,
    RemoveAccessControlEntryRecord: _remove_acl,
    NoOpRecord: _nothing,
    UserScramCredentialRecord: _set_credential,
    RemoveUserScramCredentialRecord: _remove_credential,
}
