"""Deletion: by request, with the topic, and by retention."""

from __future__ import annotations

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.coordinator.group.group import Group
from fencepost.coordinator.group.lifecycle import State
from fencepost.coordinator.group.removal import decide_expiry
from fencepost.coordinator.group.subscription import read_topics
from tests.coordinator.group.stage import GROUP, GroupStage, subscription

NONE = ErrorCode.NONE
DAY_MS = 24 * 60 * 60 * 1000


# -- by request


def test_an_empty_group_is_deleted_with_its_offsets() -> None:
    stage = GroupStage()
    stage.commit({"orders-0": 5})
    stage.commit({"refunds-0": 6}, 4000)
    assert stage.delete_group() is NONE
    assert stage.delete_group() is ErrorCode.GROUP_ID_NOT_FOUND
    assert stage.fetch("orders-0") == -1
    stage.end_transaction(4000, commit=True)
    assert stage.fetch("refunds-0") == -1
    stage.restart()
    assert not stage.state.groups


def test_offsets_of_topics_that_a_member_reads_are_spared() -> None:
    stage = GroupStage()
    (only,) = stage.stable(1)
    stage.commit({"orders-0": 5, "old-0": 6}, member_id=only, generation_id=1)
    assert stage.delete_offsets("orders-0", "old-0", "old-1") == [
        ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        NONE,
        NONE,
    ]
    assert (stage.fetch("orders-0"), stage.fetch("old-0")) == (5, -1)


def test_offsets_of_members_that_are_no_consumers_are_not_deleted() -> None:
    stage = GroupStage()
    stage.stable(1, protocol_type="connect", protocols=(("sessioned", b""),))
    assert stage.delete_offsets("orders-0") is ErrorCode.NON_EMPTY_GROUP


def test_a_consumer_whose_metadata_cannot_be_read_may_read_everything() -> None:
    stage = GroupStage()
    (only,) = stage.stable(1, protocols=(("range", b"not a subscription"),))
    stage.commit({"orders-0": 5}, member_id=only, generation_id=1)
    assert stage.delete_offsets("orders-0") == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC]


def test_deleting_offsets_needs_a_group() -> None:
    stage = GroupStage()
    assert stage.delete_offsets("a-0", group_id="") is ErrorCode.INVALID_GROUP_ID
    assert stage.delete_offsets("a-0") is ErrorCode.GROUP_ID_NOT_FOUND


# -- with the topic


def test_the_offsets_of_a_deleted_topic_go_with_it() -> None:
    stage = GroupStage()
    stage.commit({"orders-0": 5, "refunds-0": 6})
    stage.commit({"orders-1": 7, "refunds-1": 8}, 4000, group_id="other")
    stage.delete_topics("orders")
    stage.end_transaction(4000, commit=True)
    assert (stage.fetch("orders-0"), stage.fetch("refunds-0")) == (-1, 6)
    assert stage.fetch("orders-1", group_id="other") == -1
    assert stage.fetch("refunds-1", group_id="other") == 8
    records = len(stage.log)
    stage.delete_topics("orders")
    assert len(stage.log) == records


# -- by time


def test_offsets_of_a_simple_group_expire_each_by_its_own_commit() -> None:
    stage = GroupStage()
    stage.commit({"orders-0": 5})
    stage.tick(DAY_MS)
    stage.commit({"orders-1": 6})
    stage.tick(6 * DAY_MS - 1)
    stage.expire()
    assert (stage.fetch("orders-0"), stage.fetch("orders-1")) == (5, 6)
    stage.tick(1)
    stage.expire()
    assert (stage.fetch("orders-0"), stage.fetch("orders-1")) == (-1, 6)
    assert GROUP in stage.state.groups
    stage.tick(DAY_MS)
    stage.expire()
    assert GROUP not in stage.state.groups
    stage.restart()
    assert not stage.state.groups


def test_offsets_of_a_group_with_members_expire_since_the_last_one_left() -> None:
    stage = GroupStage()
    (only,) = stage.stable(1, session_timeout_ms=1_800_000)
    stage.commit({"orders-0": 5}, member_id=only, generation_id=1)
    stage.tick(1_000_000)
    stage.leave(only)
    stage.tick(7 * DAY_MS - 1)
    stage.expire()
    assert stage.fetch("orders-0") == 5
    stage.restart()
    stage.tick(1)
    stage.expire()
    assert stage.fetch("orders-0") == -1
    assert GROUP not in stage.state.groups


