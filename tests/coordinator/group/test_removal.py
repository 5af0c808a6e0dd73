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


def test_an_empty_group_is_deleted_with_its_offsets(stage: GroupStage) -> None:
    stage.commit({"orders-0": 5})
    stage.commit({"refunds-0": 6}, 4000)
    assert stage.delete_group() is NONE
    assert stage.delete_group() is ErrorCode.GROUP_ID_NOT_FOUND
    assert stage.fetch("orders-0") == -1
    stage.end_transaction(4000, commit=True)
    assert stage.fetch("refunds-0") == -1
    stage.restart()
    assert not stage.state.groups


def test_offsets_of_subscribed_topics_are_not_deleted(stage: GroupStage) -> None:
    (only,) = stage.stable(1)
    stage.commit({"orders-0": 5, "old-0": 6}, member_id=only, generation_id=1)
    assert stage.delete_offsets("orders-0", "old-0", "old-1") == [
        ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        NONE,
        NONE,
    ]
    assert (stage.fetch("orders-0"), stage.fetch("old-0")) == (5, -1)


def test_offsets_of_a_group_with_members_of_another_type_are_not_deleted(stage: GroupStage) -> None:
    stage.stable(1, protocol_type="connect", protocols=(("sessioned", b""),))
    assert stage.delete_offsets("orders-0") is ErrorCode.NON_EMPTY_GROUP


def test_a_consumer_with_unreadable_metadata_counts_as_subscribed_to_every_topic() -> None:
    stage = GroupStage()
    (only,) = stage.stable(1, protocols=(("range", b"not a subscription"),))
    stage.commit({"orders-0": 5}, member_id=only, generation_id=1)
    assert stage.delete_offsets("orders-0") == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC]


def test_offsets_can_only_be_deleted_from_an_existing_group(stage: GroupStage) -> None:
    assert stage.delete_offsets("a-0", group_id="") is ErrorCode.INVALID_GROUP_ID
    assert stage.delete_offsets("a-0") is ErrorCode.GROUP_ID_NOT_FOUND


# -- with the topic


def test_the_offsets_of_a_deleted_topic_are_deleted_with_it(stage: GroupStage) -> None:
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


# -- by retention


def test_offsets_of_a_simple_group_expire_separately_by_commit_time(stage: GroupStage) -> None:
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


def test_the_retention_of_offsets_starts_when_the_last_member_leaves(stage: GroupStage) -> None:
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


def test_old_offsets_of_unsubscribed_topics_expire_in_a_stable_group() -> None:
    stage = GroupStage(offsets_retention_ms=10_000)
    (only,) = stage.stable(1, session_timeout_ms=1_800_000)
    stage.commit({"orders-0": 5, "old-0": 6}, member_id=only, generation_id=1)
    stage.tick(10_000)
    stage.expire()
    assert (stage.fetch("orders-0"), stage.fetch("old-0")) == (5, -1)
    assert stage.is_in(State.STABLE)


def test_no_offset_expires_during_a_rebalance() -> None:
    stage = GroupStage(offsets_retention_ms=10_000)
    first, second = stage.stable(2, session_timeout_ms=1_800_000)
    stage.commit({"old-0": 6}, member_id=first, generation_id=1)
    stage.tick(10_000)
    stage.join(second, protocols=(("range", subscription("other")),))
    assert stage.is_in(State.PREPARING_REBALANCE)
    stage.expire()
    assert stage.fetch("old-0") == 6


def test_a_retention_in_the_commit_overrides_the_setting(stage: GroupStage) -> None:
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


def test_the_longest_retention_keeps_an_offset_forever(stage: GroupStage) -> None:
    assert stage.commit({"orders-0": 5}, retention_ms=2**63 - 1) == [NONE]
    stage.tick(1_000 * DAY_MS)
    stage.expire()
    assert stage.fetch("orders-0") == 5


def test_an_empty_group_without_offsets_is_removed_by_the_next_expiry_check() -> None:
    stage = GroupStage()
    stage.leave(*stage.stable(1))
    stage.expire()
    assert GROUP not in stage.state.groups


def test_a_group_with_a_new_member_id_is_not_removed(stage: GroupStage) -> None:
    told = stage.joined(stage.join(must_know_its_id=True)).member_id
    stage.expire()
    ticket = stage.join(told)
    stage.tick(0)
    assert stage.joined(ticket).error is NONE


def test_a_group_from_an_old_kafka_without_a_state_timestamp_expires_by_commit_time() -> None:
    stage = GroupStage(offsets_retention_ms=1_000)
    stage.leave(*stage.stable(1))
    stage.commit({"orders-0": 5})
    stage.group.state_timestamp_ms = -1
    value = stage.group.value()
    assert Group.from_value(GROUP, value).state_timestamp_ms == -1
    assert not decide_expiry(stage.state, stage.group, stage.now_ms + 999).records
    assert decide_expiry(stage.state, stage.group, stage.now_ms + 1_000).records


# -- subscriptions


def test_the_topics_of_a_subscription_are_read_regardless_of_later_fields() -> None:
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
def test_bytes_that_are_not_a_subscription_are_ignored(metadata: bytes) -> None:
    assert read_topics(metadata) is None
