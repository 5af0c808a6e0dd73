"""The steps of a rebalance, taken on one group for one event.

A rebalance has three steps: *prepare* (every member must join again), *complete the join* (the
members that came form a generation), *sync* (the leader's assignment is written and distributed). A
`Turn` decides one event: it changes the soft state of its group and collects the records to write
and the requests to answer.

Kafka leaves some requests without an answer, for example when a member sends a second request while
its first one waits. We answer those with an error, because an unanswered request would block its
connection.
"""

from __future__ import annotations

from fencepost.base.errors import ErrorCode
from fencepost.coordinator.group.decision import Answer, Decision
from fencepost.coordinator.group.events import JoinedMember, JoinReply, SyncReply
from fencepost.coordinator.group.group import NEVER, WHEN_WRITTEN, Group, Member
from fencepost.coordinator.group.lifecycle import State
from fencepost.coordinator.group.settings import RETRY_MS, GroupCoordinatorSettings


class Turn:
    """Decides one event of one group."""

    __slots__ = ("decision", "group", "now_ms", "settings")

    def __init__(self, group: Group, settings: GroupCoordinatorSettings, now_ms: int) -> None:
        self.group = group
        self.settings = settings
        self.now_ms = now_ms
        self.decision = Decision()

    # -- answering

    def answer(self, ticket: int | None, reply: JoinReply | SyncReply) -> None:
        """Answer the request that waits under the ticket, if there is one."""
        if ticket is not None:
            self.decision.answers.append(Answer(ticket, reply))

    def park_join(self, member: Member, ticket: int) -> None:
        """Let a join wait for the next generation; an older join of the member is answered."""
        older = self.group.park_join(member, ticket)
        self.answer(older, JoinReply(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))

    def park_sync(self, member: Member, ticket: int) -> None:
        """Let a sync wait for the assignment; an older sync of the member is answered."""
        self.answer(member.awaiting_sync, SyncReply(ErrorCode.REBALANCE_IN_PROGRESS))
        member.awaiting_sync = ticket

    def touch(self, member: Member) -> None:
        """Restart the session of a member."""
        self.group.touch(member, member.session_timeout_ms, self.now_ms)

    def remove(self, member: Member) -> None:
        """Remove a member and answer its waiting requests."""
        unknown = ErrorCode.UNKNOWN_MEMBER_ID
        self.answer(self.group.unpark_join(member), JoinReply(unknown))
        self.answer(member.awaiting_sync, SyncReply(unknown))
        member.awaiting_sync = None
        self.group.remove(member.member_id)

    def fence(self, member: Member) -> None:
        """Answer the waiting requests of a member whose instance id another process now uses."""
        fenced = ErrorCode.FENCED_INSTANCE_ID
        self.answer(self.group.unpark_join(member), JoinReply(fenced, member.member_id))
        self.answer(member.awaiting_sync, SyncReply(fenced))
        member.awaiting_sync = None

    # -- preparing

    def rebalance_or_complete(self) -> None:
        """React to a change of the members."""
        if self.group.can_rebalance:
            self.prepare()
        else:
            self.complete_if_all_joined()

    def prepare(self) -> None:
        """Start a rebalance: every member must join again."""
        group = self.group
        if group.state is State.COMPLETING_REBALANCE:
            self.refuse_syncs(ErrorCode.REBALANCE_IN_PROGRESS)
        group.pending_sync.clear()
        group.sync_deadline_ms = NEVER
        was_empty = group.state is State.EMPTY
        group.become(State.PREPARING_REBALANCE, self.now_ms)
        if was_empty:
            self._gather()
        elif group.has_all_members_joined:
            self.complete()
        else:
            self._wait_for_joins(group.rebalance_timeout_ms)

    def refuse_syncs(self, error: ErrorCode) -> None:
        """Answer waiting syncs: this generation gets no assignment."""
        for member in self.group.members.values():
            member.assignment = b""
            if member.awaiting_sync is not None:
                self.answer(member.awaiting_sync, SyncReply(error))
                member.awaiting_sync = None
                self.touch(member)

    def _gather(self) -> None:
        """Wait for the other members of a starting application; the group was empty."""
        group = self.group
        delay_ms = self.settings.initial_rebalance_delay_ms
        group.new_member_added = False
        group.initial_delay_ms = delay_ms
        group.initial_remaining_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
        self._wait_for_joins(delay_ms)

    def gather_on_or_complete(self) -> None:
        """End the initial delay, or extend it if more members came and time is left."""
        group = self.group
        if not group.new_member_added or group.initial_remaining_ms == 0:
            self.complete()
            return
        group.new_member_added = False
        previous_delay_ms = group.initial_delay_ms
        remaining_ms = group.initial_remaining_ms
        group.initial_delay_ms = min(self.settings.initial_rebalance_delay_ms, remaining_ms)
        group.initial_remaining_ms = max(remaining_ms - previous_delay_ms, 0)
        self._wait_for_joins(group.initial_delay_ms)

    def _wait_for_joins(self, delay_ms: int) -> None:
        self.group.join_deadline_ms = self.group.arm(self.now_ms + delay_ms)

    # -- completing

    def complete_if_all_joined(self) -> None:
        """End the join phase early, except the initial one of an empty group."""
        group = self.group
        if (
            group.state is State.PREPARING_REBALANCE
            and not group.is_initial_rebalance
            and group.has_all_members_joined
        ):
            self.complete()

    def complete(self) -> None:
        """Form the next generation from the members that joined and all static members."""
        group = self.group
        group.join_deadline_ms = NEVER
        for member in tuple(group.members.values()):
            if member.awaiting_join is None and not member.is_static:
                self.remove(member)
        if not group.members:
            self._become_empty()
        elif self._elect_leader():
            self._begin_generation()
        else:
            # Only static members are left and none has joined. They join, or their sessions expire.
            self._wait_for_joins(max(group.rebalance_timeout_ms, RETRY_MS))

    def _elect_leader(self) -> bool:
        """Make sure that the leader has joined: only a member that gets an answer can assign."""
        group = self.group
        assert group.leader is not None, f"{group} has members and no leader"
        if group.members[group.leader].awaiting_join is not None:
            return True
        joined = (m.member_id for m in group.members.values() if m.awaiting_join is not None)
        found = next(joined, None)
        group.leader = found or group.leader
        return found is not None

    def _become_empty(self) -> None:
        group = self.group
        value = group.value()._replace(
            generation_id=group.generation_id + 1,
            protocol_name=None,
            leader=None,
            state_timestamp_ms=WHEN_WRITTEN,
        )
        self.decision.records.append(group.record(value))
        # Applying the record makes the group empty. If it cannot be written, we retry.
        self._wait_for_joins(RETRY_MS)

    def _begin_generation(self) -> None:
        group = self.group
        group.generation_id += 1
        group.protocol_name = group.select_protocol()
        group.learn_topics()
        group.become(State.COMPLETING_REBALANCE, self.now_ms)
        group.pending_sync = dict.fromkeys(group.members)
        for member in group.members.values():
            self.answer(group.unpark_join(member), joined_reply(group, member))
            member.is_new = False
            self.touch(member)
        group.sync_deadline_ms = group.arm(self.now_ms + group.rebalance_timeout_ms)


def joined_reply(group: Group, member: Member, *, skip_assignment: bool = False) -> JoinReply:
    """The JoinGroup reply for a member; only the leader's lists the members."""
    is_leader = group.leader == member.member_id
    return JoinReply(
        member_id=member.member_id,
        generation_id=group.generation_id,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader=group.leader or "",
        skip_assignment=skip_assignment and is_leader,
        members=joined_members(group) if is_leader else (),
    )


def joined_members(group: Group) -> tuple[JoinedMember, ...]:
    """The members of a generation, as the leader receives them."""
    return tuple(
        JoinedMember(
            member.member_id, member.group_instance_id, member.metadata(group.protocol_name)
        )
        for member in group.members.values()
    )