def test_a_stable_group_loses_old_offsets_of_topics_that_it_no_longer_reads() -> None:
    stage = GroupStage(offsets_retention_ms=10_000)
    (only,) = stage.stable(1, session_timeout_ms=1_800_000)
    stage.commit({"orders-0": 5, "old-0": 6}, member_id=only, generation_id=1)
    stage.tick(10_000)
    stage.expire()
    assert (stage.fetch("orders-0"), stage.fetch("old-0")) == (5, -1)
    assert stage.is_in(State.STABLE)


def test_a_group_that_rebalances_loses_nothing() -> None:
    stage = GroupStage(offsets_retention_ms=10_000)
    first, second = stage.stable(2, session_timeout_ms=1_800_000)
    stage.commit({"old-0": 6}, member_id=first, generation_id=1)
    stage.tick(10_000)
    stage.join(second, protocols=(("range", subscription("other")),))
    assert stage.is_in(State.PREPARING_REBALANCE)
    stage.expire()
    assert stage.fetch("old-0") == 6


def test_a_retention_of_the_clients_own_counts_alone() -> None:
    stage = GroupStage()
    stage.commit({"orders-0": 5}, retention_ms=1_000)
    stage.commit({"orders-1": 6}, retention_ms=30 * DAY_MS)
    stage.tick(999)
    stage.expire()
    assert stage.fetch("orders-0") == 5
    stage.tick(1)
    stage.expire()
    assert stage.fetch("orders-0") == -1
    stage.tick(8 * DAY_MS)
    stage.restart()
    stage.expire()
    assert stage.fetch("orders-1") == 6


def test_a_retention_beyond_all_time_is_for_ever() -> None:
    stage = GroupStage()
    assert stage.commit({"orders-0": 5}, retention_ms=2**63 - 1) == [NONE]
    stage.tick(1_000 * DAY_MS)
    stage.expire()
    assert stage.fetch("orders-0") == 5


def test_an_empty_group_without_offsets_is_forgotten_at_the_next_look() -> None:
    stage = GroupStage()
    stage.leave(*stage.stable(1))
    stage.expire()
    assert GROUP not in stage.state.groups


def test_a_member_that_was_just_told_its_id_keeps_its_group_alive() -> None:
    stage = GroupStage()
    told = stage.joined(stage.join(must_know_its_id=True)).member_id
    stage.expire()
    ticket = stage.join(told)
    stage.tick(0)
    assert stage.joined(ticket).error is NONE


def test_a_group_of_an_old_kafka_that_does_not_say_since_when_it_is_empty() -> None:
    stage = GroupStage(offsets_retention_ms=1_000)
    stage.leave(*stage.stable(1))
    stage.commit({"orders-0": 5})
    stage.group.state_timestamp_ms = -1
    value = stage.group.value()
    assert Group.from_value(GROUP, value).state_timestamp_ms == -1
    assert not decide_expiry(stage.state, stage.group, stage.now_ms + 999).records
    assert decide_expiry(stage.state, stage.group, stage.now_ms + 1_000).records


# -- subscriptions


def test_the_topics_of_a_subscription_are_read_whatever_follows_them() -> None:
    assert read_topics(subscription("a", "orders")) == frozenset({"a", "orders"})
    assert read_topics(subscription()) == frozenset()
    assert read_topics(b"\0\3" + subscription("a")[2:] + b"of later versions") == frozenset({"a"})


@pytest.mark.parametrize(
    "metadata",
    [
        b"",
        b"\0\0",
        b"\0\0\0\0\0",
        b"\0\0\x7f\xff\xff\xff",
        b"\0\0\xff\xff\xff\xff",
        b"\0\0\0\0\0\1\0\5ab",
        b"\0\0\0\0\0\1\xff\xffab",
    ],
)
def test_bytes_that_are_no_subscription_tell_nothing(metadata: bytes) -> None:
    assert read_topics(metadata) is None
