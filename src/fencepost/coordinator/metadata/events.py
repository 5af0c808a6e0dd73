"""What the controller is told, what follows from it, and the decision that joins both to records.

An event carries all that is needed to decide: a topic id that nobody has used, settings that were
checked against the table of the broker. So deciding stays a function of the state and the event.
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
# ---------------------------------------------------------------------------------------------------


class CreateTopic(NamedTuple):
    """Somebody wants a topic."""

    name: str
    topic_id: bytes
    partition_count: int
    """-1 where `assignments` says it."""
    replication_factor: int = -1
    assignments: Sequence[tuple[int, Sequence[int]]] = ()
    """Pairs of a partition's index and the nodes for its copies; empty to let the controller
    choose."""
    settings: Mapping[str, str] = {}


class DeleteTopic(NamedTuple):
    """Somebody wants a topic to be gone."""

    name: str


class CreatePartitions(NamedTuple):
    """Somebody wants a topic to have more partitions."""

    name: str
    partition_count: int
    """Of all partitions, old and new."""
    assignments: Sequence[Sequence[int]] | None = None
    """The nodes for the copies of each new partition; None to let the controller choose."""


class AlterSettings(NamedTuple):
    """Somebody changes settings of a resource; None takes one away."""

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
    """What a new cluster shall have; an old one keeps what it has."""


# -- effects
# --------------------------------------------------------------------------------------------------


class PartitionsCreated(NamedTuple):
    """Partitions of a topic are there, from the first index on, and want logs.

    By the time they get them, another topic may have the name, so the id says which topic is meant.
    """

    topic: str
    first_index: int
    partition_count: int
    topic_id: bytes


class TopicRemoved(NamedTuple):
    """The logs of a topic are to go."""

    topic: str
    partition_count: int


class SettingsChanged(NamedTuple):
    """Whoever reads settings of this resource must look again."""

    resource_type: int
    resource_name: str


class LeadersChanged(NamedTuple):
    """Partitions have a new leader epoch, and perhaps a new leader."""

    partitions: tuple[TopicPartition, ...]


Effect = PartitionsCreated | TopicRemoved | SettingsChanged | LeadersChanged


class Decision(NamedTuple):
    """Records to append as one batch, and what to do once they are durable; or an error, and neither."""

    records: tuple[MetadataRecord, ...] = ()
    effects: tuple[Effect, ...] = ()
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


def refuse(error: ErrorCode, message: str) -> Decision:
    """Nothing happens, and the client is told why."""
    assert error is not ErrorCode.NONE, "a refusal needs a reason"
    return Decision(error=error, message=message)
