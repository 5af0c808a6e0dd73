"""Offsets through the handlers: plain, transactional, expired, deleted."""

from __future__ import annotations

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import CONSUMER_OFFSETS_TOPIC
from fencepost.records.group_log import OffsetRecord, decode_record
from tests.broker.groups.group_requests import (
    FSYNC,
    GROUP,
    LOADING,
    NONE,
    NOT_AVAILABLE,
    NOT_COORDINATOR,
    UNKNOWN_TOPIC,
    commit,
    commit_in_transaction,
    delete,
    delete_offsets,
    errors,
    fetch,
    index_of,
    leave,
    list_all,
    offsets,
    stable,
)
from tests.broker.groups.groups_stage import GroupNode

pytestmark = pytest.mark.interpreted

# -- offsets ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(2, 11))
def test_offset_commit_and_offset_fetch_work_in_every_version(version: int) -> None:
    node = GroupNode().begin()
    assert errors(commit(node, {0: 5, 2: 7}, version)) == [NONE, NONE]
    for fetch_version in range(1, 11):
        reply = fetch(node, [0, 1, 2], fetch_version)
        assert offsets(reply) == [5, -1, 7]
        assert fetch(node, [0], fetch_version, group_ids=("nobody",)).groups[0].error_code == NONE


def test_offsets_of_missing_partitions_cannot_be_committed(node: GroupNode) -> None:
    reply = commit(node, {0: 5, 3: 6, -1: 7})
    assert errors(reply) == [NONE, UNKNOWN_TOPIC, UNKNOWN_TOPIC]
    assert errors(commit(node, {0: 5}, topic="nowhere")) == [UNKNOWN_TOPIC]
    unknown_id = ErrorCode.UNKNOWN_TOPIC_ID
    assert errors(commit(node, {0: 5}, 10, topic="nowhere")) == [unknown_id]
    assert offsets(fetch(node, [0], 10, topic="nowhere")) == [unknown_id]


def test_offsets_are_stored_with_their_topic_id_in_every_version(node: GroupNode) -> None:
    commit(node, {0: 5}, 8)
    found = node.groups.find(GROUP)
    assert not isinstance(found, ErrorCode)
    (stored,) = found.state.offsets.of_group(GROUP).values()
    assert stored.value.topic_id == node.metadata.topic_id("orders")


def test_transactional_offsets_are_stored_with_their_topic_id(node: GroupNode) -> None:
    """In Kafka an offset that outlives its topic passes to the next topic with that name."""
    commit_in_transaction(node, {0: 5})
    found = node.groups.find(GROUP)
    assert not isinstance(found, ErrorCode)
    (record,) = [
        decode_record(bytes(entry.key), bytes(entry.value))
        for entry in found.partition.entries()
        if entry.key is not None and entry.value is not None
    ]
    assert isinstance(record, OffsetRecord)
    assert record.value is not None
    assert record.value.topic_id == node.metadata.topic_id("orders")


@pytest.mark.parametrize(("version", "asked"), [(4, 0), (5, 1)])
def test_a_first_write_is_not_verified_if_verification_is_disabled(
    version: int, asked: int
) -> None:
    node = GroupNode({"transaction.partition.verification.enable": "false"}).begin()
    assert errors(commit_in_transaction(node, {0: 5}, version)) == [NONE]
    assert len(node.transactions.asked) == asked


def test_an_old_client_may_set_the_retention_of_its_offsets() -> None:
    node = GroupNode({"offsets.retention.check.interval.ms": "1000"}).begin()
    commit(node, {0: 5}, 2, retention_time_ms=5_000)
    node.advance(4_000)
    assert offsets(fetch(node, [0])) == [5]
    node.advance(2_000)
    assert offsets(fetch(node, [0])) == [-1]


def test_all_offsets_of_several_groups_are_fetched_in_one_request(node: GroupNode) -> None:
    node.made("refunds", 1)
    commit(node, {0: 5, 1: 6})
    commit(node, {0: 7}, topic="refunds")
    commit(node, {0: 8}, group_id="other")
    reply = fetch(node, group_ids=(GROUP, "other", "nobody"))
    assert [group.group_id for group in reply.groups] == [GROUP, "other", "nobody"]
    assert [topic.name for topic in reply.groups[0].topics] == ["orders", "refunds"]
    assert offsets(reply) == [5, 6, 7, 8]
    by_id = fetch(node, version=10, group_ids=(GROUP,))
    assert [topic.topic_id for topic in by_id.groups[0].topics] == [
        node.metadata.topic_id("orders"),
        node.metadata.topic_id("refunds"),
    ]


def test_offsets_of_an_unused_group_expire() -> None:
    settings = {"offsets.retention.minutes": "1", "offsets.retention.check.interval.ms": "1000"}
    node = GroupNode(settings).begin()
    commit(node, {0: 5})
    node.advance(59_000)
    assert offsets(fetch(node)) == [5]
    node.advance(1_000)
    assert offsets(fetch(node)) == []
    assert list_all(node).groups == []
    node.stop()
    assert list_all(node.again()).groups == []


def test_the_offsets_of_a_deleted_topic_are_removed(node: GroupNode) -> None:
    node.made("refunds", 1)
    commit(node, {0: 5})
    commit(node, {0: 6}, topic="refunds")
    for forget in node.groups.forgetting({"orders"}):
        forget()
    assert offsets(fetch(node)) == [6]


