"""A group and its members, and the rules that every change must keep.

A group holds three kinds of state. The generation with its members and assignments is in the log
(`value`, `from_value`, `install`). A request that waits for an answer is a *ticket*, a number that
has a meaning for the broker only. Deadlines end sessions, the join phase and the sync phase. There
are no timers here: `alarm_ms` is the earliest time at which something could be due, and the broker
calls `on_tick` then. An alarm may come too early, because a heartbeat moves its deadline without
moving the alarm; it never comes too late.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import java_string_hash
from fencepost.coordinator.group.lifecycle import TRANSITIONS, State
from fencepost.coordinator.group.subscription import CONSUMER_PROTOCOL_TYPE, read_topics
from fencepost.records.group_log import GroupKey, GroupRecord, GroupValue, MemberValue

NEVER: Final = 1 << 62
"""A deadline that never comes."""

WHEN_WRITTEN: Final = -2
"""A state timestamp that is set when its record is written: decisions know the steady time only,
which stands still while the machine is suspended, and offsets expire by the broker's clock."""

Protocols = tuple[tuple[str, bytes], ...]
"""Names and metadata of the protocols that a member supports, the preferred one first."""


class Member:
    """One member of a group."""

    __slots__ = (
        "assignment",
        "awaiting_join",
        "awaiting_sync",
        "client_address",
        "client_host",
        "client_id",
        "deadline_ms",
        "group_instance_id",
        "is_new",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "session_timeout_ms",
    )

    def __init__(
        self,
        member_id: str,
        group_instance_id: str | None,
        client_id: str,
        client_host: str,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        protocols: Protocols,
        assignment: bytes = b"",
    ) -> None:
        self.member_id = member_id
        self.group_instance_id = group_instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.session_timeout_ms = session_timeout_ms
        self.protocols = protocols
        self.assignment = assignment
        self.awaiting_join: int | None = None
        self.awaiting_sync: int | None = None
        self.is_new = False
        self.deadline_ms = NEVER
        self.client_address = ""
        """Where it was last heard from, host and port; empty if not since the log was loaded."""

    def __repr__(self) -> str:
        waits = "join" if self.awaiting_join else "sync" if self.awaiting_sync else "nothing"
        return f"Member({self.member_id}, instance {self.group_instance_id}, waits for {waits})"

    @property
    def is_static(self) -> bool:
        """Whether the member has a group instance id (KIP-345)."""
        return self.group_instance_id is not None

    @property
    def is_satisfied(self) -> bool:
        """Whether the member may be silent: while it waits for our answer it sends no heartbeats.

        A member that has never been in a generation is not exempt: its client may be gone, and an
        abandoned join must not hold a place forever.
        """
        if self.is_new:
            return False
        return self.awaiting_join is not None or self.awaiting_sync is not None

    def metadata(self, protocol_name: str | None) -> bytes:
        """The member's metadata for that protocol."""
        return next(data for name, data in self.protocols if name == protocol_name)

    def value(self, protocol_name: str | None) -> MemberValue:
        """The member as the log holds it."""
        return MemberValue(
            self.member_id,
            self.group_instance_id,
            self.client_id,
            self.client_host,
            self.rebalance_timeout_ms,
            self.session_timeout_ms,
            self.metadata(protocol_name),
            self.assignment,
        )


