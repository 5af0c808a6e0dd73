"""Decides changes of brokers, leader epochs, settings and producer ids."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fencepost.base.ids import TopicPartition
from fencepost.base.limits import PRODUCER_ID_BLOCK_SIZE
from fencepost.coordinator.metadata.events import AlterSettings, Decision, RegisterBroker
from fencepost.coordinator.metadata.leadership import Changes, follow_brokers
from fencepost.coordinator.metadata.state import Broker, Endpoint, MetadataState
from fencepost.records.metadata_log import (
    FENCED,
    IN_CONTROLLED_SHUTDOWN,
    UNFENCED,
    BrokerEndpoint,
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
)


def decide_register_broker(state: MetadataState, event: RegisterBroker) -> Decision:
    """Register a broker; the first one also sets the features of the cluster.

    A broker that was active keeps its partitions and their leader epochs.
    """
    records: list[MetadataRecord] = []
    if not state.features:
        records += [
            FeatureLevelRecord(name=name, feature_level=level)
            for name, level in event.features.items()
        ]
    records.append(
        registration_record(
            event.node_id,
            # Kafka's epoch is the offset of this record, which follows those of the features.
            epoch=event.epoch + len(records),
            incarnation_id=event.incarnation_id,
            endpoints=event.endpoints,
            rack=event.rack,
            fenced=event.fenced,
        )
    )
    node, active, suspended = {event.node_id}, state.active_nodes(), state.suspended_nodes()
    active_then = active - node if event.fenced else active | node
    if active_then == active and suspended.isdisjoint(node):
        return Decision(tuple(records))
    changes = follow_brokers(state, active_then, suspended=suspended - node)
    return Decision((*records, *changes.records))


def registration_record(
    node_id: int,
    *,
    epoch: int,
    incarnation_id: bytes,
    endpoints: Sequence[Endpoint],
    rack: str | None,
    fenced: bool,
    in_controlled_shutdown: bool = False,
) -> RegisterBrokerRecord:
    """The record that registers a broker."""
    return RegisterBrokerRecord(
        broker_id=node_id,
        incarnation_id=incarnation_id,
        broker_epoch=epoch,
        end_points=[BrokerEndpoint(**each._asdict()) for each in endpoints],
        rack=rack,
        fenced=fenced,
        in_controlled_shutdown=in_controlled_shutdown,
    )


def decide_fence_brokers(state: MetadataState, node_ids: frozenset[int]) -> Decision:
    """Fence brokers that are dead: others lead their partitions, at higher leader epochs."""
    fenced = [state.brokers[node] for node in sorted(node_ids) if not state.brokers[node].fenced]
    changes = follow_brokers(
        state,
        state.active_nodes() - node_ids,
        suspended=state.suspended_nodes() - node_ids,
    )
    return Decision(
        (*changes.records, *(_registration_change(each, fenced=FENCED) for each in fenced))
    )


def decide_suspend_broker(state: MetadataState, node_id: int) -> Decision:
    """Take the partitions of a broker whose killed process does not end; none leads them then.

    The broker is registered again, without an address, so that clients do not try to reach it.
    """
    broker = state.brokers[node_id]
    if broker.fenced or broker.is_suspended:
        return Decision()
    changes = follow_brokers(
        state, state.active_nodes() - {node_id}, suspended=state.suspended_nodes() | {node_id}
    )
    record = registration_record(
        node_id,
        epoch=broker.epoch,
        incarnation_id=broker.incarnation_id,
        endpoints=(),
        rack=broker.rack,
        fenced=False,
        in_controlled_shutdown=True,
    )
    return Decision((record, *changes.records))


def decide_unfence_brokers(state: MetadataState, node_ids: frozenset[int]) -> Decision:
    """Unfence brokers that are ready: they are in sync again, and lead what had no leader."""
    back = [state.brokers[node] for node in sorted(node_ids) if state.brokers[node].fenced]
    ready = {each.node_id for each in back if not each.in_controlled_shutdown}
    changes = follow_brokers(state, state.active_nodes() | ready)
    return Decision(
        (*(_registration_change(each, fenced=UNFENCED) for each in back), *changes.records)
    )


def decide_controlled_shutdown(state: MetadataState, node_id: int) -> Decision:
    """Let others lead the partitions of a broker that is about to stop."""
    broker = state.brokers[node_id]
    active = state.active_nodes()
    if node_id not in active:
        return Decision()
    changes = follow_brokers(state, active - {node_id})
    record = _registration_change(broker, in_controlled_shutdown=IN_CONTROLLED_SHUTDOWN)
    return Decision((record, *changes.records))


def _registration_change(
    broker: Broker, *, fenced: int = 0, in_controlled_shutdown: int = 0
) -> BrokerRegistrationChangeRecord:
    return BrokerRegistrationChangeRecord(
        broker_id=broker.node_id,
        broker_epoch=broker.epoch,
        fenced=fenced,
        in_controlled_shutdown=in_controlled_shutdown,
    )


def decide_bump_leader_epochs(
    state: MetadataState, partitions: Iterable[TopicPartition]
) -> Decision:
    """Keep the leaders and raise their epochs by one, so that clients validate their positions."""
    changes = Changes()
    for name in dict.fromkeys(partitions):
        leader = state.leader(name.topic, name.partition)
        changes.add(state.topics[name.topic], name.partition, leader, bump=True)
    return changes.decision()


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
