"""A group coordinator partition without a broker: the log is a list, the clock a number.

It handles decisions as `broker/groups/coordinator.py` does: append, apply, decide the sequel. After
every step it compares the live state with a fold of the log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import TopicPartition
from fencepost.coordinator.group import commit, join, removal, sessions, sync, views
from fencepost.coordinator.group.apply import apply_entry, apply_record, stamped
from fencepost.coordinator.group.coordinator_state import GroupCoordinatorState
from fencepost.coordinator.group.decide import on_sequel
from fencepost.coordinator.group.events import (
    Commit,
    CommitReply,
    DeleteOffsets,
    Heartbeat,
    Join,
    JoinReply,
    Leave,
    Leaver,
    LeaveReply,
    OffsetToCommit,
    Sync,
    SyncReply,
)
from fencepost.coordinator.group.lifecycle import State
from fencepost.coordinator.group.settings import GroupCoordinatorSettings
from fencepost.records.control import Marker
from fencepost.records.entry import Entry
from fencepost.records.group_log import LogRecord, OffsetKey, encode_record

if TYPE_CHECKING:
    from fencepost.coordinator.group.decision import Decision
    from fencepost.coordinator.group.group import Group

GROUP: Final = "billing"
SESSION_MS: Final = 10_000
REBALANCE_MS: Final = 60_000
START_MS: Final = 1_700_000_000_000


def subscription(*topics: str) -> bytes:
    """A consumer's metadata: version 0, topics, no user data."""
    names = b"".join(len(name).to_bytes(2, "big") + name.encode() for name in topics)
    return b"\0\0" + len(topics).to_bytes(4, "big") + names + b"\xff\xff\xff\xff"


RANGE: Final = (("range", subscription("orders")),)
BOTH: Final = (("range", subscription("orders")), ("roundrobin", subscription("orders")))


