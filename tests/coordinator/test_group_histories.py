"""Random histories of clients, clocks, disks and coordinators: the rules hold.

`GroupStage` compares the live state with a fold of the log after every step and checks each group's
invariants. The tests here also check that a compacted log leads to the same state, and that no
request waits forever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st

from fencepost.base.limits import NEW_MEMBER_JOIN_TIMEOUT_MS
from fencepost.coordinator.group.events import JoinReply, Leaver
from fencepost.coordinator.group.lifecycle import State
from tests.coordinator.group.stage import BOTH, GROUP, RANGE, GroupStage
from tests.halves import examples

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fencepost.coordinator.group.coordinator_state import GroupCoordinatorState
    from fencepost.records.entry import Entry

PROTOCOLS = (RANGE, BOTH, (BOTH[1], BOTH[0]), (BOTH[1],))
PRODUCERS = (4000, 4001)
GROUPS = (GROUP, "other")

small = st.integers(0, 5)
Step = tuple[str, int, int, int]

MEMBERSHIP = (
    "join",
    "join",
    "rejoin",
    "everybody_joins",
    "everybody_syncs",
    "everybody_syncs",
    "sync",
    "heartbeat",
    "leave",
    "tick",
    "tick",
)
OFFSETS = ("commit", "commit", "transact", "transact", "end", "end", "delete", "expire")
TROUBLE = ("disk", "restart", "clock")


def histories(*names: str) -> st.SearchStrategy[list[Step]]:
    steps = st.tuples(st.sampled_from(names), small, small, small)
    return st.lists(steps, min_size=10, max_size=50)


class GroupHistory:
    """Steps by number, so that hypothesis can shrink them."""

    def __init__(self) -> None:
        self.stage = GroupStage(
            initial_rebalance_delay_ms=1_000, max_size=4, offsets_retention_ms=30_000
        )
        self.tickets: list[int] = []

    def take(self, step: Step) -> None:
        name, a, b, c = step
        getattr(self, name)(a, b, c)

    def _member(self, a: int) -> tuple[str, str | None]:
        members = list(self.stage.group.members.values()) if self._exists() else []
        if not members:
            return "stranger", None
        member = members[a % len(members)]
        return member.member_id, member.group_instance_id

    def _generation(self, c: int) -> int:
        group = self.stage.state.groups.get(GROUP)
        return (group.generation_id if group else 0) - (c == 5)

    def join(self, a: int, b: int, c: int) -> None:
        instance = {0: "x", 1: "y"}.get(a)
        ticket = self.stage.join(
            group_instance_id=instance,
            must_know_its_id=b > 2,
            can_skip_assignment=b % 2 == 0,
            protocols=PROTOCOLS[c % len(PROTOCOLS)],
        )
        self.tickets.append(ticket)
        reply = self.stage.replies.get(ticket)
        if b == 5 and isinstance(reply, JoinReply) and reply.error == 79:
            self.tickets.append(self.stage.join(reply.member_id))

    def rejoin(self, a: int, b: int, c: int) -> None:
        member_id, instance = self._member(a)
        protocols = PROTOCOLS[b % len(PROTOCOLS)]
        ticket = self.stage.join(member_id, group_instance_id=instance, protocols=protocols)
        self.tickets.append(ticket)

    def everybody_joins(self, a: int, b: int, c: int) -> None:
        for member in list(self.stage.group.members.values()) if self._exists() else []:
            if member.member_id in self.stage.group.members:
                instance = member.group_instance_id
                self.tickets.append(self.stage.join(member.member_id, group_instance_id=instance))
        self.stage.tick(1_000)

    def everybody_syncs(self, a: int, b: int, c: int) -> None:
        """All but one in six send SyncGroup, the leader first or last."""
        if not self._exists():
            return
        group = self.stage.group
        order = sorted(group.members, key=lambda name: (name == group.leader) == (a > 2))
        for index, member_id in enumerate(order):
            if index != b:
                plan = {name: bytes([c]) for name in order}
                self.tickets.append(self.stage.sync(member_id, group.generation_id, plan))

    def _exists(self) -> bool:
        return GROUP in self.stage.state.groups

    def sync(self, a: int, b: int, c: int) -> None:
        member_id, instance = self._member(a)
        plan = {member_id: bytes([b])}
        ticket = self.stage.sync(
            member_id, self._generation(c), plan, group_instance_id=instance if b else None
        )
        self.tickets.append(ticket)

    def heartbeat(self, a: int, b: int, c: int) -> None:
        member_id, _ = self._member(a)
        self.stage.heartbeat(member_id, self._generation(c))

    def leave(self, a: int, b: int, c: int) -> None:
        member_id, instance = self._member(a)
        self.stage.leave(Leaver("" if b == 0 else member_id, instance))

    def tick(self, a: int, b: int, c: int) -> None:
        self.stage.tick((0, 999, 1_000, 5_000, 11_000, 61_000)[a])

    def commit(self, a: int, b: int, c: int) -> None:
        if b == 0:
            member_id, _ = self._member(a)
            fields: dict[str, Any] = {"member_id": member_id, "generation_id": self._generation(c)}
        else:
            fields = {"group_id": GROUPS[b % 2]}
        if not self.stage.disk_is_full:
            self.stage.commit({f"orders-{a % 3}": b * 10 + c}, **fields)

    def transact(self, a: int, b: int, c: int) -> None:
        if not self.stage.disk_is_full:
            producer = PRODUCERS[b % 2]
            self.stage.commit({f"orders-{a % 3}": c}, producer, group_id=GROUPS[c % 2])

    def end(self, a: int, b: int, c: int) -> None:
        self.stage.end_transaction(PRODUCERS[a % 2], commit=b % 2 == 0)

    def delete(self, a: int, b: int, c: int) -> None:
        if self.stage.disk_is_full:
            return
        if a == 0:
            self.stage.delete_group(GROUPS[b % 2])
        elif a == 1:
            self.stage.delete_topics("orders")
        else:
            self.stage.delete_offsets(f"orders-{b % 3}", group_id=GROUPS[c % 2])

    def expire(self, a: int, b: int, c: int) -> None:
        self.stage.expire()

    def disk(self, a: int, b: int, c: int) -> None:
        self.stage.disk_is_full = a == 0

    def restart(self, a: int, b: int, c: int) -> None:
        self.stage.restart()

    def clock(self, a: int, b: int, c: int) -> None:
        self.stage.now_ms += (a - 3) * 700


def play(history: list[Step]) -> GroupHistory:
    player = GroupHistory()
    for step in history:
        player.take(step)
    return player


@settings(max_examples=examples(150))
@given(histories(*OFFSETS, "restart"))
def test_offsets_match_the_log_before_and_after_compaction(history: list[Step]) -> None:
    stage = play(history).stage
    assert summary(stage.fold(compacted(stage.log))) == summary(stage.fold())


@settings(max_examples=examples(200))
@given(histories(*MEMBERSHIP, *MEMBERSHIP, *OFFSETS, *TROUBLE))
def test_groups_match_the_log_before_and_after_compaction(history: list[Step]) -> None:
    stage = play(history).stage
    assert summary(stage.fold(compacted(stage.log))) == summary(stage.fold())


@settings(max_examples=examples(200))
@given(histories(*MEMBERSHIP, *TROUBLE))
def test_no_request_waits_forever(history: list[Step]) -> None:
    player = play(history)
    stage = player.stage
    stage.disk_is_full = False
    stage.tick(2 * NEW_MEMBER_JOIN_TIMEOUT_MS)
    assert set(player.tickets) <= set(stage.replies)
    assert {group.state for group in stage.state.groups.values()} <= {State.EMPTY}


@settings(max_examples=examples(100))
@given(histories(*MEMBERSHIP))
def test_a_group_whose_members_join_and_sync_in_time_becomes_stable(history: list[Step]) -> None:
    """After any history: when all join and sync in time, all have an assignment."""
    stage = play(history).stage
    stage.tick(2 * NEW_MEMBER_JOIN_TIMEOUT_MS)
    joins = [stage.join() for _ in range(3)]
    stage.tick(10_000)
    ids = [stage.joined(ticket).member_id for ticket in joins]
    stage.sync_all(ids)
    assert stage.is_in(State.STABLE)
    assert [stage.group.members[name].assignment for name in ids] == [
        f"for {name}".encode() for name in ids
    ]


def compacted(log: list[Entry]) -> Iterable[Entry]:
    """The log after compaction: the last record of each key, without aborted ones.

    Records from the first open transaction on are kept.
    """
    outcomes, open_since = read_outcomes(log)
    stable = min(open_since.values(), default=len(log))
    survivors = [e for e in log[:stable] if e.marker or not is_aborted(e, outcomes)]
    last = {e.key: e.offset for e in survivors if e.key is not None}
    return [e for e in survivors if e.key is None or last[e.key] == e.offset] + log[stable:]


def read_outcomes(log: list[Entry]) -> tuple[dict[int, bool], dict[int, int]]:
    """Whether each transactional record was committed, and where open transactions began."""
    outcomes: dict[int, bool] = {}
    began: dict[int, list[int]] = {}
    for entry in log:
        if entry.marker is not None:
            for offset in began.pop(entry.producer_id, []):
                outcomes[offset] = entry.marker.commit
        elif entry.transactional:
            began.setdefault(entry.producer_id, []).append(entry.offset)
    return outcomes, {producer: offsets[0] for producer, offsets in began.items()}


def is_aborted(entry: Entry, outcomes: dict[int, bool]) -> bool:
    return entry.transactional and not outcomes[entry.offset]


def summary(state: GroupCoordinatorState) -> object:
    """All facts of a state; a simple group without offsets has none."""
    offsets = state.offsets
    groups = {
        group_id: group.value()
        for group_id, group in state.groups.items()
        if group.state_timestamp_ms >= 0
        or group_id in offsets.committed
        or group_id in offsets.writers
    }
    return offsets, groups
