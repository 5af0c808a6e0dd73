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
    "join by a stranger": lambda s, m1, m2: joins(s, s.join("stranger")),
    "join of another type": lambda s, m1, m2: joins(s, s.join(protocol_type="connect")),
    "join with other protocols": lambda s, m1, m2: joins(s, s.join(protocols=(("x", b""),))),
    "join with no protocols": lambda s, m1, m2: joins(s, s.join(protocols=())),
    "sync by a follower": lambda s, m1, m2: syncs(s, s.sync(m2, generation(s))),
    "sync by the leader": lambda s, m1, m2: syncs(s, s.sync(m1, generation(s))),
    "sync of an old generation": lambda s, m1, m2: syncs(s, s.sync(m2, generation(s) - 1)),
    "sync by a stranger": lambda s, m1, m2: syncs(s, s.sync("stranger", generation(s))),
    "sync of another type": lambda s, m1, m2: syncs(
        s, s.sync(m2, generation(s), protocol_type="connect")
    ),
    "sync of another protocol": lambda s, m1, m2: syncs(
        s, s.sync(m2, generation(s), protocol_name="roundrobin")
    ),
    "heartbeat": lambda s, m1, m2: s.heartbeat(m2, generation(s)),
    "heartbeat of an old generation": lambda s, m1, m2: s.heartbeat(m2, generation(s) - 1),
    "heartbeat by a stranger": lambda s, m1, m2: s.heartbeat("stranger", generation(s)),
    "leave": lambda s, m1, m2: only(s.leave(m2)),
    "leave by a stranger": lambda s, m1, m2: only(s.leave("stranger")),
    "commit": lambda s, m1, m2: only(
        s.commit({"orders-0": 1}, member_id=m2, generation_id=generation(s))
    ),
    "commit of an old generation": lambda s, m1, m2: only(
        s.commit({"orders-0": 1}, member_id=m2, generation_id=generation(s) - 1)
    ),
    "commit by a stranger": lambda s, m1, m2: only(
        s.commit({"orders-0": 1}, member_id="stranger", generation_id=generation(s))
    ),
    "commit by nobody": lambda s, m1, m2: only(s.commit({"orders-0": 1})),
    "transactional commit": lambda s, m1, m2: only(
        s.commit({"orders-0": 1}, 7, member_id=m2, generation_id=generation(s))
    ),
    "transactional commit of an old generation": lambda s, m1, m2: only(
        s.commit({"orders-0": 1}, 7, member_id=m2, generation_id=generation(s) - 1)
    ),
    "transactional commit by nobody": lambda s, m1, m2: only(s.commit({"orders-0": 1}, 7)),
    "delete the group": lambda s, m1, m2: s.delete_group(),
    "delete an offset": lambda s, m1, m2: only(s.delete_offsets("other-0")),
    "delete an offset that is read": lambda s, m1, m2: only(s.delete_offsets("orders-0")),
}


def only(errors: object) -> object:
    return errors[0] if isinstance(errors, list | tuple) else errors


UNKNOWN = ErrorCode.UNKNOWN_MEMBER_ID
OLD = ErrorCode.ILLEGAL_GENERATION
REBALANCE = ErrorCode.REBALANCE_IN_PROGRESS
PROTOCOL = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
ID_REQUIRED = ErrorCode.MEMBER_ID_REQUIRED
NO_GROUP = ErrorCode.GROUP_ID_NOT_FOUND
NOT_EMPTY = ErrorCode.NON_EMPTY_GROUP
READ = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC

