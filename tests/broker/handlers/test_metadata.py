"""Metadata, DescribeCluster and DescribeTopicPartitions, in every supported version."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.broker.authorization import NOT_REQUESTED
from fencepost.broker.controller.new_topics import NewTopic
from fencepost.broker.handlers import metadata as metadata_handler
from fencepost.broker.waiting import Parked
from fencepost.coordinator.metadata.apply import apply
from fencepost.records.metadata_log import BrokerEndpoint, RegisterBrokerRecord
from fencepost.wire.apis import API, ApiKey
from fencepost.wire.forms.describe_cluster import DescribeClusterRequest
from fencepost.wire.forms.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from fencepost.wire.forms.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tests.broker.controller.topics_stage import Deny, StubNode

pytestmark = pytest.mark.interpreted

ALL_VERSIONS = range(API[ApiKey.METADATA].min_version, API[ApiKey.METADATA].max_version + 1)
ALL_TOPIC_OPERATIONS = 3576
ALL_CLUSTER_OPERATIONS = 8096


def metadata(
    node: StubNode, *names: str, version: int = 13, auto: bool = False, **more: Any
) -> Any:
    topics = [MetadataRequestTopic(name=name) for name in names]
    request = MetadataRequest(topics=topics, allow_auto_topic_creation=auto, **more)
    return node.ask(ApiKey.METADATA, request, version)


def everything(node: StubNode, version: int) -> Any:
    return node.ask(ApiKey.METADATA, MetadataRequest(topics=None), version)


@pytest.mark.parametrize("version", ALL_VERSIONS)
def test_all_topics_are_returned_with_their_leaders(version: int) -> None:
    node = StubNode({"broker.rack": "r1"}).start(host="::1", port=4711)
    node.made("b", 2)
    node.made("a", 1)
    reply = everything(node, version)
    (broker,) = reply.brokers
    assert (broker.node_id, broker.host, broker.port) == (1, "::1", 4711)
    assert {topic.name: len(topic.partitions) for topic in reply.topics} == {"a": 1, "b": 2}
    for topic in reply.topics:
        assert topic.error_code == ErrorCode.NONE
        for index, partition in enumerate(topic.partitions):
            assert partition.error_code == ErrorCode.NONE
            assert (partition.partition_index, partition.leader_id) == (index, 1)
            assert partition.replica_nodes == partition.isr_nodes == [1]
            assert partition.offline_replicas == []
            assert partition.leader_epoch == (0 if version >= 7 else -1)
        if version >= 10:
            assert topic.topic_id == node.metadata.topic_id(topic.name)
    if version >= 1:
        assert reply.controller_id == 1
        assert broker.rack == "r1"
    if version >= 2:
        assert reply.cluster_id == node.follower.cluster_id


@pytest.mark.parametrize("version", ALL_VERSIONS[1:])
def test_an_empty_list_requests_no_topic(node: StubNode, version: int) -> None:
    node.made("a")
    assert metadata(node, version=version).topics == []


@pytest.mark.parametrize("version", ALL_VERSIONS)
def test_a_requested_topic_is_created_and_returned_in_the_same_reply(version: int) -> None:
    node = StubNode({"num.partitions": "3"}).start()
    (topic,) = metadata(node, "new", auto=True, version=version).topics
    assert (topic.error_code, len(topic.partitions)) == (ErrorCode.NONE, 3)
    assert node.partition("new", 2) is not None


def test_in_fsync_mode_the_reply_waits_for_the_new_topic() -> None:
    from fencepost.broker.handlers import metadata as handler

    node = StubNode({"durability": "fsync"}).start()
    request = MetadataRequest(topics=[MetadataRequestTopic(name="new")])
    parked = handler.handle(request, node.context(13))
    assert isinstance(parked, Parked)
    waits = not parked.answered
    assert waits
    # Requests in the meantime see a topic without a leader.
    (topic,) = metadata(node, "new").topics
    assert topic.partitions[0].error_code == ErrorCode.LEADER_NOT_AVAILABLE
    assert topic.partitions[0].leader_id == -1
    assert topic.partitions[0].offline_replicas == [1]
    node.sync()
    assert parked.answered
    (topic,) = metadata(node, "new").topics
    assert topic.partitions[0].error_code == ErrorCode.NONE


@pytest.mark.parametrize(("config", "auto"), [("true", False), ("false", True)])
def test_auto_creation_needs_both_client_and_broker_to_allow_it(config: str, auto: bool) -> None:
    node = StubNode({"auto.create.topics.enable": config}).start()
    (topic,) = metadata(node, "new", auto=auto).topics
    assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert topic.name == "new"
    assert node.metadata.topics == {}


def test_before_version_4_a_client_cannot_disable_auto_creation(node: StubNode) -> None:
    (topic,) = metadata(node, "new", auto=False, version=3).topics
    assert topic.error_code == ErrorCode.NONE


@pytest.mark.parametrize("auto", [True, False])
@pytest.mark.parametrize("name", ["", "a b", "..", "x" * 250])
def test_an_illegal_name_gets_an_error_with_and_without_auto_creation(
    node: StubNode, name: str, auto: bool
) -> None:
    (topic,) = metadata(node, name, auto=auto).topics
    assert topic.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert node.metadata.topics == {}


def test_a_colliding_name_gets_an_error(node: StubNode) -> None:
    node.made("a.b")
    (topic,) = metadata(node, "a_b", auto=True).topics
    assert topic.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_a_topic_requested_twice_is_returned_once(node: StubNode) -> None:
    assert len(metadata(node, "a", "a", auto=True).topics) == 1
    assert len(metadata(node, "a", "a").topics) == 1


def test_an_internal_topic_is_created_with_its_own_settings() -> None:
    node = StubNode({"offsets.topic.num.partitions": "4"}).start()
    (topic,) = metadata(node, "__consumer_offsets", auto=True).topics
    assert topic.is_internal
    assert len(topic.partitions) == 4


@pytest.mark.parametrize("version", [12, 13])
def test_a_topic_may_be_requested_by_its_id(node: StubNode, version: int) -> None:
    node.made("a")
    topic_id = node.metadata.topic_id("a")
    assert topic_id is not None
    unknown = bytes(15) + b"\x07"
    topics = [MetadataRequestTopic(name=None, topic_id=each) for each in (topic_id, unknown)]
    found, missing = node.ask(ApiKey.METADATA, MetadataRequest(topics=topics), version).topics
    assert (found.name, found.topic_id, len(found.partitions)) == ("a", topic_id, 1)
    assert (missing.name, missing.topic_id) == (None, unknown)
    assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_names_are_ignored_if_there_are_ids(node: StubNode) -> None:
    node.made("a")
    node.made("b")
    topic_id = node.metadata.topic_id("a")
    assert topic_id is not None
    topics = [
        MetadataRequestTopic(name="b", topic_id=topic_id),
        MetadataRequestTopic(name="b"),
        MetadataRequestTopic(name="c"),
    ]
    request = MetadataRequest(topics=topics, allow_auto_topic_creation=True)
    assert [topic.name for topic in node.ask(ApiKey.METADATA, request).topics] == ["a"]
    assert "c" not in node.metadata.topics


def test_authorized_operations_are_returned_for_a_missing_topic(node: StubNode) -> None:
    (topic,) = metadata(node, "a", include_topic_authorized_operations=True).topics
    assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert topic.topic_authorized_operations == ALL_TOPIC_OPERATIONS


@pytest.mark.parametrize("version", [10, 11])
def test_an_id_before_version_12_is_refused(node: StubNode, version: int) -> None:
    topics = [MetadataRequestTopic(name="a", topic_id=b"x" * 16)]
    (topic,) = node.ask(ApiKey.METADATA, MetadataRequest(topics=topics), version).topics
    assert topic.error_code == ErrorCode.INVALID_REQUEST
    assert node.metadata.topics == {}


@pytest.mark.parametrize("version", ALL_VERSIONS[8:])
def test_authorized_operations_are_returned_on_request(node: StubNode, version: int) -> None:
    node.made("a")
    (topic,) = metadata(node, "a", version=version).topics
    assert topic.topic_authorized_operations == NOT_REQUESTED
    more = {"include_topic_authorized_operations": True}
    if version <= 10:
        more["include_cluster_authorized_operations"] = True
    reply = metadata(node, "a", version=version, **more)
    assert reply.topics[0].topic_authorized_operations == ALL_TOPIC_OPERATIONS
    if version <= 10:
        assert reply.cluster_authorized_operations == ALL_CLUSTER_OPERATIONS
    # The cached description is not changed by that.
    (topic,) = metadata(node, "a", version=version).topics
    assert topic.topic_authorized_operations == NOT_REQUESTED


def test_topics_without_describe_permission_are_hidden() -> None:
    hidden = Deny(("DESCRIBE", "TOPIC", "secret"), ("WRITE", "TOPIC", "a"))
    node = StubNode(authorizer=hidden).start()
    node.made("secret")
    node.made("a")
    assert [topic.name for topic in everything(node, 13).topics] == ["a"]
    (topic,) = metadata(node, "secret").topics
    assert topic.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert topic.partitions == []
    by_id = MetadataRequestTopic(name=None, topic_id=node.metadata.topic_id("secret") or b"")
    (topic,) = node.ask(ApiKey.METADATA, MetadataRequest(topics=[by_id])).topics
    assert (topic.name, topic.error_code) == (None, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    (topic,) = metadata(node, "a", include_topic_authorized_operations=True).topics
    assert topic.topic_authorized_operations == ALL_TOPIC_OPERATIONS - (1 << 4)


def test_auto_creation_needs_permission() -> None:
    denied = Deny(("CREATE", "CLUSTER", "kafka-cluster"), ("CREATE", "TOPIC", "new"))
    node = StubNode(authorizer=denied).start()
    (topic,) = metadata(node, "new", auto=True).topics
    assert topic.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_auto_creation_on_a_full_disk_gets_a_storage_error(node: StubNode) -> None:
    node.disk.fill()
    (topic,) = metadata(node, "new", auto=True).topics
    assert topic.error_code == ErrorCode.KAFKA_STORAGE_ERROR


def test_every_change_is_seen_by_the_next_request(node: StubNode) -> None:
    node.made("a")
    assert len(metadata(node, "a").topics[0].partitions) == 1
    node.controller.delete(["a"], lambda _: None)
    assert metadata(node, "a").topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    node.made("a", 5)
    assert len(metadata(node, "a").topics[0].partitions) == 5
    closed = node.partitions.by_name.popitem()[0]
    node.follower.partitions_changed("a")
    partition = metadata(node, "a").topics[0].partitions[closed.partition]
    assert partition.error_code == ErrorCode.LEADER_NOT_AVAILABLE


def test_a_partition_on_another_broker_is_listed_while_that_broker_is_live(node: StubNode) -> None:
    other = RegisterBrokerRecord(
        broker_id=2, fenced=False, end_points=[BrokerEndpoint(name="PLAINTEXT", host="h", port=2)]
    )
    apply(node.metadata, other)
    node.create(NewTopic("a", assignments=[(0, [2])]))
    assert node.partition("a", 0) is None
    reply = metadata(node, "a")
    assert [broker.node_id for broker in reply.brokers] == [1, 2]
    assert reply.topics[0].partitions[0].leader_id == 2
    apply(node.metadata, RegisterBrokerRecord(broker_id=2, fenced=True))
    node.follower.partitions_changed("a")
    (partition,) = metadata(node, "a").topics[0].partitions
    assert partition.error_code == ErrorCode.LEADER_NOT_AVAILABLE


# -- DescribeCluster


@pytest.mark.parametrize("version", [0, 1, 2])
def test_the_cluster_is_described(version: int) -> None:
    node = StubNode().start(port=5)
    reply = node.ask(
        ApiKey.DESCRIBE_CLUSTER,
        DescribeClusterRequest(include_cluster_authorized_operations=True),
        version,
    )
    assert (reply.error_code, reply.cluster_id) == (ErrorCode.NONE, node.follower.cluster_id)
    assert reply.controller_id == 1
    (broker,) = reply.brokers
    assert (broker.broker_id, broker.host, broker.port) == (1, "localhost", 5)
    assert reply.cluster_authorized_operations == ALL_CLUSTER_OPERATIONS


def test_cluster_operations_are_returned_only_on_request(node: StubNode) -> None:
    reply = node.ask(ApiKey.DESCRIBE_CLUSTER, DescribeClusterRequest())
    assert reply.cluster_authorized_operations == NOT_REQUESTED


@pytest.mark.parametrize(
    ("endpoint_type", "error"),
    [(2, ErrorCode.MISMATCHED_ENDPOINT_TYPE), (9, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)],
)
def test_only_the_broker_endpoint_type_is_served(endpoint_type: int, error: ErrorCode) -> None:
    node = StubNode().start()
    request = DescribeClusterRequest(endpoint_type=endpoint_type)
    reply = node.ask(ApiKey.DESCRIBE_CLUSTER, request)
    assert reply.error_code == error
    assert reply.brokers == []


def test_fenced_brokers_are_listed_on_request(node: StubNode) -> None:
    fenced = RegisterBrokerRecord(
        broker_id=2, fenced=True, end_points=[BrokerEndpoint(name="PLAINTEXT", host="h", port=2)]
    )
    apply(node.metadata, fenced)
    shown = node.ask(ApiKey.DESCRIBE_CLUSTER, DescribeClusterRequest(include_fenced_brokers=True))
    assert [(b.broker_id, b.is_fenced) for b in shown.brokers] == [(1, False), (2, True)]
    hidden = node.ask(ApiKey.DESCRIBE_CLUSTER, DescribeClusterRequest())
    assert [b.broker_id for b in hidden.brokers] == [1]


# -- DescribeTopicPartitions


def pages(
    node: StubNode, names: list[str], limit: int = 2000, cursor: tuple[str, int] | None = None
) -> Any:
    at = None if cursor is None else Cursor(topic_name=cursor[0], partition_index=cursor[1])
    request = DescribeTopicPartitionsRequest(
        topics=[TopicRequest(name=name) for name in names],
        response_partition_limit=limit,
        cursor=at,
    )
    return node.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, request)


def shape(reply: Any) -> list[tuple[str, list[int]]]:
    return [(t.name, [p.partition_index for p in t.partitions]) for t in reply.topics]


@pytest.fixture
def three_topics() -> StubNode:
    node = StubNode().start()
    for name in ("z", "x", "y"):
        node.made(name, 3)
    return node


def test_topics_are_sorted_by_name(three_topics: StubNode) -> None:
    reply = pages(three_topics, ["z", "x", "nope", "x"])
    assert shape(reply) == [("nope", []), ("x", [0, 1, 2]), ("z", [0, 1, 2])]
    assert [t.error_code for t in reply.topics] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0, 0]
    assert reply.topics[1].topic_authorized_operations == ALL_TOPIC_OPERATIONS
    assert reply.next_cursor is None
    partition = reply.topics[1].partitions[0]
    assert (partition.leader_id, partition.leader_epoch, partition.isr_nodes) == (1, 0, [1])
    assert partition.eligible_leader_replicas == partition.last_known_elr == []


def test_without_names_all_topics_are_described(three_topics: StubNode) -> None:
    assert [name for name, _ in shape(pages(three_topics, []))] == ["x", "y", "z"]


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 8, 9, 100])
def test_pages_are_contiguous(three_topics: StubNode, limit: int) -> None:
    seen, cursor = [], None
    for _ in range(10):
        reply = pages(three_topics, [], limit, cursor)
        page = [(name, index) for name, indexes in shape(reply) for index in indexes]
        assert len(page) <= limit
        seen += page
        if reply.next_cursor is None:
            break
        cursor = (reply.next_cursor.topic_name, reply.next_cursor.partition_index)
    assert seen == [(name, index) for name in "xyz" for index in range(3)]


@pytest.mark.parametrize(
    ("limit", "cursor", "page", "following"),
    [
        (3, None, [("x", [0, 1, 2])], ("y", 0)),
        (4, None, [("x", [0, 1, 2]), ("y", [0])], ("y", 1)),
        (4, ("y", 1), [("y", [1, 2]), ("z", [0, 1])], ("z", 2)),
        (0, None, [("x", [0])], ("x", 1)),
        (-1, None, [("x", [0])], ("x", 1)),
        (9, ("z", 10), [("z", [])], None),
    ],
)
def test_a_page_ends_where_kafkas_ends(
    three_topics: StubNode,
    limit: int,
    cursor: tuple[str, int] | None,
    page: list[tuple[str, list[int]]],
    following: tuple[str, int] | None,
) -> None:
    reply = pages(three_topics, ["x", "y", "z"], limit, cursor)
    assert shape(reply) == page
    found = reply.next_cursor
    assert (None if found is None else (found.topic_name, found.partition_index)) == following


def test_the_broker_also_limits_the_page_size() -> None:
    node = StubNode({"max.request.partition.size.limit": "2"}).start()
    node.made("a", 5)
    reply = pages(node, ["a"], 100)
    assert shape(reply) == [("a", [0, 1])]


def test_a_cursor_at_a_deleted_topic_continues_with_the_next_one(three_topics: StubNode) -> None:
    reply = pages(three_topics, [], 100, ("xx", 2))
    assert [name for name, _ in shape(reply)] == ["y", "z"]


@pytest.mark.parametrize("cursor", [("y", 0), ("x", -1)])
def test_an_invalid_cursor_is_refused(three_topics: StubNode, cursor: tuple[str, int]) -> None:
    reply = pages(three_topics, ["x", "z"], 5, cursor)
    assert {t.error_code for t in reply.topics} == {ErrorCode.INVALID_REQUEST}


def test_forbidden_topics_are_not_described() -> None:
    node = StubNode(authorizer=Deny(("DESCRIBE", "TOPIC", "secret"))).start()
    node.made("secret")
    node.made("a")
    assert [name for name, _ in shape(pages(node, []))] == ["a"]
    (topic,) = pages(node, ["secret"]).topics
    assert topic.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert topic.topic_id == bytes(16)


# -- many topics


def test_a_description_over_several_turns_shows_each_topic_as_it_is_at_its_turn(
    node: StubNode,
) -> None:
    for number in range(4):
        node.made(f"wide-{number}", 900)
    node.follower.shown.clear()
    reply = metadata_handler.handle(MetadataRequest(topics=None), node.context())
    assert isinstance(reply, Parked)
    node.controller.delete(["wide-3"], lambda _: None)  # Between two turns.
    while node.turn():
        pass
    assert reply.answered
    assert isinstance(reply.reply, MetadataResponse)
    found = {topic.name: len(topic.partitions) for topic in reply.reply.topics}
    assert found == {"wide-0": 900, "wide-1": 900, "wide-2": 900}
    assert not any(each.error_code for topic in reply.reply.topics for each in topic.partitions)


def test_hidden_topics_do_not_tell_by_the_time_that_they_exist() -> None:
    """They are not described, so a request about them takes no turn more than one about nothing."""
    node = StubNode(authorizer=Deny(*(("DESCRIBE", "TOPIC", f"hidden-{n}") for n in range(2))))
    node.start()
    ids = []
    for number in range(2):
        node.made(f"hidden-{number}", 900)
        ids.append(node.metadata.topic_id(f"hidden-{number}") or b"")
    by_name = [MetadataRequestTopic(name=f"hidden-{number}") for number in range(2)]
    by_id = [MetadataRequestTopic(name=None, topic_id=each) for each in ids]
    for wanted in (None, by_name, by_id):
        node.follower.shown.clear()
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
        assert isinstance(metadata_handler.handle(request, node.context()), MetadataResponse)
        assert not node.follower.shown


def test_many_topics_by_their_ids_are_described_over_several_turns(node: StubNode) -> None:
    ids = []
    for number in range(2):
        node.made(f"wide-{number}", 900)
        ids.append(node.metadata.topic_id(f"wide-{number}") or b"")
    node.follower.shown.clear()
    wanted = [MetadataRequestTopic(name=None, topic_id=each) for each in ids]
    reply = metadata_handler.handle(MetadataRequest(topics=wanted), node.context())
    assert isinstance(reply, Parked)
    while node.turn():
        pass
    assert isinstance(reply.reply, MetadataResponse)
    assert [len(topic.partitions) for topic in reply.reply.topics] == [900, 900]
