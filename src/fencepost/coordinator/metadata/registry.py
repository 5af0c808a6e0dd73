"""Decides changes of brokers, leaders, settings and producer ids."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencepost.base.limits import PRODUCER_ID_BLOCK_SIZE
from fencepost.coordinator.metadata.events import Decision
from fencepost.records.metadata_log import (
    FENCED,
    UNFENCED,
    BrokerEndpoint,
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    FeatureLevelRecord,
    PartitionChangeRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fencepost.base.ids import TopicPartition
    from fencepost.coordinator.metadata.events import AlterSettings, RegisterBroker
    from fencepost.coordinator.metadata.state import MetadataState
    from fencepost.records.metadata_log import MetadataRecord


def decide_register_broker(state: MetadataState, event: RegisterBroker) -> Decision:
    """Register a broker; the first one also sets the features of the cluster."""
    records: list[MetadataRecord] = []
    if not state.features:
        records += [
            FeatureLevelRecord(name=name, feature_level=level)
            for name, level in event.features.items()
        ]
    records.append(
        RegisterBrokerRecord(
            broker_id=event.node_id,
            incarnation_id=event.incarnation_id,
            # Kafka's epoch is the offset of this record, which follows those of the features.
            broker_epoch=event.epoch + len(records),
            end_points=[
                BrokerEndpoint(name=each.name, host=each.host, port=each.port)
                for each in event.endpoints
            ],
            rack=event.rack,
            fenced=False,
        )
    )
    return Decision(tuple(records))


def decide_fence_broker(state: MetadataState, node_id: int, *, fenced: bool) -> Decision:
    """Fence or unfence a broker."""
    broker = state.brokers.get(node_id)
    if broker is None or broker.fenced == fenced:
        return Decision()
    return Decision(
        (
            BrokerRegistrationChangeRecord(
                broker_id=node_id,
                broker_epoch=broker.epoch,
                fenced=FENCED if fenced else UNFENCED,
            ),
        )
    )


def decide_bump_leader_epochs(
    state: MetadataState, partitions: Iterable[TopicPartition]
) -> Decision:
    """Keep the leaders and raise their epochs by one, so that clients validate their positions."""
    return decide_change_leaders(
        state, {name: state.leader(name.topic, name.partition) for name in partitions}
    )


def decide_change_leaders(state: MetadataState, leaders: Mapping[TopicPartition, int]) -> Decision:
    """Set the leaders of partitions, in a new epoch; the one copy is at the leader."""
    records = []
    for name, leader in leaders.items():
        partition = state.partition(name.topic, name.partition)
        assert partition is not None, f"{name} does not exist"
        moved = leader != partition.leader
        records.append(
            PartitionChangeRecord(
                partition_id=name.partition,
                topic_id=state.topics[name.topic].topic_id,
                leader=leader,
                isr=[leader] if moved else None,
                replicas=[leader] if moved else None,
            )
        )
    return Decision(tuple(records))


def decide_alter_settings(state: MetadataState, event: AlterSettings) -> Decision:
    """Write one record for each setting that really changes."""
    present = state.settings_of(event.resource_type, event.resource_name)
    return Decision(
        tuple(
            ConfigRecord(
                resource_type=event.resource_type,
                resource_name=event.resource_name,
                name=name,
                value=value,
            )
            for name, value in sorted(event.changes.items())
            if present.get(name) != value
        )
    )


def decide_allocate_block(state: MetadataState, node_id: int) -> Decision:
    """Allocate the next block of producer ids to a node."""
    return decide_reserve_ids(state, node_id, state.next_producer_id + PRODUCER_ID_BLOCK_SIZE)


def decide_reserve_ids(state: MetadataState, node_id: int, next_producer_id: int) -> Decision:
    """Reserve all producer ids below this one for a node, unless they have been handed out."""
    if next_producer_id <= state.next_producer_id:
        return Decision()
    broker = state.brokers.get(node_id)
    return Decision(
        (
            ProducerIdsRecord(
                broker_id=node_id,
                broker_epoch=-1 if broker is None else broker.epoch,
                next_producer_id=next_producer_id,
            ),
        )
    )
