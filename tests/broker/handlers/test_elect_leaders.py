"""Requests about leaders, replicas and settings of several brokers, as a client sees them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.broker import turns
from fencepost.broker.handlers import (
    alter_partition_reassignments,
    create_partitions,
    create_topics,
    delete_topics,
    elect_leaders,
)
from fencepost.broker.settings.changes import LOGGER_RESOURCE, alters_loggers
from fencepost.broker.waiting import Parked
from fencepost.records.metadata_log import BROKER_RESOURCE, TOPIC_RESOURCE
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from fencepost.wire.forms.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from fencepost.wire.forms.create_topics import CreatableTopic, CreateTopicsRequest
from fencepost.wire.forms.delete_topics import DeleteTopicsRequest, DeleteTopicState
from fencepost.wire.forms.elect_leaders import ElectLeadersRequest, TopicPartitions
from fencepost.wire.forms.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from fencepost.wire.forms.list_partition_reassignments import ListPartitionReassignmentsRequest
from tests.broker.controller.cluster_stage import ClusterStage
from tests.broker.controller.topics_stage import Deny, StubNode

if TYPE_CHECKING:
    from collections.abc import Sequence

ALTER_CLUSTER = ("ALTER", "CLUSTER", "kafka-cluster")
ELECT, REASSIGN = ApiKey.ELECT_LEADERS, ApiKey.ALTER_PARTITION_REASSIGNMENTS
SECONDS_30 = 30_000

pytestmark = pytest.mark.interpreted  # A runtime that the test drives.


def three(*, authorizer: Any = None) -> ClusterStage:
    return ClusterStage(1, 2, 3, authorizer=authorizer).start()


def election(*indexes: int, topic: str = "orders", kind: int = 0) -> ElectLeadersRequest:
    named = [TopicPartitions(topic=topic, partitions=list(indexes))] if indexes else None
    return ElectLeadersRequest(election_type=kind, topic_partitions=named, timeout_ms=SECONDS_30)


def reassignment(
    replicas: dict[int, Sequence[int] | None], topic: str = "orders", **fields: Any
) -> AlterPartitionReassignmentsRequest:
    partitions = [
        ReassignablePartition(partition_index=index, replicas=None if nodes is None else [*nodes])
        for index, nodes in replicas.items()
    ]
    return AlterPartitionReassignmentsRequest(
        topics=[ReassignableTopic(name=topic, partitions=partitions)],
        timeout_ms=SECONDS_30,
        **fields,
    )


def elected(reply: Any) -> dict[tuple[str, int], int]:
    return {
        (topic.topic, each.partition_id): each.error_code
        for topic in reply.replica_election_results
        for each in topic.partition_result
    }


def reassigned(reply: Any) -> dict[tuple[str, int], int]:
    return {
        (topic.name, each.partition_index): each.error_code
        for topic in reply.responses
        for each in topic.partitions
    }


# -- ElectLeaders


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_client_elects_preferred_leaders(version: int) -> None:
    stage = three()
    stage.assign("orders", [1, 2], [2, 1])
    stage.ask(REASSIGN, reassignment({0: [2, 1]}))
    reply = stage.ask(ELECT, election(0, 1, 7), version)
    assert reply.error_code == ErrorCode.NONE
    assert elected(reply) == {
        ("orders", 0): ErrorCode.NONE,
        ("orders", 1): ErrorCode.ELECTION_NOT_NEEDED,
        ("orders", 7): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert stage.leaders("orders") == [2, 2]


def test_an_election_of_all_lists_the_partitions_by_topic() -> None:
    stage = three()
    stage.assign("orders", [1, 2], [2, 1], [1, 2])
    stage.assign("refunds", [1, 3])
    stage.ask(REASSIGN, reassignment({0: [2, 1], 2: [2, 1]}))
    stage.ask(REASSIGN, reassignment({0: [3, 1]}, "refunds"))
    reply = stage.ask(ELECT, election())
    assert [topic.topic for topic in reply.replica_election_results] == ["orders", "refunds"]
    assert elected(reply) == dict.fromkeys(
        [("orders", 0), ("orders", 2), ("refunds", 0)], ErrorCode.NONE
    )
    again = stage.ask(ELECT, election())
    assert elected(again) == {}
    assert len(again.replica_election_results) == 2, "as in Kafka, every topic is listed"


def test_a_partition_that_is_named_twice_has_two_results() -> None:
    stage = three()
    stage.assign("orders", [1, 2])
    stage.ask(REASSIGN, reassignment({0: [2, 1]}))
    (topic,) = stage.ask(ELECT, election(0, 0)).replica_election_results
    assert [each.error_code for each in topic.partition_result] == [ErrorCode.NONE] * 2
    assert stage.state_of("orders").leader_epoch == 1


# -- AlterPartitionReassignments and ListPartitionReassignments


@pytest.mark.parametrize("version", [0, 1])
def test_a_client_gives_partitions_other_replicas(version: int) -> None:
    stage = three()
    stage.assign("orders", [1], [1], [1])
    request = reassignment({0: [2], 1: [3, 2], 2: [9], 7: [1]})
    reply = stage.ask(REASSIGN, request, version)
    assert (reply.error_code, reply.error_message) == (ErrorCode.NONE, None)
    assert reassigned(reply) == {
        ("orders", 0): ErrorCode.NONE,
        ("orders", 1): ErrorCode.NONE,
        ("orders", 2): ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ("orders", 7): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert stage.leaders("orders") == [2, 3, 1]
    listing = stage.ask(
        ApiKey.LIST_PARTITION_REASSIGNMENTS, ListPartitionReassignmentsRequest(topics=None)
    )
    assert (listing.error_code, listing.topics) == (0, []), "it is complete"


def test_a_client_can_forbid_a_change_of_the_replication_factor() -> None:
    stage = three()
    stage.assign("orders", [1], [2])
    request = reassignment({0: [2, 1], 1: [1]}, allow_replication_factor_change=False)
    reply = stage.ask(REASSIGN, request)
    assert not reply.allow_replication_factor_change
    assert reassigned(reply) == {
        ("orders", 0): ErrorCode.INVALID_REPLICATION_FACTOR,
        ("orders", 1): ErrorCode.NONE,
    }


@pytest.mark.parametrize(
    ("replicas", "error"),
    [
        ([1], ErrorCode.NONE),
        ([2], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([1, 2], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
    ],
)
def test_a_single_broker_has_one_assignment(replicas: list[int] | None, error: ErrorCode) -> None:
    node = StubNode().start()
    node.made("orders")
    end_offset = node.log.partition.log_end_offset
    reply = node.ask(REASSIGN, reassignment({0: replicas}))
    assert reassigned(reply) == {("orders", 0): error}
    assert node.log.partition.log_end_offset == end_offset


def test_leaders_and_replicas_are_changed_by_administrators_only() -> None:
    stage = three(authorizer=Deny(ALTER_CLUSTER))
    stage.assign("orders", [1])
    denied = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert stage.ask(ELECT, election(0)).error_code == denied
    reply = stage.ask(REASSIGN, reassignment({0: [2]}))
    assert (reply.error_code, reassigned(reply)) == (denied, {("orders", 0): denied})
    assert stage.leaders("orders") == [1]


# -- timeouts


@pytest.mark.parametrize(
    ("handler", "request_of_a_client", "part"),
    [
        (elect_leaders, election(0), lambda r: r.replica_election_results[0].partition_result[0]),
        (
            alter_partition_reassignments,
            reassignment({0: [3]}),
            lambda r: r.responses[0].partitions[0],
        ),
        (
            create_topics,
            CreateTopicsRequest(
                topics=[CreatableTopic(name="new", num_partitions=1, replication_factor=1)],
                timeout_ms=SECONDS_30,
            ),
            lambda r: r.topics[0],
        ),
        (
            create_partitions,
            CreatePartitionsRequest(
                topics=[CreatePartitionsTopic(name="orders", count=2, assignments=None)],
                timeout_ms=SECONDS_30,
            ),
            lambda r: r.results[0],
        ),
        (
            delete_topics,
            DeleteTopicsRequest(topics=[DeleteTopicState(name="orders")], timeout_ms=SECONDS_30),
            lambda r: r.responses[0],
        ),
    ],
    ids=["ElectLeaders", "Reassign", "CreateTopics", "CreatePartitions", "DeleteTopics"],
)
@pytest.mark.parametrize("turn_seconds", [60.0, 0.0], ids=["fast machine", "slow machine"])
def test_a_client_is_answered_in_time_though_a_broker_never_finishes(
    handler: Any,
    request_of_a_client: Any,
    part: Any,
    turn_seconds: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns, "TURN_SECONDS", turn_seconds)  # A slow machine needs more turns.
    stage = three()
    stage.assign("orders", [1, 2])
    stage.ask(REASSIGN, reassignment({0: [2, 1]}))
    stage.follower.is_held = True
    heard: list[Any] = []
    parked = handler.handle(request_of_a_client, stage.context())
    assert isinstance(parked, Parked)
    parked.when_answered(heard.append)
    assert not heard
    while not stage.runtime.timers:  # The time begins when the controller is asked.
        assert stage.turn()
    assert [timer.delay_ms for timer in stage.runtime.timers] == [SECONDS_30]
    stage.runtime.fire_timers()
    while stage.turn():
        pass
    assert [part(reply).error_code for reply in heard] == [ErrorCode.REQUEST_TIMED_OUT]
    stage.follower.finish()
    assert len(heard) == 1, "the late result is dropped"


# -- topics and settings


def test_a_client_receives_the_replication_factor_that_was_made() -> None:
    stage = three()
    wanted = [
        CreatableTopic(name="default", num_partitions=-1, replication_factor=-1),
        CreatableTopic(name="two", num_partitions=1, replication_factor=2),
        CreatableTopic(name="four", num_partitions=1, replication_factor=4),
    ]
    reply = stage.ask(
        ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics=wanted, timeout_ms=SECONDS_30)
    )
    assert [(each.error_code, each.replication_factor) for each in reply.topics] == [
        (ErrorCode.NONE, 3),
        (ErrorCode.NONE, 2),
        (ErrorCode.INVALID_REPLICATION_FACTOR, -1),
    ]


def alteration(*resources: tuple[int, str, str, str]) -> IncrementalAlterConfigsRequest:
    """Each resource is its type, its name, a setting and its value."""
    return IncrementalAlterConfigsRequest(
        resources=[
            AlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=[AlterableConfig(name=setting, config_operation=0, value=value)],
            )
            for kind, name, setting, value in resources
        ]
    )


@pytest.mark.parametrize(
    ("broker", "error"),
    [
        ("3", ErrorCode.NONE),
        ("", ErrorCode.NONE),
        ("4", ErrorCode.INVALID_REQUEST),
        ("03", ErrorCode.INVALID_REQUEST),
        ("x", ErrorCode.INVALID_REQUEST),
    ],
)
def test_the_controller_changes_the_settings_of_any_registered_broker(
    broker: str, error: ErrorCode
) -> None:
    stage = three()
    request = alteration((BROKER_RESOURCE, broker, "message.max.bytes", "5000"))
    (result,) = stage.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, request).responses
    assert result.error_code == error
    expected = {} if error else {"message.max.bytes": "5000"}
    assert stage.metadata.settings_of(BROKER_RESOURCE, broker) == expected


def test_loggers_are_changed_by_their_broker_in_a_request_of_their_own() -> None:
    stage = three()
    stage.assign("orders", [1])
    loggers = (LOGGER_RESOURCE, "1", "fencepost.broker", "WARN")
    topic = (TOPIC_RESOURCE, "orders", "retention.ms", "1000")
    assert alters_loggers(alteration(loggers))
    assert not alters_loggers(alteration(loggers, topic))
    assert not alters_loggers(alteration())
    reply = stage.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, alteration(loggers, topic))
    assert [each.error_code for each in reply.responses] == [
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NONE,
    ]
