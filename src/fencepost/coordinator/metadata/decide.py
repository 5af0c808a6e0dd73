"""Decides requests about topics and partitions, without changing anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import CLUSTER_METADATA_TOPIC, INTERNAL_TOPICS
from fencepost.coordinator.metadata.events import Decision, refuse
from fencepost.coordinator.metadata.names import refuse_name
from fencepost.coordinator.metadata.placement import (
    order_assignments,
    place,
    place_manually,
    refuse_replication_factor,
)
from fencepost.records.metadata_log import (
    TOPIC_RESOURCE,
    ConfigRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fencepost.coordinator.metadata.events import CreatePartitions, CreateTopic, DeleteTopic
    from fencepost.coordinator.metadata.state import MetadataState
    from fencepost.records.metadata_log import MetadataRecord


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
    leaders = _choose_leaders(state, event)
    if isinstance(leaders, Decision):
        return leaders
    assert event.topic_id not in state.topics_by_id, "a topic id is new"
    records: list[MetadataRecord] = [TopicRecord(name=event.name, topic_id=event.topic_id)]
    records += [
        ConfigRecord(resource_type=TOPIC_RESOURCE, resource_name=event.name, name=name, value=value)
        for name, value in sorted(event.settings.items())
    ]
    records += _partition_records(event.topic_id, 0, leaders)
    return Decision(tuple(records))


def _choose_leaders(state: MetadataState, event: CreateTopic) -> list[int] | Decision:
    if not event.assignments:
        return refuse_replication_factor(event.replication_factor) or place(
            state, event.partition_count
        )
    if event.partition_count != -1 or event.replication_factor != -1:
        return refuse(
            ErrorCode.INVALID_REQUEST,
            "With a manual assignment the number of partitions and the replication factor must "
            "be -1.",
        )
    ordered = order_assignments(event.assignments)
    return ordered if isinstance(ordered, Decision) else place_manually(state, ordered)


def _partition_records(
    topic_id: bytes, first_index: int, leaders: Sequence[int]
) -> list[PartitionRecord]:
    return [
        PartitionRecord(
            partition_id=first_index + offset,
            topic_id=topic_id,
            replicas=[leader],
            isr=[leader],
            leader=leader,
            leader_epoch=0,
            partition_epoch=0,
        )
        for offset, leader in enumerate(leaders)
    ]


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
    leaders = _choose_more_leaders(state, added, event.assignments)
    if isinstance(leaders, Decision):
        return leaders
    return Decision(tuple(_partition_records(topic.topic_id, present, leaders)))


def _choose_more_leaders(
    state: MetadataState, added: int, assignments: Sequence[Sequence[int]] | None
) -> list[int] | Decision:
    if assignments is None:
        return place(state, added)
    if len(assignments) != added:
        return refuse(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"There are {added} new partitions, but the manual assignment has {len(assignments)}.",
        )
    return place_manually(state, assignments)