class Group:
    """One classic group."""

    __slots__ = (
        "alarm_ms",
        "awaiting_join_count",
        "generation_id",
        "group_id",
        "initial_delay_ms",
        "initial_remaining_ms",
        "join_deadline_ms",
        "leader",
        "logged",
        "members",
        "new_member_added",
        "pending_members",
        "pending_sync",
        "previous_state",
        "protocol_name",
        "protocol_type",
        "state",
        "state_timestamp_ms",
        "static_members",
        "subscribed_topics",
        "support",
        "sync_deadline_ms",
    )

    def __init__(self, group_id: str, now_ms: int) -> None:
        self.group_id = group_id
        self.state = State.EMPTY
        self.previous_state = State.DEAD
        self.state_timestamp_ms = now_ms
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.generation_id = 0
        self.leader: str | None = None
        self.logged: GroupValue | None = None
        """The last value in the log; None for a group that is only known by its offsets."""
        self.members: dict[str, Member] = {}
        self.static_members: dict[str, str] = {}
        """Group instance id to member id (KIP-345)."""
        self.pending_members: dict[str, int] = {}
        """Member ids that were handed out (KIP-394) and have not joined yet, each with its
        deadline."""
        self.pending_sync: dict[str, None] = {}
        """Members of this generation that have not requested their assignment yet, in order."""
        self.subscribed_topics: frozenset[str] | None = None
        self.support: dict[str, int] = {}
        """The number of members that support each protocol."""
        self.awaiting_join_count = 0
        self.new_member_added = False
        self.join_deadline_ms = NEVER
        self.sync_deadline_ms = NEVER
        self.initial_delay_ms = 0
        self.initial_remaining_ms = 0
        self.alarm_ms = NEVER

    def __repr__(self) -> str:
        return (
            f"Group({self.group_id}, {self.state.value}, generation {self.generation_id}, "
            f"{len(self.members)} members)"
        )

    # -- the log

    @classmethod
    def from_value(cls, group_id: str, value: GroupValue) -> Group:
        """The group as a record describes it."""
        group = cls(group_id, value.state_timestamp_ms)
        group.state = State.STABLE if value.members else State.EMPTY
        group.generation_id = value.generation_id
        group.protocol_type = value.protocol_type
        group.protocol_name = value.protocol_name
        for member in value.members:
            group.add(_member_from(member, value.protocol_name), value.protocol_type)
        group.leader = value.leader
        group.learn_topics()
        return group

    def value(self) -> GroupValue:
        """The group as a log value."""
        return GroupValue(
            self.protocol_type,
            self.generation_id,
            self.protocol_name,
            self.leader,
            self.state_timestamp_ms,
            tuple(member.value(self.protocol_name) for member in self.members.values()),
        )

    def record(self, value: GroupValue) -> GroupRecord:
        """The log record with this value."""
        return GroupRecord(GroupKey(self.group_id), value)

    def install(self, value: GroupValue) -> None:
        """Take over a value that was just written for this live group; waiting requests stay."""
        state = State.STABLE if value.members else State.EMPTY
        if state is not self.state:
            self.become(state, value.state_timestamp_ms)
            self.join_deadline_ms = NEVER
        self.generation_id = value.generation_id
        self.protocol_name = value.protocol_name
        for written in value.members:
            if written.group_instance_id is not None:
                self._rename(written.group_instance_id, written.member_id)
            self._install_member(self.members[written.member_id], written)
        self.leader = value.leader
        assert len(self.members) == len(value.members), f"{self} was written with other members"
        self.learn_topics()

    def _install_member(self, member: Member, written: MemberValue) -> None:
        member.assignment = written.assignment
        member.rebalance_timeout_ms = written.rebalance_timeout_ms
        member.session_timeout_ms = written.session_timeout_ms
        if member.metadata(self.protocol_name) != written.subscription:
            assert self.protocol_name is not None
            self.replace_protocols(member, ((self.protocol_name, written.subscription),))

    # -- states

    def become(self, state: State, now_ms: int) -> None:
        """Change the state; nothing else does."""
        assert state in TRANSITIONS[self.state], f"{self} cannot become {state.value}"
        self.previous_state = self.state
        self.state = state
        self.state_timestamp_ms = now_ms

    @property
    def can_rebalance(self) -> bool:
        """Whether a rebalance can start in this state."""
        return State.PREPARING_REBALANCE in TRANSITIONS[self.state]

    @property
    def is_initial_rebalance(self) -> bool:
        """Whether an empty group waits for its first members (group.initial.rebalance.delay.ms)."""
        return self.state is State.PREPARING_REBALANCE and self.previous_state is State.EMPTY

    # -- members

    def add(self, member: Member, protocol_type: str | None) -> None:
        """Add a member; the first one becomes leader and sets the protocol type."""
        assert member.member_id not in self.members, f"{member} is in {self} already"
        if member.group_instance_id is not None:
            assert member.group_instance_id not in self.static_members, f"{member} is in {self}"
            self.static_members[member.group_instance_id] = member.member_id
        if not self.members:
            self.protocol_type = protocol_type
        assert self.protocol_type == protocol_type, f"{member} of type {protocol_type} in {self}"
        self.leader = self.leader or member.member_id
        self.members[member.member_id] = member
        self._count_support(member.protocols, 1)
        self.pending_members.pop(member.member_id, None)

    def remove(self, member_id: str) -> None:
        """Forget a member, or an id that was handed out; its waiting requests are answered."""
        self.pending_members.pop(member_id, None)
        self.pending_sync.pop(member_id, None)
        member = self.members.pop(member_id, None)
        if member is None:
            return
        assert member.awaiting_join is None, f"{member} leaves {self} without an answer"
        assert member.awaiting_sync is None, f"{member} leaves {self} without an answer"
        self._count_support(member.protocols, -1)
        if member.group_instance_id is not None:
            del self.static_members[member.group_instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)

    def _rename(self, group_instance_id: str, new_member_id: str) -> None:
        old_member_id = self.static_members[group_instance_id]
        if old_member_id != new_member_id:
            self.replace_static(group_instance_id, new_member_id)

    def replace_static(self, group_instance_id: str, new_member_id: str) -> Member:
        """Give a restarted static member a new id; it keeps its assignment."""
        old_member_id = self.static_members[group_instance_id]
        # The order of members is kept, so that live and loaded groups list them alike.
        self.members = {
            new_member_id if member_id == old_member_id else member_id: member
            for member_id, member in self.members.items()
        }
        member = self.members[new_member_id]
        member.member_id = new_member_id
        self.static_members[group_instance_id] = new_member_id
        self.pending_sync.pop(old_member_id, None)
        if self.leader == old_member_id:
            self.leader = new_member_id
        return member

    def replace_protocols(self, member: Member, protocols: Protocols) -> None:
        """Replace the protocols that a member supports."""
        self._count_support(member.protocols, -1)
        member.protocols = protocols
        self._count_support(protocols, 1)

    def _count_support(self, protocols: Protocols, change: int) -> None:
        # As a set, because a client may name a protocol twice, and it must count once.
        for name in {name for name, _ in protocols}:
            count = self.support.get(name, 0) + change
            if count:
                self.support[name] = count
            else:
                del self.support[name]

    def park_join(self, member: Member, ticket: int) -> int | None:
        """Let a join wait for the next generation; return the ticket of the member's older join."""
        older = member.awaiting_join
        if older is None:
            self.awaiting_join_count += 1
        member.awaiting_join = ticket
        return older

    def unpark_join(self, member: Member) -> int | None:
        """Take the ticket of a waiting join, if there is one."""
        ticket = member.awaiting_join
        if ticket is not None:
            member.awaiting_join = None
            self.awaiting_join_count -= 1
        return ticket

    @property
    def has_all_members_joined(self) -> bool:
        """Whether no member, and no id that was handed out, is missing from the join phase."""
        return len(self.members) == self.awaiting_join_count and not self.pending_members

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of any member."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def refuse_member(self, member_id: str, group_instance_id: str | None) -> ErrorCode | None:
        """The error for a request that names this member; None if it is a member."""
        if group_instance_id is not None:
            existing = self.static_members.get(group_instance_id)
            if existing is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if existing != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return None if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    # -- protocols

    def supports(self, protocol_type: str, names: Iterable[str]) -> bool:
        """Whether a member with these protocols could join the group."""
        if self.state is State.EMPTY:
            return bool(protocol_type) and any(True for _ in names)
        size = len(self.members)
        return self.protocol_type == protocol_type and any(
            self.support.get(name, 0) == size for name in names
        )

    def select_protocol(self) -> str:
        """The protocol of the next generation: each member votes for its first shared one."""
        size = len(self.members)
        votes: Counter[str] = Counter()
        for member in self.members.values():
            votes[next(name for name, _ in member.protocols if self.support[name] == size)] += 1
        # Kafka breaks ties by the order of a Java hash table; any choice would do.
        return min(votes, key=lambda name: (-votes[name], _java_bucket(name)))

    def learn_topics(self) -> None:
        """Read the topics that the members of this generation subscribe to."""
        self.subscribed_topics = self._read_topics()

    def _read_topics(self) -> frozenset[str] | None:
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return None
        topics: set[str] = set()
        for member in self.members.values():
            found = read_topics(member.metadata(self.protocol_name))
            if found is None:
                return None
            topics |= found
        return frozenset(topics)

    def is_subscribed(self, topic: str) -> bool:
        """Whether a member may read the topic; True for a consumer group with unknown topics."""
        if self.subscribed_topics is None:
            return self.protocol_type == CONSUMER_PROTOCOL_TYPE
        return topic in self.subscribed_topics

    # -- deadlines

    def arm(self, deadline_ms: int) -> int:
        """Make sure that the alarm is not later than this deadline."""
        self.alarm_ms = min(self.alarm_ms, deadline_ms)
        return deadline_ms

    def touch(self, member: Member, timeout_ms: int, now_ms: int) -> None:
        """Restart the session of a member."""
        member.deadline_ms = self.arm(now_ms + timeout_ms)

    def rearm(self) -> None:
        """Set the alarm to the next deadline exactly."""
        self.alarm_ms = min(
            self.join_deadline_ms,
            self.sync_deadline_ms,
            min(self.pending_members.values(), default=NEVER),
            min((member.deadline_ms for member in self.members.values()), default=NEVER),
        )


def _java_bucket(name: str) -> int:
    value = java_string_hash(name)
    return (value ^ (value & 0xFFFFFFFF) >> 16) & 15


def _member_from(written: MemberValue, protocol_name: str | None) -> Member:
    # The log has the metadata of the selected protocol only. A member that joins again with all of
    # its protocols looks changed, which costs one rebalance, as in Kafka.
    assert protocol_name is not None, f"{written.member_id} is in a group without a protocol"
    return Member(
        written.member_id,
        written.group_instance_id,
        written.client_id,
        written.client_host,
        written.rebalance_timeout_ms,
        written.session_timeout_ms,
        ((protocol_name, written.subscription),),
        written.assignment,
    )
