"""The controller's events, and the decision that has the records.

An event carries all inputs of a decision: an unused topic id, settings that the broker has
validated. So deciding stays a function of the state and the event.
"""

from __future__ import annotations

from enum import Enum
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
    """-1 for the default."""
    assignments: Sequence[tuple[int, Sequence[int]]] = ()
    """Pairs of a partition's index and its replicas; empty for automatic placement."""
    settings: Mapping[str, str] = {}
    default_factor: int = 1
    """`default.replication.factor`; internal topics have another default."""


class DeleteTopic(NamedTuple):
    """Delete a topic."""

    name: str


class CreatePartitions(NamedTuple):
    """Add partitions to a topic."""

    name: str
    partition_count: int
    """The new total."""
    assignments: Sequence[Sequence[int]] | None = None
    """The replicas of each new partition; None for automatic placement."""


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
    fenced: bool = False
    """Whether the broker must not lead yet; it is unfenced when it serves clients."""


class Resize(NamedTuple):
    """The brokers of a start, if they differ from those of the last one."""

    broker_ids: Sequence[int]
    epoch: int
    """The offset that the first record will have."""
    incarnation_id: bytes
    """Of brokers that are registered before they run."""
    internal_factors: Mapping[str, int] = {}
    """The replication factor of each internal topic."""


class Election(Enum):
    """The kind of an election, with Kafka's numbers."""

    PREFERRED = 0
    """The preferred leader, the first of the replicas, shall lead."""
    UNCLEAN = 1
    """Any live replica shall lead a partition that has no leader. There is one copy of the data, so
    nothing is lost."""


class ElectLeaders(NamedTuple):
    """Elect the leaders of partitions."""

    election: Election
    partitions: Sequence[TopicPartition]
    only_needed: bool = False
    """Whether partitions that need no election have no outcome, as in an election of all."""


class AlterPartitionReassignments(NamedTuple):
    """Give partitions other replicas."""

    replicas: Mapping[TopicPartition, Sequence[int] | None]
    """None cancels a reassignment that is in progress."""
    allow_replication_factor_change: bool = True


# -- decisions


class Decision(NamedTuple):
    """Records to append as one batch, or an error; `effects.py` derives their effects."""

    records: tuple[MetadataRecord, ...] = ()
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class PartitionOutcome(NamedTuple):
    """The result for one partition of a request about many."""

    partition: TopicPartition
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


def refuse(error: ErrorCode, message: str) -> Decision:
    """Refuse a request: no records, an error and a message for the client."""
    assert error is not ErrorCode.NONE, "a refusal needs a reason"
    return Decision(error=error, message=message)
