"""What the records of the metadata log mean for a broker that follows it.

Effects follow from records alone, never from the request behind them: a broker that reads the log
has nothing else. A batch of the log is a decision, so its records belong together: the partitions
of a new topic are one effect, so are all settings of a resource, and all changes of partitions.

A batch has one change at most for each partition, from the leader before the batch to the leader
after it. If several records change one partition, no broker acts on what is in between: a leader
that the batch replaces and sets again keeps its partition open. The change of a partition that the
same batch creates is no effect: the partition is opened in the state that the batch leads to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple, cast

from fencepost.base.ids import NO_NODE
from fencepost.coordinator.metadata.state import MetadataState
from fencepost.records.metadata_log import (
    NO_LEADER_CHANGE,
    TOPIC_RESOURCE,
    ConfigRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)


class PartitionsCreated(NamedTuple):
    """Partitions of a topic exist, from the first index on, and need logs.

    Another topic may have the name by the time they get them, so the id identifies the topic.
    """

    topic: str
    first_index: int
    partition_count: int
    topic_id: bytes


class TopicRemoved(NamedTuple):
    """The logs of a topic must be deleted."""

    topic: str
    partition_count: int
    topic_id: bytes


class SettingsChanged(NamedTuple):
    """Readers of this resource's settings must read them again."""

    resource_type: int
    resource_name: str


class PartitionChange(NamedTuple):
    """A change of one partition: of its leader, its leader epoch, or its replicas alone.

    As in `PartitionsCreated`, the id identifies the topic.
    """

    topic: str
    partition: int
    topic_id: bytes
    leader_before: int
    leader: int
    """The leader from now on; -1 if there is none."""
    leader_epoch: int
    last_leader: int = NO_NODE
    """`leader_before`, or the leader before that if there was none; -1 if it is not known."""

    def closes_at(self, node_id: int) -> bool:
        """Whether this broker ceases to lead, and must close the partition."""
        return self.leader_before == node_id != self.leader

    def moves_to(self, node_id: int) -> bool:
        """Whether this broker leads after another one; not if it leads again, or is the first."""
        return self.leader == node_id and self.last_leader not in (node_id, NO_NODE)


class LeadersChanged(NamedTuple):
    """Partitions have other leaders, leader epochs or replicas: brokers open, close or learn."""

    partitions: tuple[PartitionChange, ...]


Effect = PartitionsCreated | TopicRemoved | SettingsChanged | LeadersChanged


def effects_of(state: MetadataState, records: Sequence[MetadataRecord]) -> list[Effect]:
    """The effects of one batch; `state` is the state before the batch."""
    effects: list[Effect] = []
    names = _Names(state)
    changes: dict[tuple[bytes, int], PartitionChange] = {}
    for kind, group in groupby(records, key=type):
        if kind is TopicRecord:
            names.add(cast("Iterator[TopicRecord]", group))
        elif kind is PartitionRecord:
            effects += _created(cast("Iterator[PartitionRecord]", group), names)
        elif kind is PartitionChangeRecord:
            for record in cast("Iterator[PartitionChangeRecord]", group):
                _add_change(changes, state, record)
        elif kind is ConfigRecord:
            effects += _altered(cast("Iterator[ConfigRecord]", group), names)
        elif kind is RemoveTopicRecord:
            for removal in cast("Iterator[RemoveTopicRecord]", group):
                topic = state.topics_by_id[bytes(removal.topic_id)]
                effects.append(TopicRemoved(topic.name, len(topic.partitions), topic.topic_id))
    if changes:
        effects.append(LeadersChanged(tuple(changes.values())))
    return effects


def _add_change(
    changes: dict[tuple[bytes, int], PartitionChange],
    state: MetadataState,
    record: PartitionChangeRecord,
) -> None:
    """Adds a record to the changes of a batch."""
    topic = state.topics_by_id.get(bytes(record.topic_id))
    index = record.partition_id
    if topic is None or index >= len(topic.partitions):
        return  # The batch creates it.
    before = topic.partitions[index]
    known = changes.get((topic.topic_id, index), before)
    leader, epoch = known.leader, known.leader_epoch
    if record.leader != NO_LEADER_CHANGE:
        leader, epoch = record.leader, epoch + 1
    changes[topic.topic_id, index] = PartitionChange(
        topic.name,
        index,
        topic.topic_id,
        before.leader,
        leader,
        epoch,
        # Without a leader, the last one is the only replica in sync (`leadership.py`).
        before.isr[0] if before.leader == NO_NODE else before.leader,
    )


class _Names:
    """The names of topics by their ids, with those that the batch creates."""

    def __init__(self, state: MetadataState) -> None:
        self._state = state
        self._new: dict[bytes, str] = {}

    def add(self, records: Iterable[TopicRecord]) -> None:
        self._new.update((bytes(record.topic_id), record.name) for record in records)

    def of(self, topic_id: bytes) -> str:
        found = self._new.get(bytes(topic_id))
        return self._state.topics_by_id[bytes(topic_id)].name if found is None else found

    def is_new(self, name: str) -> bool:
        return name in self._new.values()


def _created(records: Iterable[PartitionRecord], names: _Names) -> Iterator[PartitionsCreated]:
    for topic_id, group in groupby(records, key=lambda record: record.topic_id):
        first, *others = group
        yield PartitionsCreated(
            names.of(topic_id), first.partition_id, 1 + len(others), bytes(topic_id)
        )


def _altered(records: Iterable[ConfigRecord], names: _Names) -> Iterator[SettingsChanged]:
    for kind, name in dict.fromkeys((each.resource_type, each.resource_name) for each in records):
        # No broker has read the settings of a topic that is created with them.
        if kind != TOPIC_RESOURCE or not names.is_new(name):
            yield SettingsChanged(kind, name)