def test_offsets_are_deleted_by_request(node: GroupNode) -> None:
    commit(node, {0: 5, 1: 6})
    assert errors(delete_offsets(node, 0, 2, 9)) == [NONE, NONE, UNKNOWN_TOPIC]
    assert errors(delete_offsets(node, 0, topic="nowhere")) == [UNKNOWN_TOPIC]
    assert offsets(fetch(node)) == [6]


def test_groups_are_deleted_by_request(node: GroupNode) -> None:
    commit(node, {0: 5}, group_id="idle")
    stable(node)
    reply = delete(node, GROUP, "idle", "idle", "nobody")
    assert {each.group_id: each.error_code for each in reply.results} == {
        GROUP: ErrorCode.NON_EMPTY_GROUP,
        "idle": NONE,
        "nobody": ErrorCode.GROUP_ID_NOT_FOUND,
    }
    assert delete(node).results == []
    assert [group.group_id for group in list_all(node).groups] == [GROUP]


# -- transactions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(6))
def test_the_transaction_coordinator_is_asked_once_per_transaction(version: int) -> None:
    node = GroupNode().begin()
    commit_in_transaction(node, {0: 6}, version)
    commit_in_transaction(node, {1: 7}, version)
    (asked,) = node.transactions.asked
    assert asked.name == (CONSUMER_OFFSETS_TOPIC, index_of(node))
    assert asked[1:] == ("etl", 4000, 1, version >= 5)
    node.end_transaction(GROUP, 4000, 1, commit=True)
    commit_in_transaction(node, {0: 8}, version)
    assert len(node.transactions.asked) == 2


@pytest.mark.parametrize(
    ("said", "heard"),
    [
        (ErrorCode.NETWORK_EXCEPTION, LOADING),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, LOADING),
        (ErrorCode.NOT_ENOUGH_REPLICAS, NOT_AVAILABLE),
        (ErrorCode.REQUEST_TIMED_OUT, NOT_AVAILABLE),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, NOT_AVAILABLE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, NOT_COORDINATOR),
        (ErrorCode.KAFKA_STORAGE_ERROR, NOT_COORDINATOR),
        (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.CONCURRENT_TRANSACTIONS),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.TRANSACTION_ABORTABLE),
    ],
)
def test_errors_of_the_transaction_coordinator_are_mapped_to_group_errors(
    node: GroupNode, said: ErrorCode, heard: ErrorCode
) -> None:
    node.transactions.error = said
    assert errors(commit_in_transaction(node, {0: 6})) == [heard]
    assert offsets(fetch(node, [0], require_stable=True)) == [-1]


def test_old_versions_get_no_abortable_error(node: GroupNode) -> None:
    node.transactions.error = ErrorCode.TRANSACTION_ABORTABLE
    assert errors(commit_in_transaction(node, {0: 6}, 3)) == [ErrorCode.INVALID_TXN_STATE]
    assert errors(commit_in_transaction(node, {0: 6}, 4)) == [ErrorCode.TRANSACTION_ABORTABLE]


def test_a_marker_during_verification_leaves_no_hanging_offsets(node: GroupNode) -> None:
    node.transactions.answers_later = True
    waiting = commit_in_transaction(node, {0: 6}, 4)
    assert waiting.holds_followers
    node.end_transaction(GROUP, 4000, 1, commit=False)
    node.transactions.waiting.pop()(NONE)
    assert errors(waiting.reply) == [ErrorCode.INVALID_TXN_STATE]
    assert offsets(fetch(node, [0], require_stable=True)) == [-1]


def test_two_first_commits_of_a_transaction_may_wait_for_the_same_verification() -> None:
    node = GroupNode().begin()
    node.transactions.answers_later = True
    first = commit_in_transaction(node, {0: 6})
    second = commit_in_transaction(node, {1: 7})
    for answer in node.transactions.waiting:
        answer(NONE)
    assert errors(first.reply) == errors(second.reply) == [NONE]


def test_the_member_is_checked_after_the_verification(node: GroupNode) -> None:
    """A member may be fenced during the verification (KAFKA-15784)."""
    member_id = stable(node)
    node.transactions.answers_later = True
    waiting = commit_in_transaction(node, {0: 6}, member_id=member_id, generation_id=1)
    leave(node, member_id)
    node.transactions.waiting.pop()(NONE)
    assert errors(waiting.reply) == [ErrorCode.UNKNOWN_MEMBER_ID]


def test_a_partition_unloaded_during_verification_accepts_nothing(node: GroupNode) -> None:
    node.transactions.answers_later = True
    waiting = commit_in_transaction(node, {0: 6})
    node.groups.unload(index_of(node))
    node.transactions.waiting.pop()(NONE)
    assert errors(waiting.reply) == [NOT_COORDINATOR]


def test_a_producer_fenced_by_a_marker_gets_an_error(node: GroupNode) -> None:
    commit_in_transaction(node, {0: 6})
    node.end_transaction(GROUP, 4000, 2, commit=False)
    reply = commit_in_transaction(node, {0: 7})
    assert errors(reply) == [ErrorCode.INVALID_PRODUCER_EPOCH]
    assert len(node.transactions.asked) == 1


def test_a_transactional_commit_is_acknowledged_when_it_is_durable() -> None:
    node = GroupNode(FSYNC).begin()
    node.sync()
    waiting = commit_in_transaction(node, {0: 6})
    assert not waiting.answered
    node.sync()
    assert errors(waiting.reply) == [NONE]
