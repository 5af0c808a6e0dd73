"""Creating and deleting topics, partitions and records, in every supported version."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import TopicPartition
from fencepost.wire.apis import API, ApiKey
from fencepost.wire.forms.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from fencepost.wire.forms.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from fencepost.wire.forms.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from fencepost.wire.forms.delete_topics import DeleteTopicsRequest, DeleteTopicState
from fencepost.wire.forms.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from fencepost.wire.forms.elect_leaders import ElectLeadersRequest, TopicPartitions
from tests.broker.controller.topics_stage import Deny, StubNode

pytestmark = pytest.mark.interpreted


def versions(api: ApiKey) -> range:
    return range(API[api].min_version, API[api].max_version + 1)


# -- CreateTopics


def create(
    node: StubNode, *topics: CreatableTopic, version: int = 7, validate_only: bool = False
) -> Any:
    request = CreateTopicsRequest(topics=list(topics), validate_only=validate_only)
    return node.ask(ApiKey.CREATE_TOPICS, request, version).topics


def topic(
    name: str = "orders",
    partitions: int = -1,
    copies: int = -1,
    assignments: dict[int, list[int]] | None = None,
    **settings: str | None,
) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=copies,
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=nodes)
            for index, nodes in (assignments or {}).items()
        ],
        configs=[
            CreatableTopicConfig(name=key.replace("_", "."), value=value)
            for key, value in settings.items()
        ],
    )


@pytest.mark.parametrize("version", versions(ApiKey.CREATE_TOPICS))
def test_a_topic_is_created(node: StubNode, version: int) -> None:
    (result,) = create(node, topic(partitions=3, copies=1, retention_ms="5"), version=version)
    assert (result.name, result.error_code, result.error_message) == ("orders", 0, None)
    assert node.partition("orders", 2) is not None
    if version >= 5:
        assert (result.num_partitions, result.replication_factor) == (3, 1)
        settings = {each.name: each for each in result.configs}
        assert len(settings) == 33
        assert (settings["retention.ms"].value, settings["retention.ms"].config_source) == ("5", 1)
        assert settings["cleanup.policy"].config_source == 5
    if version >= 7:
        assert result.topic_id == node.metadata.topic_id("orders")


@pytest.mark.parametrize("version", versions(ApiKey.CREATE_TOPICS))
def test_a_refused_topic_gets_an_error_message(node: StubNode, version: int) -> None:
    (result,) = create(node, topic("a b"), version=version)
    assert result.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert "'a b'" in result.error_message
    if version >= 5:
        assert (result.num_partitions, result.replication_factor, result.configs) == (-1, -1, [])


@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        (topic(partitions=0), ErrorCode.INVALID_PARTITIONS),
        (topic(copies=2), ErrorCode.INVALID_REPLICATION_FACTOR),
        (topic(assignments={0: [1], 2: [1]}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (topic(partitions=1, assignments={0: [1]}), ErrorCode.INVALID_REQUEST),
        (topic(nonsense="1"), ErrorCode.INVALID_CONFIG),
        (topic(retention_ms="abc"), ErrorCode.INVALID_CONFIG),
        (topic(retention_ms=None), ErrorCode.INVALID_CONFIG),
        (topic("__cluster_metadata"), ErrorCode.INVALID_REQUEST),
        (topic(partitions=10_001), ErrorCode.POLICY_VIOLATION),
    ],
)
def test_an_invalid_topic_gets_kafkas_error(wanted: CreatableTopic, error: ErrorCode) -> None:
    node = StubNode().start()
    for validate_only in (True, False):
        (result,) = create(node, wanted, validate_only=validate_only)
        assert result.error_code == error
        assert result.error_message
    assert node.metadata.topics == {}


def test_a_topic_listed_twice_is_not_created(node: StubNode) -> None:
    results = create(node, topic("twice"), topic("once"), topic("twice"))
    assert [(r.name, r.error_code) for r in results] == [
        ("twice", ErrorCode.INVALID_REQUEST),
        ("once", ErrorCode.NONE),
    ]
    assert list(node.metadata.topics) == ["once"]


def test_validation_gets_the_same_reply_as_creation(node: StubNode) -> None:
    (result,) = create(node, topic(partitions=4, retention_ms="9"), validate_only=True)
    assert (result.error_code, result.num_partitions, len(result.configs)) == (0, 4, 33)
    assert node.metadata.topics == {}


def test_creating_a_topic_needs_permission() -> None:
    denied = Deny(("CREATE", "CLUSTER", "kafka-cluster"), ("CREATE", "TOPIC", "orders"))
    node = StubNode(authorizer=denied).start()
    results = create(node, topic("orders"), topic("mine"))
    assert [r.error_code for r in results] == [ErrorCode.TOPIC_AUTHORIZATION_FAILED, 0]


def test_settings_of_a_new_topic_are_hidden_without_permission() -> None:
    node = StubNode(authorizer=Deny(("DESCRIBE_CONFIGS", "TOPIC", "orders"))).start()
    (result,) = create(node, topic("orders"))
    assert (result.error_code, result.configs) == (0, None)
    assert result.topic_config_error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert (result.num_partitions, result.replication_factor) == (-1, -1)


# -- DeleteTopics


def delete(node: StubNode, *names: str, version: int = 6) -> Any:
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name) for name in names])
    return node.ask(ApiKey.DELETE_TOPICS, request, version).responses


@pytest.mark.parametrize("version", versions(ApiKey.DELETE_TOPICS))
def test_topics_are_deleted_by_name(node: StubNode, version: int) -> None:
    node.made("orders")
    topic_id = node.metadata.topic_id("orders")
    deleted, absent = delete(node, "orders", "absent", version=version)
    assert (deleted.name, deleted.error_code) == ("orders", ErrorCode.NONE)
    assert absent.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if version >= 5:
        assert (deleted.error_message, bool(absent.error_message)) == (None, True)
    if version >= 6:
        assert deleted.topic_id == topic_id
    assert node.metadata.topics == {}


def test_topics_are_deleted_by_id(node: StubNode) -> None:
    node.made("orders")
    known = node.metadata.topic_id("orders") or b""
    states = [DeleteTopicState(name=None, topic_id=each) for each in (known, b"?" * 16)]
    request = DeleteTopicsRequest(topics=states)
    results = node.ask(ApiKey.DELETE_TOPICS, request).responses
    by_id = {result.topic_id: result for result in results}
    assert (by_id[known].name, by_id[known].error_code) == ("orders", 0)
    assert by_id[b"?" * 16].error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert by_id[b"?" * 16].name is None


def test_a_topic_is_deleted_by_either_name_or_id_and_listed_once(node: StubNode) -> None:
    node.made("orders")
    known = node.metadata.topic_id("orders") or b""
    for states in (
        [DeleteTopicState(name="orders", topic_id=known)],
        [DeleteTopicState(name=None)],
        [DeleteTopicState(name="orders"), DeleteTopicState(name=None, topic_id=known)],
        [DeleteTopicState(name="orders"), DeleteTopicState(name="orders")],
    ):
        request = DeleteTopicsRequest(topics=states)
        (result,) = node.ask(ApiKey.DELETE_TOPICS, request).responses
        assert result.error_code == ErrorCode.INVALID_REQUEST
        if len(states) == 2 and states[1].name is None:
            assert (result.name, result.topic_id) == ("orders", known)
    assert "orders" in node.metadata.topics


@pytest.mark.parametrize(
    ("version", "error"), [(2, ErrorCode.INVALID_REQUEST), (3, ErrorCode.TOPIC_DELETION_DISABLED)]
)
def test_deletion_can_be_disabled(version: int, error: ErrorCode) -> None:
    node = StubNode({"delete.topic.enable": "false"}).start()
    node.made("orders")
    (result,) = delete(node, "orders", version=version)
    assert result.error_code == error
    assert "orders" in node.metadata.topics


def test_deleting_a_topic_needs_permission() -> None:
    denied = Deny(
        ("DELETE", "CLUSTER", "kafka-cluster"),
        ("DELETE", "TOPIC", "seen"),
        ("DESCRIBE", "TOPIC", "unseen"),
        ("DESCRIBE", "TOPIC", "absent"),
    )
    node = StubNode(authorizer=denied).start()
    node.made("seen")
    node.made("unseen")
    found = {topic.name: topic for topic in delete(node, "seen", "unseen", "absent")}
    for name in ("seen", "unseen", "absent"):
        assert found[name].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert found["unseen"].error_message == found["absent"].error_message
    assert len(node.metadata.topics) == 2


def test_a_right_to_delete_on_the_cluster_deletes_any_topic() -> None:
    node = StubNode(
        authorizer=Deny(("DELETE", "TOPIC", "seen"), ("DESCRIBE", "TOPIC", "seen"))
    ).start()
    node.made("seen")
    (seen,) = delete(node, "seen")
    assert seen.error_code == ErrorCode.NONE


# -- CreatePartitions


def add_partitions(
    node: StubNode,
    *topics: tuple[str, int, list[list[int]] | None],
    version: int = 3,
    validate_only: bool = False,
) -> Any:
    request = CreatePartitionsRequest(
        topics=[
            CreatePartitionsTopic(
                name=name,
                count=count,
                assignments=None
                if nodes is None
                else [CreatePartitionsAssignment(broker_ids=each) for each in nodes],
            )
            for name, count, nodes in topics
        ],
        validate_only=validate_only,
    )
    return node.ask(ApiKey.CREATE_PARTITIONS, request, version).results


@pytest.mark.parametrize("version", versions(ApiKey.CREATE_PARTITIONS))
def test_partitions_are_added(node: StubNode, version: int) -> None:
    node.made("orders", 2)
    (result,) = add_partitions(node, ("orders", 4, None), version=version)
    assert (result.name, result.error_code, result.error_message) == ("orders", 0, None)
    assert node.partition("orders", 3) is not None


@pytest.mark.parametrize(
    ("name", "count", "nodes", "error"),
    [
        ("orders", 2, None, ErrorCode.INVALID_PARTITIONS),
        ("absent", 3, None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("orders", 3, [[2]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("orders", 3, [], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("orders", 200_000, None, ErrorCode.POLICY_VIOLATION),
    ],
)
def test_partitions_that_cannot_be_added_are_refused(
    node: StubNode, name: str, count: int, nodes: list[list[int]] | None, error: ErrorCode
) -> None:
    node.made("orders", 2)
    for validate_only in (True, False):
        (result,) = add_partitions(node, (name, count, nodes), validate_only=validate_only)
        assert result.error_code == error
        assert result.error_message
    assert node.metadata.partition_count("orders") == 2


def test_a_topic_listed_twice_gets_no_partitions(node: StubNode) -> None:
    node.made("orders", 2)
    (result,) = add_partitions(node, ("orders", 3, None), ("orders", 4, None))
    assert result.error_code == ErrorCode.INVALID_REQUEST
    assert node.metadata.partition_count("orders") == 2


def test_adding_partitions_needs_permission() -> None:
    node = StubNode(authorizer=Deny(("ALTER", "TOPIC", "orders"))).start()
    node.made("orders")
    (result,) = add_partitions(node, ("orders", 3, None))
    assert result.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


# -- DeleteRecords


def delete_records(
    node: StubNode, offset: int, name: str = "orders", index: int = 0, version: int = 2
) -> tuple[int, int]:
    request = DeleteRecordsRequest(
        topics=[
            DeleteRecordsTopic(
                name=name, partitions=[DeleteRecordsPartition(partition_index=index, offset=offset)]
            )
        ]
    )
    (result,) = node.ask(ApiKey.DELETE_RECORDS, request, version).topics
    (partition,) = result.partitions
    assert (result.name, partition.partition_index) == (name, index)
    return partition.error_code, partition.low_watermark


@pytest.mark.parametrize("version", versions(ApiKey.DELETE_RECORDS))
def test_records_are_deleted_up_to_an_offset(node: StubNode, version: int) -> None:
    node.made("orders")
    partition = node.fill("orders", 10)
    assert delete_records(node, 3, version=version) == (0, 3)
    assert delete_records(node, 1, version=version) == (0, 3)
    assert delete_records(node, -1, version=version) == (0, 10)
    assert partition.log_start_offset == 10


@pytest.mark.parametrize("offset", [11, -2])
def test_records_beyond_the_end_cannot_be_deleted(node: StubNode, offset: int) -> None:
    node.made("orders")
    node.fill("orders", 10)
    assert delete_records(node, offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)


@pytest.mark.parametrize(
    ("policy", "error"),
    [
        ("compact", ErrorCode.POLICY_VIOLATION),
        ("compact,delete", ErrorCode.NONE),
        ("delete", ErrorCode.NONE),
        ("", ErrorCode.NONE),
    ],
)
def test_records_of_a_compacted_topic_cannot_be_deleted(policy: str, error: ErrorCode) -> None:
    node = StubNode().start()
    node.made("orders", cleanup_policy=policy)
    node.fill("orders", 2)
    assert delete_records(node, 1)[0] == error


def test_records_of_an_internal_topic_cannot_be_deleted(node: StubNode) -> None:
    node.internal_topics.ensure("__consumer_offsets")
    assert delete_records(node, 0, "__consumer_offsets") == (ErrorCode.INVALID_TOPIC_EXCEPTION, -1)


def test_records_of_a_missing_or_forbidden_partition_cannot_be_deleted() -> None:
    node = StubNode(authorizer=Deny(("DELETE", "TOPIC", "secret"))).start()
    node.made("orders")
    assert delete_records(node, 0, "absent") == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
    assert delete_records(node, 0, index=7) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
    assert delete_records(node, 0, "secret") == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, -1)
    node.partitions.by_name.clear()
    assert delete_records(node, 0) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
    node.partitions.offline.add(TopicPartition("orders", 0))
    assert delete_records(node, 0) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)


# -- DescribeLogDirs


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_LOG_DIRS))
def test_the_data_directory_is_described(node: StubNode, version: int) -> None:
    node.made("orders", 2)
    node.made("other")
    partition = node.fill("orders", 10, 1)
    asked = [
        DescribableLogDirTopic(topic="orders", partitions=[1, 1, 9]),
        DescribableLogDirTopic(topic="absent", partitions=[0]),
    ]
    reply = node.ask(ApiKey.DESCRIBE_LOG_DIRS, DescribeLogDirsRequest(topics=asked), version)
    (result,) = reply.results
    assert (result.error_code, result.log_dir) == (0, "/data")
    (described,) = result.topics
    (log,) = described.partitions
    assert (described.name, log.partition_index, log.offset_lag) == ("orders", 1, 0)
    assert log.partition_size == partition.log.size_bytes > 0
    if version >= 4:
        assert (result.total_bytes, result.usable_bytes) == node.disk.space("/data")
    everything = node.ask(ApiKey.DESCRIBE_LOG_DIRS, DescribeLogDirsRequest(topics=None), version)
    assert {t.name: len(t.partitions) for t in everything.results[0].topics} == {
        "orders": 2,
        "other": 1,
    }
    nothing = node.ask(ApiKey.DESCRIBE_LOG_DIRS, DescribeLogDirsRequest(topics=[]), version)
    assert nothing.results[0].topics == []


def test_describing_the_data_directory_needs_permission() -> None:
    node = StubNode(authorizer=Deny(("DESCRIBE", "CLUSTER", "kafka-cluster"))).start()
    reply = node.ask(ApiKey.DESCRIBE_LOG_DIRS, DescribeLogDirsRequest(topics=None))
    assert (reply.error_code, reply.results) == (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, [])


# -- ElectLeaders


def test_an_unknown_election_type_is_refused(node: StubNode) -> None:
    node.made("orders")
    asked = [TopicPartitions(topic="orders", partitions=[0])]
    request = ElectLeadersRequest(election_type=7, topic_partitions=asked)
    reply = node.ask(ApiKey.ELECT_LEADERS, request)
    assert reply.error_code == ErrorCode.INVALID_REQUEST
    (result,) = reply.replica_election_results
    assert result.partition_result[0].error_code == ErrorCode.INVALID_REQUEST