# fmt: off
EXPECTED: dict[str, tuple[object, ...]] = {
    #                                            absent       EMPTY        PREPARING  COMPLETING  STABLE
    "join without an id, old client":            (WAITS,       WAITS,       WAITS,      WAITS,      WAITS),
    "join without an id":                        (ID_REQUIRED, ID_REQUIRED, ID_REQUIRED, ID_REQUIRED, ID_REQUIRED),
    "join by the leader":                        (UNKNOWN,     UNKNOWN,     WAITS,      NONE,       WAITS),
    "join by a follower":                        (UNKNOWN,     UNKNOWN,     WAITS,      NONE,       NONE),
    "join by a follower, changed":               (UNKNOWN,     UNKNOWN,     WAITS,      WAITS,      WAITS),
    "join by a stranger":                        (UNKNOWN,     UNKNOWN,     UNKNOWN,    UNKNOWN,    UNKNOWN),
    "join of another type":                      (WAITS,       WAITS,       PROTOCOL,   PROTOCOL,   PROTOCOL),
    "join with other protocols":                 (WAITS,       WAITS,       PROTOCOL,   PROTOCOL,   PROTOCOL),
    "join with no protocols":                    (PROTOCOL,    PROTOCOL,    PROTOCOL,   PROTOCOL,   PROTOCOL),
    "sync by a follower":                        (UNKNOWN,     UNKNOWN,     REBALANCE,  WAITS,      NONE),
    "sync by the leader":                        (UNKNOWN,     UNKNOWN,     REBALANCE,  NONE,       NONE),
    "sync of an old generation":                 (UNKNOWN,     UNKNOWN,     OLD,        OLD,        OLD),
    "sync by a stranger":                        (UNKNOWN,     UNKNOWN,     UNKNOWN,    UNKNOWN,    UNKNOWN),
    "sync of another type":                      (UNKNOWN,     UNKNOWN,     PROTOCOL,   PROTOCOL,   PROTOCOL),
    "sync of another protocol":                  (UNKNOWN,     UNKNOWN,     PROTOCOL,   PROTOCOL,   PROTOCOL),
    "heartbeat":                                 (UNKNOWN,     UNKNOWN,     REBALANCE,  NONE,       NONE),
    "heartbeat of an old generation":            (UNKNOWN,     UNKNOWN,     OLD,        OLD,        OLD),
    "heartbeat by a stranger":                   (UNKNOWN,     UNKNOWN,     UNKNOWN,    UNKNOWN,    UNKNOWN),
    "leave":                                     (UNKNOWN,     UNKNOWN,     NONE,       NONE,       NONE),
    "leave by a stranger":                       (UNKNOWN,     UNKNOWN,     UNKNOWN,    UNKNOWN,    UNKNOWN),
    "commit":                                    (OLD,         UNKNOWN,     NONE,       REBALANCE,  NONE),
    "commit of an old generation":               (OLD,         UNKNOWN,     OLD,        OLD,        OLD),
    "commit by a stranger":                      (OLD,         UNKNOWN,     UNKNOWN,    UNKNOWN,    UNKNOWN),
    "commit by nobody":                          (NONE,        NONE,        UNKNOWN,    UNKNOWN,    UNKNOWN),
    "transactional commit":                      (OLD,         UNKNOWN,     NONE,       NONE,       NONE),
    "transactional commit of an old generation": (OLD,         UNKNOWN,     OLD,        OLD,        OLD),
    "transactional commit by nobody":            (NONE,        NONE,        NONE,       NONE,       NONE),
    "delete the group":                          (NO_GROUP,    NONE,        NOT_EMPTY,  NOT_EMPTY,  NOT_EMPTY),
    "delete an offset":                          (NO_GROUP,    NONE,        NONE,       NONE,       NONE),
    "delete an offset that is read":             (NO_GROUP,    NONE,        READ,       READ,       READ),
}
# fmt: on


def test_the_product_is_complete() -> None:
    assert set(EXPECTED) == set(REQUESTS)
    assert {len(row) for row in EXPECTED.values()} == {len(SCENES)}


@pytest.mark.parametrize("request_name", REQUESTS)
@pytest.mark.parametrize("column", range(len(SCENES)), ids=[str(name) for name in SCENES])
def test_a_request_meets_a_group_in_a_state(request_name: str, column: int) -> None:
    scene = list(SCENES)[column]
    stage, leader, follower = SCENES[scene]()
    if isinstance(scene, State):
        assert stage.is_in(scene)
    reply = REQUESTS[request_name](stage, leader, follower)
    assert reply == EXPECTED[request_name][column]


def test_the_members_of_the_scenes_have_one_protocol() -> None:
    stage, leader, _ = stable()
    assert stage.group.members[leader].protocols == RANGE
