"""DescribeGroups, ListGroups and authorization."""

from __future__ import annotations

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.coordinator.group.lifecycle import State
from fencepost.wire.apis import API, ApiKey
from tests.broker.controller.topics_stage import Deny
from tests.broker.groups.group_requests import (
    GROUP,
    NONE,
    commit,
    commit_in_transaction,
    delete_offsets,
    describe,
    errors,
    errors_of_every_request,
    fetch,
    list_all,
    offsets,
    stable,
)
from tests.broker.groups.groups_stage import GroupNode

pytestmark = pytest.mark.interpreted

# -- views -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(7))
def test_describe_groups_works_in_every_version(version: int) -> None:
    node = GroupNode().begin()
    member_id = stable(node)
    group = describe(node, GROUP, version)
    assert (group.group_state, group.protocol_type, group.protocol_data) == (
        "Stable",
        "consumer",
        "range",
    )
    (member,) = group.members
    assert (member.member_id, member.client_host) == (member_id, "/127.0.0.1")
    absent = describe(node, "nobody", version)
    assert absent.group_state == "Dead"
    assert absent.error_code == (ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else NONE)


def test_authorized_operations_are_returned_on_request() -> None:
    node = GroupNode(authorizer=Deny(("DELETE", "GROUP", GROUP))).begin()
    commit(node, {0: 5})
    assert describe(node).authorized_operations == -(2**31)
    asked = describe(node, include_authorized_operations=True)
    assert asked.authorized_operations == 1 << 3 | 1 << 8 | 1 << 10 | 1 << 11


@pytest.mark.parametrize("version", range(6))
def test_list_groups_works_in_every_version(version: int) -> None:
    node = GroupNode().begin()
    stable(node)
    commit(node, {0: 5}, group_id="idle")
    listed = {each.group_id: each for each in list_all(node, version).groups}
    assert set(listed) == {GROUP, "idle"}
    assert (listed[GROUP].group_state, listed[GROUP].group_type) == ("Stable", "classic")
    empty = list_all(node, 5, states_filter=["empty"]).groups
    assert [each.group_id for each in empty] == ["idle"]


# -- authorization ---------------------------------------------------------------------------------


def test_every_request_checks_permission_for_its_group() -> None:
    denied = Deny(
        ("READ", "GROUP", GROUP), ("DESCRIBE", "GROUP", GROUP), ("DELETE", "GROUP", GROUP)
    )
    node = GroupNode(authorizer=denied).begin()
    assert errors_of_every_request(node) == {ErrorCode.GROUP_AUTHORIZATION_FAILED}


def test_offset_fetch_v1_has_the_group_error_in_every_partition() -> None:
    node = GroupNode(authorizer=Deny(("DESCRIBE", "GROUP", GROUP))).begin()
    reply = fetch(node, [0, 1], 1)
    assert offsets(reply) == [ErrorCode.GROUP_AUTHORIZATION_FAILED] * 2


def test_committing_offsets_needs_permission_for_the_topic() -> None:
    node = GroupNode(authorizer=Deny(("READ", "TOPIC", "orders"))).begin()
    refused = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert errors(commit(node, {0: 1})) == [refused]
    assert errors(commit_in_transaction(node, {0: 1})) == [refused]
    assert offsets(fetch(node)) == []
    commit(node, {}, topics=[])
    node.made("free", 1)
    commit(node, {0: 1}, topic="free")
    assert errors(delete_offsets(node, 0)) == [refused]


def test_fetching_offsets_needs_permission_for_the_topic() -> None:
    node = GroupNode(authorizer=Deny(("DESCRIBE", "TOPIC", "orders"))).begin()
    commit(node, {0: 1})
    assert offsets(fetch(node, [0])) == [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
    assert offsets(fetch(node)) == []


def test_a_transactional_commit_needs_permission_for_its_transactional_id() -> None:
    node = GroupNode(authorizer=Deny(("WRITE", "TRANSACTIONAL_ID", "etl"))).begin()
    refused = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert errors(commit_in_transaction(node, {0: 1})) == [refused]


def test_without_cluster_permission_only_permitted_groups_are_listed() -> None:
    denied = Deny(("DESCRIBE", "CLUSTER", "kafka-cluster"), ("DESCRIBE", "GROUP", GROUP))
    node = GroupNode(authorizer=denied).begin()
    commit(node, {0: 1})
    commit(node, {0: 1}, group_id="other")
    assert [group.group_id for group in list_all(node).groups] == ["other"]


# -- the whole table -------------------------------------------------------------------------------


def test_these_tests_cover_all_versions_that_are_served() -> None:
    served = {
        ApiKey.JOIN_GROUP: (0, 9),
        ApiKey.SYNC_GROUP: (0, 5),
        ApiKey.HEARTBEAT: (0, 4),
        ApiKey.LEAVE_GROUP: (0, 5),
        ApiKey.OFFSET_COMMIT: (2, 10),
        ApiKey.OFFSET_FETCH: (1, 10),
        ApiKey.OFFSET_DELETE: (0, 0),
        ApiKey.DESCRIBE_GROUPS: (0, 6),
        ApiKey.LIST_GROUPS: (0, 5),
        ApiKey.DELETE_GROUPS: (0, 3),
        ApiKey.TXN_OFFSET_COMMIT: (0, 6),
    }
    assert {key: (API[key].min_version, API[key].max_version) for key in served} == served


def test_states_have_kafkas_names() -> None:
    assert [state.value for state in State] == [
        "Empty",
        "PreparingRebalance",
        "CompletingRebalance",
        "Stable",
        "Dead",
    ]
