"""Offsets, plain and transactional. Numbers are those of docs/cases.md."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.coordinator.group import views
from fencepost.coordinator.group.events import OffsetToCommit
from fencepost.coordinator.group.lifecycle import State
from fencepost.records.group_log import OffsetKey
from tests.coordinator.group.stage import GROUP, GroupStage, partition

NONE = ErrorCode.NONE
UNSTABLE = ErrorCode.UNSTABLE_OFFSET_COMMIT
PRODUCER = 4000


def committed(stage: GroupStage, name: str) -> views.OffsetView:
    key = OffsetKey(GROUP, partition(name))
    return views.fetch_offset(stage.state, key, require_stable=False)


# -- plain commits


def test_a_commit_without_a_member_creates_a_simple_group(stage: GroupStage) -> None:
    assert stage.commit({"orders-0": 5, "orders-1": 6}) == [NONE, NONE]
    assert (stage.fetch("orders-0"), stage.fetch("orders-1")) == (5, 6)
    assert stage.is_in(State.EMPTY)
    assert stage.group.protocol_type is None
    stage.restart()
    assert stage.fetch("orders-0") == 5


def test_a_commit_with_a_generation_to_a_missing_group_gets_the_error_of_its_version() -> None:
    stage = GroupStage()
    assert stage.commit({"orders-0": 5}, generation_id=3) is ErrorCode.ILLEGAL_GENERATION
    newer = ErrorCode.GROUP_ID_NOT_FOUND
    assert stage.commit({"orders-0": 5}, generation_id=3, unknown_group_error=newer) is newer
    assert not stage.log


def test_the_empty_group_id_can_still_commit(stage: GroupStage) -> None:
    assert stage.commit({"orders-0": 5}, group_id="") == [NONE]
    assert stage.fetch("orders-0", group_id="") == 5


@pytest.mark.parametrize(
    ("metadata", "error"),
    [
        ("x" * 4096, NONE),
        ("x" * 4097, ErrorCode.OFFSET_METADATA_TOO_LARGE),
        ("\U0001f600" * 2048, NONE),
        ("\U0001f600" * 2049, ErrorCode.OFFSET_METADATA_TOO_LARGE),
    ],
)
def test_the_metadata_limit_counts_utf_16_units_as_in_java(metadata: str, error: ErrorCode) -> None:
    stage = GroupStage()
    long = OffsetToCommit(partition("orders-0"), 5, metadata=metadata)
    assert stage.commit({"orders-0": long, "orders-1": 6}) == [error, NONE]
    assert stage.fetch("orders-1") == 6


def test_an_offset_of_a_deleted_topic_is_not_used_for_a_recreated_topic(stage: GroupStage) -> None:
    old, new = b"o" * 16, b"n" * 16
    stage.commit({"orders-0": OffsetToCommit(partition("orders-0"), 5, topic_id=old)})
    assert stage.fetch("orders-0", topic_id=old) == 5
    assert stage.fetch("orders-0", topic_id=new) == -1
    assert stage.fetch("orders-0") == 5


def test_listing_all_offsets_of_a_group_leaves_out_those_that_are_only_pending() -> None:
    stage = GroupStage()
    stage.commit({"orders-0": 5, "refunds-1": 6})
    stage.commit({"orders-0": 7, "orders-9": 8}, PRODUCER)
    listed = views.fetch_all_offsets(stage.state, GROUP, lambda _: None, require_stable=True)
    assert {(view.partition, view.offset, view.error) for view in listed} == {
        (partition("orders-0"), -1, UNSTABLE),
        (partition("refunds-1"), 6, NONE),
    }


# -- case 78: who may commit in a transaction


def test_case_78_a_transaction_without_a_member_may_commit(stage: GroupStage) -> None:
    stage.stable(1)
    assert stage.commit({"orders-0": 5}, PRODUCER) == [NONE]


def test_case_78_the_wrong_member_generation_or_group_is_refused(stage: GroupStage) -> None:
    (only,) = stage.stable(1)
    offsets = {"orders-0": 5}
    stranger = stage.commit(offsets, PRODUCER, member_id="stranger", generation_id=1)
    assert stranger is ErrorCode.UNKNOWN_MEMBER_ID
    old = stage.commit(offsets, PRODUCER, member_id=only, generation_id=0)
    assert old is ErrorCode.ILLEGAL_GENERATION
    nowhere = stage.commit(offsets, PRODUCER, member_id=only, generation_id=1, group_id="nowhere")
    assert nowhere is ErrorCode.ILLEGAL_GENERATION
    assert stage.commit(offsets, PRODUCER, member_id=only, generation_id=1) == [NONE]


def test_case_78_a_member_without_a_generation_is_also_fenced(stage: GroupStage) -> None:
    (only,) = stage.stable(1)
    reply = stage.commit({"orders-0": 5}, PRODUCER, member_id=only)
    assert reply is ErrorCode.ILLEGAL_GENERATION


# -- case 80: pending offsets


@pytest.mark.parametrize("commit", [True, False])
def test_case_80_pending_offsets_are_unstable_until_the_marker(commit: bool) -> None:
    stage = GroupStage()
    stage.commit({"foo-1": 110, "bar-0": 200})
    stage.commit({"foo-1": 111, "bar-0": 201, "bar-1": 211}, PRODUCER)
    names = ("foo-1", "bar-0", "bar-1")
    assert [stage.fetch(name, require_stable=True) for name in names] == [UNSTABLE] * 3
    assert [stage.fetch(name) for name in names] == [110, 200, -1]
    stage.end_transaction(PRODUCER, commit=commit)
    expected = [111, 201, 211] if commit else [110, 200, -1]
    assert [stage.fetch(name, require_stable=True) for name in names] == expected


def test_case_80_pending_offsets_survive_a_coordinator_move(stage: GroupStage) -> None:
    stage.commit({"foo-1": 110})
    stage.commit({"foo-1": 111}, PRODUCER)
    stage.restart()
    assert stage.fetch("foo-1", require_stable=True) is UNSTABLE
    stage.end_transaction(PRODUCER, commit=True)
    assert stage.fetch("foo-1", require_stable=True) == 111


def test_case_80_a_partition_is_stable_when_its_last_transaction_has_ended() -> None:
    stage = GroupStage()
    stage.commit({"foo-1": 1}, PRODUCER)
    stage.commit({"foo-1": 2}, PRODUCER + 1)
    stage.end_transaction(PRODUCER, commit=True)
    assert stage.fetch("foo-1", require_stable=True) is UNSTABLE
    stage.end_transaction(PRODUCER + 1, commit=False)
    assert stage.fetch("foo-1", require_stable=True) == 1


def test_case_80_one_transaction_may_commit_for_several_groups(stage: GroupStage) -> None:
    stage.commit({"foo-1": 1}, PRODUCER, group_id="a")
    stage.commit({"foo-1": 2}, PRODUCER, group_id="b")
    stage.end_transaction(PRODUCER, commit=True)
    assert (stage.fetch("foo-1", group_id="a"), stage.fetch("foo-1", group_id="b")) == (1, 2)


# -- cases 81 to 85


def test_case_81_a_plain_commit_after_the_pending_one_is_kept_when_the_marker_arrives() -> None:
    stage = GroupStage()
    stage.commit({"foo-1": 111}, PRODUCER)
    stage.commit({"foo-1": 50})
    stage.end_transaction(PRODUCER, commit=True)
    assert stage.fetch("foo-1") == 50


def test_case_81_the_later_record_of_two_transactions_wins_in_any_order_of_their_ends() -> None:
    stage = GroupStage()
    stage.commit({"foo-1": 1}, PRODUCER)
    stage.commit({"foo-1": 2}, PRODUCER + 1)
    stage.end_transaction(PRODUCER + 1, commit=True)
    stage.end_transaction(PRODUCER, commit=True)
    assert stage.fetch("foo-1") == 2


def test_case_82_a_tombstone_clears_pending_offsets(stage: GroupStage) -> None:
    stage.commit({"foo-1": 110})
    stage.commit({"foo-1": 111, "bar-0": 5}, PRODUCER)
    assert stage.delete_offsets("foo-1") == [NONE]
    assert stage.fetch("foo-1", require_stable=True) == -1
    stage.end_transaction(PRODUCER, commit=True)
    assert stage.fetch("foo-1") == -1
    assert stage.fetch("bar-0") == 5


def test_case_82_an_offset_that_is_only_pending_can_be_deleted(stage: GroupStage) -> None:
    stage.commit({"foo-1": 111}, PRODUCER)
    stage.delete_offsets("foo-1")
    stage.end_transaction(PRODUCER, commit=True)
    assert stage.fetch("foo-1") == -1


@pytest.mark.parametrize("commit", [True, False])
def test_case_83_pending_offsets_keep_offsets_and_group_from_expiring(commit: bool) -> None:
    stage = GroupStage(offsets_retention_ms=1_000)
    stage.commit({"foo-1": 110, "bar-0": 200})
    stage.commit({"foo-1": 111}, PRODUCER)
    stage.tick(1_000)
    stage.expire()
    assert stage.fetch("foo-1") == 110
    assert stage.fetch("bar-0") == -1
    stage.end_transaction(PRODUCER, commit=commit)
    stage.expire()
    assert GROUP not in stage.state.groups


def test_case_83_a_group_with_only_pending_offsets_does_not_expire() -> None:
    stage = GroupStage(offsets_retention_ms=1_000)
    stage.commit({"foo-1": 111}, PRODUCER)
    stage.tick(10_000)
    stage.expire()
    assert GROUP in stage.state.groups
    stage.end_transaction(PRODUCER, commit=True)
    assert stage.fetch("foo-1") == 111


def test_case_84_metadata_and_leader_epoch_survive_a_transaction(stage: GroupStage) -> None:
    offset = OffsetToCommit(partition("foo-1"), 110, 15, "some metadata")
    stage.commit({"foo-1": offset}, PRODUCER)
    stage.end_transaction(PRODUCER, commit=True)
    stage.restart()
    view = committed(stage, "foo-1")
    assert (view.offset, view.leader_epoch, view.metadata) == (110, 15, "some metadata")


def test_case_85_a_transaction_may_commit_while_its_group_rebalances(stage: GroupStage) -> None:
    first, second = stage.join(), stage.join()
    stage.tick(0)
    member = stage.joined(first).member_id
    assert stage.joined(second).generation_id == 1
    fields: dict[str, Any] = {"member_id": member, "generation_id": 1}
    assert stage.is_in(State.COMPLETING_REBALANCE)
    assert stage.commit({"orders-0": 5}, **fields) is ErrorCode.REBALANCE_IN_PROGRESS
    assert stage.commit({"orders-0": 5}, PRODUCER, **fields) == [NONE]
    stage.sync_all(list(stage.group.members))
    stage.join()
    assert stage.is_in(State.PREPARING_REBALANCE)
    assert stage.commit({"orders-0": 6}, PRODUCER, **fields) == [NONE]


def test_an_abort_of_a_producer_without_pending_offsets_changes_nothing(stage: GroupStage) -> None:
    stage.commit({"foo-1": 110})
    stage.end_transaction(PRODUCER, commit=False)
    stage.end_transaction(PRODUCER, commit=True)
    assert stage.fetch("foo-1") == 110
