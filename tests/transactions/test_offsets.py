"""Offsets of a group inside a transaction, over the wire (cases 78 to 80, 84 and 85)."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.wire.apis import ApiKey
from tests.broker.node_stage import Stage
from tests.broker.requests import create_topic, delete_topic, topic_id
from tests.transactions.group import commit_plainly, join, sync
from tests.transactions.protocol import TV1, TV2, Protocol
from tests.transactions.requests import commit_offsets_request
from tests.transactions.wire import (
    GROUP,
    NONE,
    WireProducer,
    await_coordinator,
    committed_offset,
    committed_offsets,
)

ALL_VERSIONS = range(7)
VERSIONS_WITH_MEMBERS = range(3, 7)
FOO_1, BAR_0, BAR_1 = ("foo", 1), ("bar", 0), ("bar", 1)


@pytest.fixture(autouse=True)
def _topics(stage: Stage) -> None:
    create_topic(stage, "foo", 2)
    create_topic(stage, "bar", 2)


def producer(stage: Stage, protocol: Protocol, name: str = "a") -> WireProducer:
    await_coordinator(stage, "g", GROUP)
    return WireProducer(stage, name, protocol).initialise()


def shown(stage: Stage, *, stable: bool = False) -> list[int]:
    """The committed offset, or the error, of foo-1, bar-0 and bar-1."""
    told = committed_offsets(stage, "g", "foo", 1, stable=stable)
    told += committed_offsets(stage, "g", "bar", 0, 1, stable=stable)
    return [each.error_code or each.committed_offset for each in told]


# -- case 78: who may commit -----------------------------------------------------------------------


@pytest.mark.parametrize("version", ALL_VERSIONS)
def test_case_78_offsets_can_be_committed_without_a_member_in_every_version(
    stage: Stage, version: int
) -> None:
    one = producer(stage, TV1)
    if version < 5:
        assert one.add_offsets("g") == NONE
    assert one.commit_offsets("g", {FOO_1: 7}, version=version) == {FOO_1: NONE}
    one.commit()
    assert committed_offset(stage, "g", "foo", 1) == 7


@pytest.mark.parametrize("version", VERSIONS_WITH_MEMBERS)
@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"member_id": "stranger"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"generation_id": 99}, ErrorCode.ILLEGAL_GENERATION),
        ({"generation_id": 0}, ErrorCode.ILLEGAL_GENERATION),
        ({"group_instance_id": "static", "member_id": "stranger"}, ErrorCode.FENCED_INSTANCE_ID),
    ],
    ids=["unknown member", "later generation", "earlier generation", "fenced instance"],
)
def test_case_78_the_wrong_member_generation_or_instance_is_fenced(
    stage: Stage, version: int, fields: dict[str, Any], error: ErrorCode
) -> None:
    member = join(stage, "g", instance="static")
    sync(stage, member)
    one = producer(stage, TV1)
    if version < 5:
        assert one.add_offsets("g") == NONE
    given = {**member.fields, **fields}
    assert one.commit_offsets("g", {FOO_1: 7}, version=version, **given) == {FOO_1: error}
    right = one.commit_offsets("g", {FOO_1: 8}, version=version, **member.fields)
    assert right == {FOO_1: NONE}
    one.commit()
    assert committed_offset(stage, "g", "foo", 1) == 8


@pytest.mark.parametrize("version", [5, 6])
def test_a_member_of_a_group_that_does_not_exist_is_told_so_from_v6_on(
    stage: Stage, version: int
) -> None:
    one = producer(stage, TV2)
    told = one.commit_offsets("g", {FOO_1: 7}, version=version, member_id="m", generation_id=3)
    expected = {5: ErrorCode.ILLEGAL_GENERATION, 6: ErrorCode.GROUP_ID_NOT_FOUND}
    assert told == {FOO_1: expected[version]}


def test_offsets_of_a_topic_that_was_created_again_are_refused_by_id(stage: Stage) -> None:
    """KIP-1319: between the poll and the commit another topic got the name."""
    one = producer(stage, TV2)
    polled = topic_id(stage, "foo")
    delete_topic(stage, "foo")
    create_topic(stage, "foo", 2)
    request = commit_offsets_request(one, "g", {FOO_1: 7, BAR_0: 8})
    for topic, identity in zip(request.topics, (polled, topic_id(stage, "bar")), strict=True):
        topic.topic_id = identity
    reply = stage.call(ApiKey.TXN_OFFSET_COMMIT, 6, request)
    told = {topic.topic_id: topic.partitions[0].error_code for topic in reply.topics}
    assert told == {polled: ErrorCode.UNKNOWN_TOPIC_ID, topic_id(stage, "bar"): NONE}
    assert all(topic.name == "" for topic in reply.topics)
    one.commit()
    assert shown(stage) == [-1, 8, -1]


def test_the_leader_epoch_of_offsets_in_a_transaction_is_given_back(
    stage: Stage, protocol: Protocol
) -> None:
    """KAFKA-19902: a stale epoch is kept as it is, also one that no leader of today had."""
    one = producer(stage, protocol)
    for number, epoch in enumerate((0, 5, -1)):
        if protocol is TV1:
            assert one.add_offsets("g") == NONE
        one.commit_offsets("g", {FOO_1: number}, leader_epoch=epoch)
        one.commit()
        (told,) = committed_offsets(stage, "g", "foo", 1)
        assert (told.committed_offset, told.committed_leader_epoch) == (number, epoch)


@pytest.mark.parametrize("version", ALL_VERSIONS)
def test_offsets_need_their_group_in_the_transaction_before_v5(stage: Stage, version: int) -> None:
    """Up to v4 the group must have been added; v5 adds it. Old versions get an older code."""
    one = producer(stage, TV1)
    (error,) = one.commit_offsets("g", {FOO_1: 7}, version=version).values()
    expected = {4: ErrorCode.TRANSACTION_ABORTABLE, 5: NONE, 6: NONE}
    assert error == expected.get(version, ErrorCode.INVALID_TXN_STATE)
    assert shown(stage, stable=True)[0] == (88 if version >= 5 else -1)


@pytest.mark.parametrize("version", ALL_VERSIONS)
def test_offsets_of_a_fenced_producer_are_refused(stage: Stage, version: int) -> None:
    old = producer(stage, TV1)
    assert old.add_offsets("g") == NONE
    new = producer(stage, TV1)
    (error,) = old.commit_offsets("g", {FOO_1: 7}, version=version).values()
    assert error == ErrorCode.INVALID_PRODUCER_EPOCH
    assert new.add_offsets("g") == NONE
    (error,) = old.commit_offsets("g", {FOO_1: 7}, version=version).values()
    assert error == ErrorCode.INVALID_PRODUCER_EPOCH
    assert shown(stage, stable=True) == [-1, -1, -1]


# -- case 79: late offsets -------------------------------------------------------------------------


def test_case_79_late_tv1_offsets_join_the_next_transaction_and_late_tv2_offsets_are_refused(
    stage: Stage, protocol: Protocol
) -> None:
    one = producer(stage, protocol)
    one.send("foo", b"first")
    late = one.twin()
    one.commit()
    if protocol is TV1:
        assert one.add_offsets("g") == NONE
    else:
        one.send_offsets("g", {BAR_0: 1})
    (error,) = late.commit_offsets("g", {FOO_1: 7}).values()
    one.commit()
    if protocol is TV1:
        assert error == NONE, "a known hazard: nothing distinguishes the two transactions"
        assert shown(stage) == [7, -1, -1]
    else:
        assert error == ErrorCode.INVALID_PRODUCER_EPOCH
        assert shown(stage) == [-1, 1, -1]


# -- case 80: pending offsets ----------------------------------------------------------------------


@pytest.mark.parametrize("outcome", ["commit", "abort"])
def test_case_80_pending_offsets_are_unstable_until_the_transaction_ends(
    stage: Stage, protocol: Protocol, outcome: str
) -> None:
    assert commit_plainly(stage, "g", "foo", {1: 110}) == {NONE}
    assert commit_plainly(stage, "g", "bar", {0: 200}) == {NONE}
    one = producer(stage, protocol)
    one.send_offsets("g", {FOO_1: 111, BAR_0: 201, BAR_1: 211})
    stage = one.client = stage.kill().again()
    unstable = ErrorCode.UNSTABLE_OFFSET_COMMIT
    assert shown(stage, stable=True) == [unstable] * 3
    assert shown(stage) == [110, 200, -1]
    assert one.end(commit=outcome == "commit") == NONE
    settled = [111, 201, 211] if outcome == "commit" else [110, 200, -1]
    assert shown(stage, stable=True) == shown(stage) == settled
    stage = stage.kill().again()
    assert shown(stage, stable=True) == settled
    stage.abandon()


# -- cases 84 and 85 -------------------------------------------------------------------------------
