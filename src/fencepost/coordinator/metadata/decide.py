"""Decides requests about topics and partitions, without changing anything."""

from __future__ import annotations

from collections.abc import Sequence

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import CLUSTER_METADATA_TOPIC, INTERNAL_TOPICS
from fencepost.base.topic_names import refuse_name
from fencepost.coordinator.metadata.events import (
    CreatePartitions,
    CreateTopic,
    Decision,
    DeleteTopic,
    refuse,
)
from fencepost.coordinator.metadata.placement import (
    order_assignments,
    place,
    place_manually,
    replication_factor_of,
)
from fencepost.coordinator.metadata.state import MetadataState
from fencepost.records.metadata_log import (
    TOPIC_RESOURCE,
    ConfigRecord,
    MetadataRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)


def refuse_new_name(state: MetadataState, name: str) -> Decision | None:
    """The refusal if no topic of this name can be created now."""
    if problem := refuse_name(name):
        return refuse(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
    if name == CLUSTER_METADATA_TOPIC:
        return refuse(
            ErrorCode.INVALID_REQUEST, f"{name} is the broker's metadata log, not a topic."
        )
    if name in state.topics:
        return refuse(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic {name!r} already exists.")
    if other := state.colliding_name(name):
        return refuse(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"Topic {name!r} collides with {other!r} in metrics, where '.' becomes '_'.",
        )
    return None


def decide_create_topic(state: MetadataState, event: CreateTopic) -> Decision:
    """Create a topic, its partitions and its settings in one batch of the log: all or nothing."""
    if refused := refuse_new_name(state, event.name):
        return refused
    replicas = _choose_replicas(state, event)
    if isinstance(replicas, Decision):
        return replicas
    assert event.topic_id not in state.topics_by_id, "a topic id is new"
    records: list[MetadataRecord] = [TopicRecord(name=event.name, topic_id=event.topic_id)]
    records += [
        ConfigRecord(resource_type=TOPIC_RESOURCE, resource_name=event.name, name=name, value=value)
        for name, value in sorted(event.settings.items())
    ]
    records += _partition_records(state, event.topic_id, 0, replicas)
    return Decision(tuple(records))


def _choose_replicas(
    state: MetadataState, event: CreateTopic
) -> Sequence[tuple[int, ...]] | Decision:
    if not event.assignments:
        replication_factor = replication_factor_of(state, event)
        if isinstance(replication_factor, Decision):
            return replication_factor
        return place(state, event.partition_count, replication_factor)
    if event.partition_count != -1 or event.replication_factor != -1:
        return refuse(
            ErrorCode.INVALID_REQUEST,
            "With a manual assignment the number of partitions and the replication factor must "
            "be -1.",
        )
    ordered = order_assignments(event.assignments)
    if isinstance(ordered, Decision):
        return ordered
    return place_manually(state, ordered, len(ordered[0]))


def _partition_records(
    state: MetadataState, topic_id: bytes, first_index: int, chosen: Sequence[tuple[int, ...]]
) -> list[PartitionRecord]:
    active = state.active_nodes()
    records = []
    for index, replicas in enumerate(chosen, first_index):
        isr = [node for node in replicas if node in active]
        records.append(
            PartitionRecord(
                partition_id=index,
                topic_id=topic_id,
                replicas=list(replicas),
                isr=isr,
                leader=isr[0],
                leader_epoch=0,
                partition_epoch=0,
            )
        )
    return records


def decide_delete_topic(state: MetadataState, event: DeleteTopic) -> Decision:
    """Delete a topic with its partitions and settings; its id is never used again."""
    topic = state.topics.get(event.name)
    if topic is None:
        return refuse(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic {event.name!r}.")
    if topic.is_internal:
        return refuse(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"{event.name} is used by the broker itself and cannot be deleted.",
        )
    return Decision((RemoveTopicRecord(topic_id=topic.topic_id),))


def decide_create_partitions(state: MetadataState, event: CreatePartitions) -> Decision:
    """Add partitions after the existing ones; keys may map to other partitions from then on."""
    topic = state.topics.get(event.name)
    if topic is None:
        return refuse(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic {event.name!r}.")
    if event.name in INTERNAL_TOPICS:
        return refuse(
            ErrorCode.INVALID_PARTITIONS,
            f"The number of partitions of {event.name} decides which of them owns a group or a "
            "transactional id; it cannot change.",
        )
    present = len(topic.partitions)
    added = event.partition_count - present
    if added <= 0:
        return refuse(
            ErrorCode.INVALID_PARTITIONS,
            f"Topic {event.name!r} has {present} partitions; the new count, "
            f"{event.partition_count}, must be higher.",
        )
    # New partitions have as many replicas as the first one, as in Kafka.
    replication_factor = len(topic.partitions[0].replicas)
    if event.assignments is None:
        replicas = place(state, added, replication_factor)
    elif len(event.assignments) != added:
        return refuse(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"There are {added} new partitions, but the manual assignment has "
            f"{len(event.assignments)}.",
        )
    else:
        replicas = place_manually(state, event.assignments, replication_factor)
    if isinstance(replicas, Decision):
        return replicas
    return Decision(tuple(_partition_records(state, topic.topic_id, present, replicas)))
