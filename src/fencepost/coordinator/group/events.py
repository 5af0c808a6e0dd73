"""The events that groups receive, and the replies.

Events carry all inputs of a decision: a member id that may be handed out, the ticket under which an
answer can wait. Replies are values; the broker's handlers turn them into messages of the client's
version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import ZERO_TOPIC_ID, TopicPartition
from fencepost.coordinator.group.group import Protocols

# -- membership


@dataclass(frozen=True, slots=True)
class Join:
    """JoinGroup. `ticket` is answered by a JoinReply, now or when the generation begins."""

    group_id: str
    ticket: int
    protocol_type: str
    protocols: Protocols
    session_timeout_ms: int
    rebalance_timeout_ms: int
    new_member_id: str
    member_id: str = ""
    group_instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    must_know_its_id: bool = True
    """KIP-394, v4 on: a member without an id receives one and must join again with it."""
    can_skip_assignment: bool = True
    """KIP-814, v9 on: the reply can tell a leader that no assignment is needed."""


class JoinedMember(NamedTuple):
    """A member as the leader receives it."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinReply:
    """The answer to a Join."""

    error: ErrorCode = ErrorCode.NONE
    member_id: str = ""
    generation_id: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


@dataclass(frozen=True, slots=True)
class Sync:
    """SyncGroup.

    `ticket` is answered by a SyncReply, now or when the leader's assignment is in the log.
    """

    group_id: str
    ticket: int
    member_id: str
    generation_id: int
    group_instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: Mapping[str, bytes] = field(default_factory=dict)
    client_address: str = ""


@dataclass(frozen=True, slots=True)
class SyncReply:
    """The answer to a Sync."""

    error: ErrorCode = ErrorCode.NONE
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Heartbeat; answered by an ErrorCode."""

    group_id: str
    member_id: str
    generation_id: int
    group_instance_id: str | None = None
    client_address: str = ""


class Leaver(NamedTuple):
    """A leaving member: its member id, or "" and the instance id of a static member."""

    member_id: str
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class Leave:
    """LeaveGroup; answered by a LeaveReply."""

    group_id: str
    leavers: tuple[Leaver, ...]


@dataclass(frozen=True, slots=True)
class LeaveReply:
    """One error per leaver, in their order."""

    errors: tuple[ErrorCode, ...]


@dataclass(frozen=True, slots=True)
class AssignmentWritten:
    """The assignment of a generation is in the log: waiting members may receive it."""

    group_id: str
    generation_id: int


@dataclass(frozen=True, slots=True)
class AssignmentLost:
    """The assignment of a generation could not be written: its members must join again."""

    group_id: str
    generation_id: int
    error: ErrorCode = ErrorCode.NOT_COORDINATOR


@dataclass(frozen=True, slots=True)
class StaticMemberReplaced:
    """A static member's new id is in the log. `old_leader` is the leader before."""

    join: Join
    old_leader: str


@dataclass(frozen=True, slots=True)
class JoinLost:
    """The records of a join could not be written."""

    join: Join
    error: ErrorCode = ErrorCode.NOT_COORDINATOR


# -- offsets


class OffsetToCommit(NamedTuple):
    """One partition of a commit; its topic is known to exist."""

    partition: TopicPartition
    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    topic_id: bytes = ZERO_TOPIC_ID


@dataclass(frozen=True, slots=True)
class Commit:
    """OffsetCommit and, where `transactional`, TxnOffsetCommit; answered by a CommitReply."""

    group_id: str
    offsets: tuple[OffsetToCommit, ...]
    member_id: str = ""
    generation_id: int = -1
    group_instance_id: str | None = None
    retention_ms: int = -1
    transactional: bool = False
    unknown_group_error: ErrorCode = ErrorCode.ILLEGAL_GENERATION
    """Later versions return GROUP_ID_NOT_FOUND: OffsetCommit v9, TxnOffsetCommit v6."""


@dataclass(frozen=True, slots=True)
class CommitReply:
    """An error of the whole commit, or one per partition in their order."""

    error: ErrorCode = ErrorCode.NONE
    errors: tuple[ErrorCode, ...] = ()


@dataclass(frozen=True, slots=True)
class DeleteOffsets:
    """OffsetDelete; answered by a CommitReply."""

    group_id: str
    partitions: tuple[TopicPartition, ...]