class GroupStage:
    """One partition of `__consumer_offsets` and its clients."""

    def __init__(self, **settings: Any) -> None:
        settings.setdefault("initial_rebalance_delay_ms", 0)
        self.state = GroupCoordinatorState(GroupCoordinatorSettings(**settings))
        sessions.on_loaded(self.state, START_MS)
        self.log: list[Entry] = []
        self.now_ms = START_MS
        self.replies: dict[int, JoinReply | SyncReply] = {}
        self.disk_is_full = False
        self.failed_appends = 0
        self._next_ticket = 1

    # -- what the shell does

    def run(self, decision: Decision, producer_id: int = -1) -> Any:
        """Append, apply, reply; return the reply, or the error after a failed append."""
        written = self._append(decision.records, producer_id)
        sequel = decision.then if written else decision.otherwise
        answers = decision.answers
        if sequel is not None:
            assert decision.records, "a sequel follows an append"
            self.run(on_sequel(self.state, sequel, self.now_ms))
        for ticket, reply in answers:
            assert ticket not in self.replies, "a request gets one reply"
            self.replies[ticket] = reply
        self.check()
        return decision.reply if written else None

    def _append(self, records: Iterable[LogRecord], producer_id: int = -1) -> bool:
        records = list(records)
        if records and self.disk_is_full:
            self.failed_appends += 1
            return False
        for record in (stamped(each, self.now_ms) for each in records):
            key, value = encode_record(record)
            offset = len(self.log)
            transactional = producer_id >= 0
            self.log.append(Entry(offset, producer_id, 0, transactional, key, value))
            apply_record(self.state, record, offset, producer_id)
        return True

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        """Write a marker to the log."""
        entry = Entry(len(self.log), producer_id, 0, True, None, None, Marker(commit, 0))
        self.log.append(entry)
        apply_entry(self.state, entry)
        self.check()

    def tick(self, milliseconds: int) -> None:
        """Advance the clock, and run every alarm in order."""
        until_ms = self.now_ms + milliseconds
        rounds = 0
        while due := self._next_due(until_ms):
            rounds += 1
            assert rounds < 10_000, "the alarms never stop"
            self.now_ms = max(self.now_ms, due.alarm_ms)
            self.run(sessions.on_tick(self.state, due, self.now_ms))
        self.now_ms = until_ms

    def _next_due(self, until_ms: int) -> Group | None:
        first = min(self.state.groups.values(), key=lambda group: group.alarm_ms, default=None)
        return first if first is not None and first.alarm_ms <= until_ms else None

    # -- the log against the live state

    def fold(self, entries: Iterable[Entry] | None = None) -> GroupCoordinatorState:
        folded = GroupCoordinatorState(self.state.settings)
        for entry in self.log if entries is None else entries:
            apply_entry(folded, entry)
        return folded

    def check(self) -> None:
        """fold(log) == the live state, as far as the log holds it."""
        folded = self.fold()
        assert folded.offsets == self.state.offsets
        assert list(folded.groups) == list(self.state.groups)
        for group_id, group in self.state.groups.items():
            if group.state in (State.STABLE, State.EMPTY):
                assert folded.groups[group_id].value() == group.value()
            check_invariants(group)

    def restart(self) -> None:
        """Move to another coordinator, which has only the log."""
        for ticket, reply in sessions.on_unloaded(self.state, self.now_ms):
            self.replies[ticket] = reply
        self.state = self.fold()
        sessions.on_loaded(self.state, self.now_ms)
        self.check()

    # -- clients

    def join(self, member_id: str = "", **fields: Any) -> int:
        """JoinGroup; return the ticket of its reply."""
        ticket = self._ticket()
        instance = fields.get("group_instance_id")
        event = Join(
            **{
                "group_id": GROUP,
                "ticket": ticket,
                "member_id": member_id,
                "new_member_id": f"{instance or 'client'}-{ticket}",
                "protocol_type": "consumer",
                "protocols": RANGE,
                "session_timeout_ms": SESSION_MS,
                "rebalance_timeout_ms": REBALANCE_MS,
                "client_id": "client",
                "client_host": "/127.0.0.1",
                "must_know_its_id": False,
                **fields,
            }
        )
        self.run(join.on_join(self.state, event, self.now_ms))
        return ticket

    def sync(
        self,
        member_id: str,
        generation_id: int,
        assignments: Mapping[str, bytes] | None = None,
        **fields: Any,
    ) -> int:
        """SyncGroup; return the ticket of its reply."""
        ticket = self._ticket()
        event = Sync(
            **{
                "group_id": GROUP,
                "ticket": ticket,
                "member_id": member_id,
                "generation_id": generation_id,
                "assignments": assignments or {},
                **fields,
            }
        )
        self.run(sync.on_sync(self.state, event, self.now_ms))
        return ticket

    def heartbeat(self, member_id: str, generation_id: int, **fields: Any) -> ErrorCode:
        event = Heartbeat(
            **{"group_id": GROUP, "member_id": member_id, "generation_id": generation_id, **fields}
        )
        error = sessions.on_heartbeat(self.state, event, self.now_ms)
        self.check()
        return error

    def leave(self, *leavers: str | Leaver, group_id: str = GROUP) -> tuple[ErrorCode, ...] | None:
        named = tuple(Leaver(who) if isinstance(who, str) else who for who in leavers)
        decision = sessions.on_leave(self.state, Leave(group_id, named), self.now_ms)
        reply = self.run(decision)
        assert reply is None or isinstance(reply, LeaveReply)
        return reply.errors if reply else None

    def commit(
        self, offsets: Mapping[str, int | OffsetToCommit], producer_id: int = -1, **fields: Any
    ) -> list[ErrorCode] | ErrorCode:
        """OffsetCommit, or TxnOffsetCommit with a producer; keys are like "orders-0"."""
        wanted = tuple(
            value if isinstance(value, OffsetToCommit) else OffsetToCommit(partition(name), value)
            for name, value in offsets.items()
        )
        fields.setdefault("group_id", GROUP)
        event = Commit(offsets=wanted, transactional=producer_id >= 0, **fields)
        decision = commit.decide_commit(self.state, event, self.now_ms)
        reply = self.run(decision, producer_id)
        assert isinstance(reply, CommitReply)
        return reply.error or list(reply.errors)

    def delete_offsets(self, *names: str, group_id: str = GROUP) -> list[ErrorCode] | ErrorCode:
        event = DeleteOffsets(group_id, tuple(partition(name) for name in names))
        reply = self.run(removal.decide_delete_offsets(self.state, event))
        assert isinstance(reply, CommitReply)
        return reply.error or list(reply.errors)

    def delete_group(self, group_id: str = GROUP) -> ErrorCode:
        reply = self.run(removal.decide_delete_group(self.state, group_id))
        assert isinstance(reply, ErrorCode)
        return reply

    def delete_topics(self, *topics: str) -> None:
        self.run(removal.decide_topics_deleted(self.state, topics))

    def expire(self) -> None:
        for group in list(self.state.groups.values()):
            self.run(removal.decide_expiry(self.state, group, self.now_ms))

    def fetch(self, name: str, *, require_stable: bool = False, **fields: Any) -> Any:
        """The committed offset, or the error."""
        key = OffsetKey(fields.pop("group_id", GROUP), partition(name))
        view = views.fetch_offset(self.state, key, require_stable=require_stable, **fields)
        return view.error or view.offset

    # -- views

    @property
    def group(self) -> Group:
        return self.state.groups[GROUP]

    def is_in(self, state: State) -> bool:
        return self.group.state is state

    def joined(self, ticket: int) -> JoinReply:
        reply = self.replies[ticket]
        assert isinstance(reply, JoinReply)
        return reply

    def synced(self, ticket: int) -> SyncReply:
        reply = self.replies[ticket]
        assert isinstance(reply, SyncReply)
        return reply

    def _ticket(self) -> int:
        self._next_ticket += 1
        return self._next_ticket

    # -- whole flows

    def stable(self, count: int, **fields: Any) -> list[str]:
        """Create a stable group of `count` members; return their ids, the leader first."""
        tickets = [self.join(**fields) for _ in range(count)]
        self.tick(self.state.settings.initial_rebalance_delay_ms)
        ids = [self.joined(ticket).member_id for ticket in tickets]
        self.sync_all(ids)
        return ids

    def static(self, *instances: str) -> dict[str, str]:
        """Create a stable group of static members: instance to member id; the first one leads."""
        tickets = {name: self.join(group_instance_id=name) for name in instances}
        self.tick(self.state.settings.initial_rebalance_delay_ms)
        ids = {name: self.joined(ticket).member_id for name, ticket in tickets.items()}
        self.sync_all(list(ids.values()))
        return ids

    def sync_all(self, ids: list[str]) -> None:
        """Every member syncs; the leader, who is in the list, sends all assignments."""
        leader = self.group.leader
        assert leader in ids
        generation = self.group.generation_id
        plan = {member_id: f"for {member_id}".encode() for member_id in ids}
        for member_id in ids:
            self.sync(member_id, generation, plan if member_id == leader else None)


def check_invariants(group: Group) -> None:
    """The invariants of every state."""
    members = group.members.values()
    assert group.awaiting_join_count == sum(m.awaiting_join is not None for m in members)
    assert group.static_members == {
        m.group_instance_id: m.member_id for m in members if m.group_instance_id is not None
    }
    assert all(name == member.member_id for name, member in group.members.items())
    assert group.leader in group.members if group.members else group.leader is None
    assert group.pending_sync.keys() <= group.members.keys()
    assert not set(group.pending_members) & set(group.members)
    supported = Counter(name for m in members for name in {name for name, _ in m.protocols})
    assert group.support == supported
    for member in members:
        assert member.awaiting_join is None or group.state is State.PREPARING_REBALANCE
        assert member.awaiting_sync is None or group.state is State.COMPLETING_REBALANCE
        assert group.alarm_ms <= member.deadline_ms
    assert group.alarm_ms <= min(group.join_deadline_ms, group.sync_deadline_ms)
    if group.state is State.EMPTY:
        assert not group.members


def partition(name: str) -> TopicPartition:
    """ "orders-3" as a topic and an index."""
    topic, _, index = name.rpartition("-")
    return TopicPartition(topic, int(index))
