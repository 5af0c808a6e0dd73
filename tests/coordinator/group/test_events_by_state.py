"""Every request in every state: the full product, with Kafka's errors.

A row is a request, a column is the state of the group. The groups have two members, M1 (the leader)
and M2, at generation 1 (2 during a second rebalance).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.coordinator.group.lifecycle import State
from tests.coordinator.group.stage import BOTH, GROUP, RANGE, GroupStage

if TYPE_CHECKING:
    from collections.abc import Callable

NONE = ErrorCode.NONE
WAITS = "waits"
ABSENT = "absent"

States = State | str
Scene = tuple[GroupStage, str, str]


def absent() -> Scene:
    return GroupStage(), "M1", "M2"


def empty() -> Scene:
    stage = GroupStage()
    stage.leave(*stage.stable(2))
    return stage, "M1", "M2"


def stable() -> Scene:
    stage = GroupStage()
    leader, follower = stage.stable(2)
    return stage, leader, follower


def preparing() -> Scene:
    stage, leader, follower = stable()
    stage.join()
    return stage, leader, follower


def completing() -> Scene:
    stage = GroupStage()
    tickets = [stage.join(), stage.join()]
    stage.tick(0)
    return stage, stage.joined(tickets[0]).member_id, stage.joined(tickets[1]).member_id


SCENES: dict[States, Callable[[], Scene]] = {
    ABSENT: absent,
    State.EMPTY: empty,
    State.PREPARING_REBALANCE: preparing,
    State.COMPLETING_REBALANCE: completing,
    State.STABLE: stable,
}


def joins(stage: GroupStage, ticket: int) -> object:
    return stage.joined(ticket).error if ticket in stage.replies else WAITS


def syncs(stage: GroupStage, ticket: int) -> object:
    return stage.synced(ticket).error if ticket in stage.replies else WAITS


def generation(stage: GroupStage) -> int:
    group = stage.state.groups.get(GROUP)
    return group.generation_id if group else 1


REQUESTS: dict[str, Callable[[GroupStage, str, str], object]] = {
    "join without an id, old client": lambda s, m1, m2: joins(s, s.join()),
    "join without an id": lambda s, m1, m2: joins(s, s.join(must_know_its_id=True)),
    "join by the leader": lambda s, m1, m2: joins(s, s.join(m1)),
    "join by a follower": lambda s, m1, m2: joins(s, s.join(m2)),
    "join by a follower, changed": lambda s, m1, m2: joins(s, s.join(m2, protocols=BOTH)),
    "join by an unknown member": lambda s, m1, m2: joins(s, s.join("stranger")),
    "join with another type": lambda s, m1, m2: joins(s, s.join(protocol_type="connect")),
    "join with other protocols": lambda s, m1, m2: joins(s, s.join(protocols=(("x", b""),))),
    "join with no protocols": lambda s, m1, m2: joins(s, s.join(protocols=())),
    "sync by a follower": lambda s, m1, m2: syncs(s, s.sync(m2, generation(s))),
    "sync by the leader": lambda s, m1, m2: syncs(s, s.sync(m1, generation(s))),
    "sync at an old generation": lambda s, m1, m2: syncs(s, s.sync(m2, generation(s) - 1)),
    "sync by an unknown member": lambda s, m1, m2: syncs(s, s.sync("stranger", generation(s))),
    "sync with another type": lambda s, m1, m2: syncs(
        s, s.sync(m2, generation(s), protocol_type="connect")
    ),
    "sync with another protocol": lambda s, m1, m2: syncs(
        s, s.sync(m2, generation(s), protocol_name="roundrobin")
    ),
    "heartbeat": lambda s, m1, m2: s.heartbeat(m2, generation(s)),
    "heartbeat at an old generation": lambda s, m1, m2: s.heartbeat(m2, generation(s) - 1),
    "heartbeat by an unknown member": lambda s, m1, m2: s.heartbeat("stranger", generation(s)),
    "leave": lambda s, m1, m2: only(s.leave(m2)),
    "leave by an unknown member": lambda s, m1, m2: only(s.leave("stranger")),
    "commit": lambda s, m1, m2: only(
        s.commit({"orders-0": 1}, member_id=m2, generation_id=generation(s))
    ),
    "commit at an old generation": lambda s, m1, m2: only(
        s.commit({"orders-0": 1}, member_id=m2, generation_id=generation(s) - 1)
    ),
    "commit by an unknown member": lambda s, m1, m2: only(
        s.commit({"orders-0": 1}, member_id="stranger", generation_id=generation(s))
    ),
    "commit without a member": lambda s, m1, m2: only(s.commit({"orders-0": 1})),
    "txn commit": lambda s, m1, m2: only(
        s.commit({"orders-0": 1}, 7, member_id=m2, generation_id=generation(s))
    ),
    "txn commit at an old generation": lambda s, m1, m2: only(
        s.commit({"orders-0": 1}, 7, member_id=m2, generation_id=generation(s) - 1)
    ),
    "txn commit without a member": lambda s, m1, m2: only(s.commit({"orders-0": 1}, 7)),
    "delete the group": lambda s, m1, m2: s.delete_group(),
    "delete an offset": lambda s, m1, m2: only(s.delete_offsets("other-0")),
    "delete a subscribed offset": lambda s, m1, m2: only(s.delete_offsets("orders-0")),
}


def only(errors: object) -> object:
    return errors[0] if isinstance(errors, list | tuple) else errors


UNKNOWN = ErrorCode.UNKNOWN_MEMBER_ID
OLD = ErrorCode.ILLEGAL_GENERATION
REBALANCE = ErrorCode.REBALANCE_IN_PROGRESS
PROTOCOL = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
NEEDS_ID = ErrorCode.MEMBER_ID_REQUIRED
NO_GROUP = ErrorCode.GROUP_ID_NOT_FOUND
NOT_EMPTY = ErrorCode.NON_EMPTY_GROUP
IS_READ = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC

# fmt: off
EXPECTED: dict[str, tuple[object, ...]] = {
    #                                   absent     EMPTY      PREPARING  COMPLETING STABLE
    "join without an id, old client":  (WAITS,     WAITS,     WAITS,     WAITS,     WAITS),
    "join without an id":              (NEEDS_ID,  NEEDS_ID,  NEEDS_ID,  NEEDS_ID,  NEEDS_ID),
    "join by the leader":              (UNKNOWN,   UNKNOWN,   WAITS,     NONE,      WAITS),
    "join by a follower":              (UNKNOWN,   UNKNOWN,   WAITS,     NONE,      NONE),
    "join by a follower, changed":     (UNKNOWN,   UNKNOWN,   WAITS,     WAITS,     WAITS),
    "join by an unknown member":       (UNKNOWN,   UNKNOWN,   UNKNOWN,   UNKNOWN,   UNKNOWN),
    "join with another type":          (WAITS,     WAITS,     PROTOCOL,  PROTOCOL,  PROTOCOL),
    "join with other protocols":       (WAITS,     WAITS,     PROTOCOL,  PROTOCOL,  PROTOCOL),
    "join with no protocols":          (PROTOCOL,  PROTOCOL,  PROTOCOL,  PROTOCOL,  PROTOCOL),
    "sync by a follower":              (UNKNOWN,   UNKNOWN,   REBALANCE, WAITS,     NONE),
    "sync by the leader":              (UNKNOWN,   UNKNOWN,   REBALANCE, NONE,      NONE),
    "sync at an old generation":       (UNKNOWN,   UNKNOWN,   OLD,       OLD,       OLD),
    "sync by an unknown member":       (UNKNOWN,   UNKNOWN,   UNKNOWN,   UNKNOWN,   UNKNOWN),
    "sync with another type":          (UNKNOWN,   UNKNOWN,   PROTOCOL,  PROTOCOL,  PROTOCOL),
    "sync with another protocol":      (UNKNOWN,   UNKNOWN,   PROTOCOL,  PROTOCOL,  PROTOCOL),
    "heartbeat":                       (UNKNOWN,   UNKNOWN,   REBALANCE, NONE,      NONE),
    "heartbeat at an old generation":  (UNKNOWN,   UNKNOWN,   OLD,       OLD,       OLD),
    "heartbeat by an unknown member":  (UNKNOWN,   UNKNOWN,   UNKNOWN,   UNKNOWN,   UNKNOWN),
    "leave":                           (UNKNOWN,   UNKNOWN,   NONE,      NONE,      NONE),
    "leave by an unknown member":      (UNKNOWN,   UNKNOWN,   UNKNOWN,   UNKNOWN,   UNKNOWN),
    "commit":                          (OLD,       UNKNOWN,   NONE,      REBALANCE, NONE),
    "commit at an old generation":     (OLD,       UNKNOWN,   OLD,       OLD,       OLD),
    "commit by an unknown member":     (OLD,       UNKNOWN,   UNKNOWN,   UNKNOWN,   UNKNOWN),
    "commit without a member":         (NONE,      NONE,      UNKNOWN,   UNKNOWN,   UNKNOWN),
    "txn commit":                      (OLD,       UNKNOWN,   NONE,      NONE,      NONE),
    "txn commit at an old generation": (OLD,       UNKNOWN,   OLD,       OLD,       OLD),
    "txn commit without a member":     (NONE,      NONE,      NONE,      NONE,      NONE),
    "delete the group":                (NO_GROUP,  NONE,      NOT_EMPTY, NOT_EMPTY, NOT_EMPTY),
    "delete an offset":                (NO_GROUP,  NONE,      NONE,      NONE,      NONE),
    "delete a subscribed offset":      (NO_GROUP,  NONE,      IS_READ,   IS_READ,   IS_READ),
}
# fmt: on


def test_the_table_has_every_request_and_state() -> None:
    assert set(EXPECTED) == set(REQUESTS)
    assert {len(row) for row in EXPECTED.values()} == {len(SCENES)}


@pytest.mark.parametrize("request_name", REQUESTS)
@pytest.mark.parametrize("column", range(len(SCENES)), ids=[str(name) for name in SCENES])
def test_every_request_in_every_state_gets_kafkas_error(request_name: str, column: int) -> None:
    scene = list(SCENES)[column]
    stage, leader, follower = SCENES[scene]()
    if isinstance(scene, State):
        assert stage.is_in(scene)
    reply = REQUESTS[request_name](stage, leader, follower)
    assert reply == EXPECTED[request_name][column]


def test_the_members_in_all_scenes_have_one_protocol() -> None:
    stage, leader, _ = stable()
    assert stage.group.members[leader].protocols == RANGE
