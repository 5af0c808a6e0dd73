"""The controller's events and effects, and the decision that has records and effects.

An event carries all inputs of a decision: an unused topic id, settings that the broker has
validated. So deciding stays a function of the state and the event.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fencepost.base.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fencepost.base.ids import TopicPartition
    from fencepost.coordinator.metadata.state import Endpoint
    from fencepost.records.metadata_log import MetadataRecord

# -- events


class CreateTopic(NamedTuple):
    """Create a topic."""

    name: str
    topic_id: bytes
    partition_count: int
    """-1 if `assignments` decides it."""
    replication_factor: int = -1
    assignments: Sequence[tuple[int, Sequence[int]]] = ()
    """Pairs of a partition's index and the nodes for its copies; empty for automatic placement."""
    settings: Mapping[str, str] = {}


class DeleteTopic(NamedTuple):
    """Delete a topic."""

    name: str


class CreatePartitions(NamedTuple):
    """Add partitions to a topic."""

    name: str
    partition_count: int
    """The new total."""
    assignments: Sequence[Sequence[int]] | None = None
    """The nodes for the copies of each new partition; None for automatic placement."""


class AlterSettings(NamedTuple):
    """Change settings of a resource; None removes one."""

    resource_type: int
    resource_name: str
    changes: Mapping[str, str | None]


class RegisterBroker(NamedTuple):
    """A broker has started."""

    node_id: int
    epoch: int
    """The offset that the record will have."""
    incarnation_id: bytes
    endpoints: Sequence[Endpoint]
    rack: str | None = None
    features: Mapping[str, int] = {}
    """The features of a new cluster; an existing one keeps its own."""


# -- effects


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


class SettingsChanged(NamedTuple):
    """Readers of this resource's settings must read them again."""

    resource_type: int
    resource_name: str


class LeadersChanged(NamedTuple):
    """Partitions have a new leader epoch, and perhaps a new leader."""

    partitions: tuple[TopicPartition, ...]


Effect = PartitionsCreated | TopicRemoved | SettingsChanged | LeadersChanged


class Decision(NamedTuple):
    """Records to append as one batch and effects to do once they are durable, or an error."""

    records: tuple[MetadataRecord, ...] = ()
    effects: tuple[Effect, ...] = ()
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


def refuse(error: ErrorCode, message: str) -> Decision:
    """Refuse a request: no records, an error and a message for the client."""
    assert error is not ErrorCode.NONE, "a refusal needs a reason"
    return Decision(error=error, message=message)
