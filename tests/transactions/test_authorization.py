"""Requests without permission: refused in the right place, with the right code and no effect."""

from __future__ import annotations

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.describe_producers import DescribeProducersRequest, TopicRequest
from fencepost.wire.forms.init_producer_id import InitProducerIdRequest
from fencepost.wire.forms.list_transactions import ListTransactionsRequest
from tests.broker.node_stage import Stage
from tests.broker.requests import create_topic, fetch
from tests.transactions.protocol import TV1, Protocol
from tests.transactions.requests import add_request, marker_request, transaction_of
from tests.transactions.wire import (
    GROUP,
    NONE,
    WireProducer,
    await_coordinator,
    committed_offset,
    describe,
    find_coordinator,
    logged_states,
    state_of,
    values,
)

NO_TOPIC = ErrorCode.TOPIC_AUTHORIZATION_FAILED
NO_GROUP = ErrorCode.GROUP_AUTHORIZATION_FAILED
NO_CLUSTER = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
NO_ID = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


class Denying:
    """Allows everything that is not denied, and records what was checked."""

    def __init__(self) -> None:
        self.denied: set[tuple[str, str, str]] = set()
        self.asked: list[tuple[str, str, str]] = []

    def deny(self, operation: str, kind: str, name: str) -> None:
        self.denied.add((operation, kind, name))

    def authorize(
        self, principal: str, host: str, operation: str, resource_type: str, resource_name: str
    ) -> bool:
        question = (operation, resource_type, resource_name)
        self.asked.append(question)
        return question not in self.denied

    def authorize_by_type(
        self, principal: str, host: str, operation: str, resource_type: str
    ) -> bool:
        return (operation, resource_type, "any") not in self.denied


@pytest.fixture
def guard(stage: Stage) -> Denying:
    create_topic(stage, "t", 2)
    create_topic(stage, "secret")
    await_coordinator(stage, "g", GROUP)
    stage.node.services.authorizer = guard = Denying()
    return guard


@pytest.fixture
def one(stage: Stage, guard: Denying, protocol: Protocol) -> WireProducer:
    """A producer with an open transaction."""
    made = WireProducer(stage, "a", protocol).initialise()
    made.send("t", b"v")
    return made


def finish(stage: Stage, guard: Denying, one: WireProducer) -> None:
    """Once everything is allowed again, the transaction is unchanged."""
    guard.denied.clear()
    one.commit()
    assert values(stage, "t") == [b"v"]
    assert committed_offset(stage, "g", "t") == -1


def test_every_request_needs_permission_for_the_transactional_id(
    stage: Stage, guard: Denying, one: WireProducer, protocol: Protocol
) -> None:
    guard.deny("WRITE", "TRANSACTIONAL_ID", "a")
    before = logged_states(stage, "a")
    assert one.twin().init() == NO_ID
    assert one.add(("t", 1), ("nowhere", 0)) == {("t", 1): NO_ID, ("nowhere", 0): NO_ID}
    assert one.add_offsets("g") == NO_ID
    assert one.commit_offsets("g", {("t", 0): 1, ("nowhere", 0): 1}) == {
        ("t", 0): NO_ID,
        ("nowhere", 0): NO_ID,
    }
    assert one.produce("t", b"denied").error_code == NO_ID
    assert one.end(commit=True) == NO_ID
    assert logged_states(stage, "a") == before
    finish(stage, guard, one)


def test_committing_offsets_needs_permission_for_the_group(
    stage: Stage, guard: Denying, one: WireProducer, protocol: Protocol
) -> None:
    guard.deny("READ", "GROUP", "g")
    if protocol is TV1:
        assert one.add_offsets("g") == NO_GROUP
    told = one.commit_offsets("g", {("t", 0): 1, ("nowhere", 0): 1})
    assert set(told.values()) == {NO_GROUP}
    finish(stage, guard, one)


def test_case_23_writing_needs_permission_for_the_topic(
    stage: Stage, guard: Denying, one: WireProducer, protocol: Protocol
) -> None:
    guard.deny("WRITE", "TOPIC", "secret")
    added = one.add(("secret", 0), ("t", 1))
    assert added == {("secret", 0): NO_TOPIC, ("t", 1): ErrorCode.OPERATION_NOT_ATTEMPTED}
    assert one.produce("secret", b"denied").error_code == NO_TOPIC
    assert {topic.topic for topic in describe(stage, "a").topics} == {"t"}
    finish(stage, guard, one)


def test_committing_offsets_needs_permission_for_the_topic(
    stage: Stage, guard: Denying, one: WireProducer
) -> None:
    guard.deny("READ", "TOPIC", "secret")
    if one.protocol is TV1:
        assert one.add_offsets("g") == NONE
    told = one.commit_offsets("g", {("secret", 0): 1})
    assert told == {("secret", 0): NO_TOPIC}
    finish(stage, guard, one)
    guard.deny("READ", "TOPIC", "secret")
    assert fetch(stage, "secret").error_code == NO_TOPIC


