"""The steps of a rebalance, taken on one group in one turn.

A rebalance goes: *prepare* (everybody is asked to join again), *complete the join* (a generation is
made of those who came), *sync* (the leader's assignment is written and handed out). A `Turn` is one
event being decided: it changes the soft state of its group as it goes and gathers what is to be
written and who is to be answered.

Where Kafka leaves a request without any answer, as when a member asks again while its first request
waits, we answer it with an error: an unanswered request would block its connection.
"""

from __future__ import annotations

from fencepost.base.errors import ErrorCode
from fencepost.coordinator.group.decision import Answer, Decision
from fencepost.coordinator.group.events import JoinedMember, JoinReply, SyncReply
from fencepost.coordinator.group.group import NEVER, Group, Member
from fencepost.coordinator.group.lifecycle import State
from fencepost.coordinator.group.settings import RETRY_MS, Settings


class Turn:
    """One event being decided."""

    __slots__ = ("decision", "group", "now_ms", "settings")

    def __init__(self, group: Group, settings: Settings, now_ms: int) -> None:
        self.group = group
        self.settings = settings
        self.now_ms = now_ms
        self.decision = Decision()

    # -- answering --------------------------------------------------------------------------------

    def answer(self, ticket: int | None, reply: JoinReply | SyncReply) -> None:
        """Answers whoever waits under the ticket; without one nobody does."""
        if ticket is not None:
            self.decision.answers.append(Answer(ticket, reply))

    def park_join(self, member: Member, ticket: int) -> None:
        older = self.group.park_join(member, ticket)
        self.answer(older, JoinReply(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))

    def park_sync(self, member: Member, ticket: int) -> None:
        self.answer(member.awaiting_sync, SyncReply(ErrorCode.REBALANCE_IN_PROGRESS))
        member.awaiting_sync = ticket

    def touch(self, member: Member) -> None:
        self.group.touch(member, member.session_timeout_ms, self.now_ms)

    def remove(self, member: Member) -> None:
        """Takes a member out; what it waits for will not come."""
        unknown = ErrorCode.UNKNOWN_MEMBER_ID
        self.answer(self.group.unpark_join(member), JoinReply(unknown))
        self.answer(member.awaiting_sync, SyncReply(unknown))
        member.awaiting_sync = None
        self.group.remove(member.member_id)

    def fence(self, member: Member) -> None:
        """Another process took over the instance of this member."""
        fenced = ErrorCode.FENCED_INSTANCE_ID
        self.answer(self.group.unpark_join(member), JoinReply(fenced, member.member_id))
        self.answer(member.awaiting_sync, SyncReply(fenced))
        member.awaiting_sync = None

    # -- preparing --------------------------------------------------------------------------------

    def rebalance_or_complete(self) -> None:
        """Something about the members has changed."""
        if self.group.can_rebalance:
            self.prepare()
        else:
            self.complete_if_all_joined()

    def prepare(self) -> None:
        """Asks every member to join again."""
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
        """This generation will have no assignment."""
        for member in self.group.members.values():
            member.assignment = b""
            if member.awaiting_sync is not None:
                self.answer(member.awaiting_sync, SyncReply(error))
                member.awaiting_sync = None
                self.touch(member)

    def _gather(self) -> None:
        """The group was empty: gives the other members of a starting application time to come."""
        group = self.group
        delay_ms = self.settings.initial_rebalance_delay_ms
        group.new_member_added = False
        group.initial_delay_ms = delay_ms
        group.initial_remaining_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
        self._wait_for_joins(delay_ms)

    def gather_on_or_complete(self) -> None:
        """The time to gather is over, unless more members came and there is some left."""
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

    # -- completing -------------------------------------------------------------------------------

    def complete_if_all_joined(self) -> None:
        """Ends the join phase early; the first one of an empty group takes its time."""
        group = self.group
        if (
            group.state is State.PREPARING_REBALANCE
            and not group.is_initial_rebalance
            and group.has_all_members_joined
        ):
            self.complete()

    def complete(self) -> None:
        """Makes the next generation of those who have joined, and of static members, who are trusted to come."""
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
            # Only static members are left and none has come. Their sessions will end, or they come.
            self._wait_for_joins(max(group.rebalance_timeout_ms, RETRY_MS))

    def _elect_leader(self) -> bool:
        """The leader must be one who has joined: only who gets an answer can assign."""
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
            state_timestamp_ms=self.now_ms,
        )
        self.decision.records.append(group.record(value))
        # The record makes the group empty. Should it not be written, we try again.
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
    """The generation as a member is told it; only the leader learns of the others."""
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
    return tuple(
        JoinedMember(
            member.member_id, member.group_instance_id, member.metadata(group.protocol_name)
        )
        for member in group.members.values()
    )