def test_an_idempotent_producer_needs_permission_for_the_cluster_or_any_topic(
    stage: Stage, guard: Denying
) -> None:
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
    guard.deny("IDEMPOTENT_WRITE", "CLUSTER", "kafka-cluster")
    assert stage.call(ApiKey.INIT_PRODUCER_ID, 5, request).error_code == NONE, (
        "permission for any topic is enough"
    )
    guard.deny("WRITE", "TOPIC", "any")
    assert stage.call(ApiKey.INIT_PRODUCER_ID, 5, request).error_code == NO_CLUSTER


@pytest.mark.parametrize("version", [4, 5])
def test_the_add_versions_for_brokers_need_cluster_permission(
    stage: Stage, guard: Denying, one: WireProducer, version: int
) -> None:
    guard.deny("CLUSTER_ACTION", "CLUSTER", "kafka-cluster")
    request = add_request(transaction_of(one, {"t": [1]}))
    reply = stage.call(ApiKey.ADD_PARTITIONS_TO_TXN, version, request)
    assert (reply.error_code, reply.results_by_transaction) == (NO_CLUSTER, [])
    finish(stage, guard, one)


@pytest.mark.parametrize("version", [1, 2])
def test_writing_markers_needs_alter_or_cluster_action_permission(
    stage: Stage, guard: Denying, one: WireProducer, version: int
) -> None:
    request = marker_request(one, {"t": [0, 1]}, commit=False)
    for operation in ("ALTER", "CLUSTER_ACTION"):
        guard.deny(operation, "CLUSTER", "kafka-cluster")
    reply = stage.call(ApiKey.WRITE_TXN_MARKERS, version, request)
    errors = [p.error_code for p in reply.markers[0].topics[0].partitions]
    assert errors == [NO_CLUSTER, NO_CLUSTER]
    assert state_of(stage, "a") == "Ongoing"
    finish(stage, guard, one)


@pytest.mark.parametrize("operation", ["ALTER", "CLUSTER_ACTION"])
def test_either_permission_is_enough_to_write_markers(
    stage: Stage, guard: Denying, one: WireProducer, operation: str
) -> None:
    guard.deny(operation, "CLUSTER", "kafka-cluster")
    request = marker_request(one, {"t": [0]}, commit=False)
    reply = stage.call(ApiKey.WRITE_TXN_MARKERS, 1, request)
    assert reply.markers[0].topics[0].partitions[0].error_code == NONE


def test_finding_a_coordinator_needs_permission_to_describe(stage: Stage, guard: Denying) -> None:
    guard.deny("DESCRIBE", "TRANSACTIONAL_ID", "a")
    guard.deny("DESCRIBE", "GROUP", "g")
    assert find_coordinator(stage, "a").error_code == NO_ID
    assert find_coordinator(stage, "g", GROUP).error_code == NO_GROUP


def test_topics_and_ids_without_describe_permission_are_hidden(
    stage: Stage, guard: Denying, one: WireProducer
) -> None:
    one.send("secret", b"v")
    guard.deny("DESCRIBE", "TOPIC", "secret")
    assert {topic.topic for topic in describe(stage, "a").topics} == {"t"}
    guard.deny("READ", "TOPIC", "secret")
    request = DescribeProducersRequest(topics=[TopicRequest(name="secret", partition_indexes=[0])])
    (told,) = stage.call(ApiKey.DESCRIBE_PRODUCERS, 0, request).topics[0].partitions
    assert told.error_code == NO_TOPIC
    guard.deny("DESCRIBE", "TRANSACTIONAL_ID", "a")
    assert describe(stage, "a").error_code == NO_ID
    listed = stage.call(ApiKey.LIST_TRANSACTIONS, 2, ListTransactionsRequest())
    assert listed.transaction_states == []


def test_the_id_is_checked_before_the_group_and_the_group_before_the_topics(
    stage: Stage, guard: Denying, one: WireProducer
) -> None:
    guard.deny("WRITE", "TRANSACTIONAL_ID", "a")
    guard.deny("READ", "GROUP", "g")
    guard.deny("READ", "TOPIC", "t")
    assert one.add_offsets("g") == NO_ID
    assert one.commit_offsets("g", {("t", 0): 1}) == {("t", 0): NO_ID}
    guard.denied.discard(("WRITE", "TRANSACTIONAL_ID", "a"))
    assert one.commit_offsets("g", {("t", 0): 1}) == {("t", 0): NO_GROUP}
    guard.denied.discard(("READ", "GROUP", "g"))
    assert one.commit_offsets("g", {("t", 0): 1}) == {("t", 0): NO_TOPIC}


def test_authorization_is_checked_before_everything_else_in_a_request(
    stage: Stage, guard: Denying
) -> None:
    guard.deny("WRITE", "TRANSACTIONAL_ID", "")
    nobody = WireProducer(stage, "", TV1)
    assert nobody.init(timeout_ms=0) == NO_ID
    assert nobody.end(commit=True) == NO_ID


def test_a_transaction_checks_the_same_permissions_as_in_kafka(
    stage: Stage, guard: Denying, one: WireProducer
) -> None:
    one.send_offsets("g", {("t", 0): 1})
    one.commit()
    writing = {question for question in guard.asked if question[0] in ("WRITE", "READ")}
    assert writing == {
        ("WRITE", "TRANSACTIONAL_ID", "a"),
        ("WRITE", "TOPIC", "t"),
        ("READ", "GROUP", "g"),
        ("READ", "TOPIC", "t"),
    }
