"""Topics and partitions: what can be created, and what is refused."""

from __future__ import annotations

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.base.limits import MAX_NEW_PARTITIONS
from fencepost.coordinator.metadata.decide import (
    decide_create_partitions,
    decide_create_topic,
    decide_delete_topic,
)
from fencepost.coordinator.metadata.effects import PartitionsCreated, TopicRemoved
from fencepost.coordinator.metadata.events import (
    CreatePartitions,
    CreateTopic,
    Decision,
    DeleteTopic,
)
from fencepost.coordinator.metadata.state import MetadataState, PartitionState
from tests.coordinator.metadata.cluster import Cluster, one_broker

TOPIC_ID = b"topic id 16 byte"


@pytest.fixture
def cluster() -> Cluster:
    return one_broker()


def wanted(name: str = "orders", partition_count: int = 1, **more: object) -> CreateTopic:
    return CreateTopic(name, TOPIC_ID, partition_count, **more)  # type: ignore[arg-type]


def refused(decision: Decision) -> ErrorCode:
    assert decision.error is not ErrorCode.NONE
    assert decision.message
    assert decision.message.endswith(".")
    assert not decision.records
    return decision.error


def test_a_new_topic_has_leader_epoch_zero_on_the_only_broker(cluster: Cluster) -> None:
    cluster.take(decide_create_topic(cluster.state, wanted(partition_count=3)))
    assert cluster.effects == [PartitionsCreated("orders", 0, 3, TOPIC_ID)]
    topic = cluster.state.topics["orders"]
    assert topic.topic_id == TOPIC_ID
    assert topic.partitions == [PartitionState(1, 0, 0, (1,), (1,))] * 3
    assert cluster.state.topic_name(TOPIC_ID) == "orders"
    assert cluster.state.partition_count("orders") == 3


def test_a_topic_is_created_with_its_settings(cluster: Cluster) -> None:
    cluster.create("orders", settings={"retention.ms": "5", "cleanup.policy": "compact"})
    assert cluster.state.settings_of(2, "orders") == {
        "retention.ms": "5",
        "cleanup.policy": "compact",
    }


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "ä", "x" * 250, "a\n"])
def test_an_illegal_name_is_refused(cluster: Cluster, name: str) -> None:
    assert refused(decide_create_topic(cluster.state, wanted(name))) is (
        ErrorCode.INVALID_TOPIC_EXCEPTION
    )


@pytest.mark.parametrize("name", ["a", "x" * 249, "A-Z_0.9", "...", "__mine"])
def test_a_legal_name_is_accepted(cluster: Cluster, name: str) -> None:
    cluster.create(name)
    assert cluster.state.partition_count(name) == 1


def test_an_existing_topic_is_not_created_again(cluster: Cluster) -> None:
    cluster.create("orders")
    assert refused(decide_create_topic(cluster.state, wanted())) is ErrorCode.TOPIC_ALREADY_EXISTS


def test_names_that_differ_only_in_dots_and_underscores_collide(cluster: Cluster) -> None:
    cluster.create("a.b_c")
    decision = decide_create_topic(cluster.state, wanted("a_b.c"))
    assert refused(decision) is ErrorCode.INVALID_TOPIC_EXCEPTION
    cluster.take(decide_delete_topic(cluster.state, DeleteTopic("a.b_c")))
    assert decide_create_topic(cluster.state, wanted("a_b.c")).error is ErrorCode.NONE


def test_the_metadata_log_is_not_a_topic(cluster: Cluster) -> None:
    decision = decide_create_topic(cluster.state, wanted("__cluster_metadata"))
    assert refused(decision) is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("count", [0, -1, -2])
def test_a_topic_needs_partitions(cluster: Cluster, count: int) -> None:
    decision = decide_create_topic(cluster.state, wanted(partition_count=count))
    assert refused(decision) is ErrorCode.INVALID_PARTITIONS


def test_an_excessive_number_of_partitions_is_refused(cluster: Cluster) -> None:
    decision = decide_create_topic(cluster.state, wanted(partition_count=MAX_NEW_PARTITIONS + 1))
    assert refused(decision) is ErrorCode.POLICY_VIOLATION


@pytest.mark.parametrize("factor", [0, -2, 2, 3])
def test_any_replication_factor_other_than_one_is_refused_by_a_single_broker(factor: int) -> None:
    cluster = one_broker()
    decision = decide_create_topic(cluster.state, wanted(replication_factor=factor))
    assert refused(decision) is ErrorCode.INVALID_REPLICATION_FACTOR
    if factor > 1:
        assert decision.message is not None
        assert "because only 1 broker(s) are registered" in decision.message


@pytest.mark.parametrize("factor", [-1, 1])
def test_a_replication_factor_of_one_or_the_default_is_accepted(factor: int) -> None:
    cluster = one_broker()
    decision = decide_create_topic(cluster.state, wanted(replication_factor=factor))
    assert decision.error is ErrorCode.NONE


def test_an_invalid_number_of_partitions_is_refused_before_too_many_replicas() -> None:
    cluster = one_broker()
    event = wanted(partition_count=0, replication_factor=3)
    assert refused(decide_create_topic(cluster.state, event)) is ErrorCode.INVALID_PARTITIONS


def test_a_manual_assignment_in_any_order_is_accepted(cluster: Cluster) -> None:
    cluster.register(2, 9093)
    event = wanted(partition_count=-1, assignments=[(2, [1]), (0, [2]), (1, [1])])
    cluster.take(decide_create_topic(cluster.state, event))
    assert [p.leader for p in cluster.state.topics["orders"].partitions] == [2, 1, 1]


@pytest.mark.parametrize(
    "assignments",
    [
        [(0, [2])],
        [(0, [])],
        [(0, [1, 1])],
        [(0, [1, 2])],
        [(0, [1]), (0, [1])],
        [(0, [1]), (2, [1])],
        [(-1, [1])],
        [(1, [1])],
    ],
)
def test_an_impossible_manual_assignment_is_refused(
    assignments: list[tuple[int, list[int]]],
) -> None:
    cluster = one_broker()
    event = wanted(partition_count=-1, assignments=assignments)
    assert refused(decide_create_topic(cluster.state, event)) is (
        ErrorCode.INVALID_REPLICA_ASSIGNMENT
    )


@pytest.mark.parametrize(("count", "factor"), [(2, -1), (-1, 1)])
def test_a_manual_assignment_excludes_a_partition_count_and_a_replication_factor(
    cluster: Cluster, count: int, factor: int
) -> None:
    event = wanted(partition_count=count, replication_factor=factor, assignments=[(0, [1])])
    assert refused(decide_create_topic(cluster.state, event)) is ErrorCode.INVALID_REQUEST


def test_a_topic_cannot_be_created_without_a_broker() -> None:
    decision = decide_create_topic(MetadataState(), wanted())
    assert refused(decision) is ErrorCode.INVALID_REPLICATION_FACTOR


def test_the_settings_of_a_deleted_topic_are_deleted_with_it(cluster: Cluster) -> None:
    cluster.create("orders", 2, {"retention.ms": "5"})
    topic_id = cluster.state.topics["orders"].topic_id
    cluster.take(decide_delete_topic(cluster.state, DeleteTopic("orders")))
    assert cluster.effects == [TopicRemoved("orders", 2, topic_id)]
    cluster.create("orders")
    assert cluster.state.settings_of(2, "orders") == {}


def test_a_recreated_topic_has_a_new_id(cluster: Cluster) -> None:
    cluster.create("orders")
    before = cluster.state.topic_id("orders")
    assert before is not None
    cluster.take(decide_delete_topic(cluster.state, DeleteTopic("orders")))
    cluster.create("orders")
    assert cluster.state.topic_id("orders") != before
    assert cluster.state.topic_name(before) is None


def test_a_missing_topic_cannot_be_deleted() -> None:
    decision = decide_delete_topic(one_broker().state, DeleteTopic("orders"))
    assert refused(decision) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state"])
def test_an_internal_topic_cannot_be_deleted_or_extended(cluster: Cluster, name: str) -> None:
    cluster.create(name, 50)
    assert cluster.state.topics[name].is_internal
    assert refused(decide_delete_topic(cluster.state, DeleteTopic(name))) is (
        ErrorCode.INVALID_TOPIC_EXCEPTION
    )
    assert refused(decide_create_partitions(cluster.state, CreatePartitions(name, 60))) is (
        ErrorCode.INVALID_PARTITIONS
    )


def test_new_partitions_are_numbered_after_the_old_ones(cluster: Cluster) -> None:
    cluster.create("orders", 2)
    event = CreatePartitions("orders", 5)
    cluster.take(decide_create_partitions(cluster.state, event))
    assert cluster.effects == [
        PartitionsCreated("orders", 2, 3, cluster.state.topics["orders"].topic_id)
    ]
    assert cluster.state.partition_count("orders") == 5
    assert cluster.state.leader("orders", 4) == 1
    assert cluster.state.leader("orders", 5) == -1


@pytest.mark.parametrize("count", [2, 1, 0, -1])
def test_the_number_of_partitions_cannot_be_reduced(cluster: Cluster, count: int) -> None:
    cluster.create("orders", 2)
    decision = decide_create_partitions(cluster.state, CreatePartitions("orders", count))
    assert refused(decision) is ErrorCode.INVALID_PARTITIONS


def test_partitions_cannot_be_added_to_a_missing_topic() -> None:
    decision = decide_create_partitions(one_broker().state, CreatePartitions("orders", 5))
    assert refused(decision) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("assignments", [[[1]], [[1], [2]], [[1], []], [[1], [1, 1]]])
def test_an_invalid_assignment_of_new_partitions_is_refused(assignments: list[list[int]]) -> None:
    cluster = one_broker()
    cluster.create("orders", 2)
    event = CreatePartitions("orders", 4, assignments)
    assert refused(decide_create_partitions(cluster.state, event)) is (
        ErrorCode.INVALID_REPLICA_ASSIGNMENT
    )


def test_new_partitions_may_be_assigned_manually(cluster: Cluster) -> None:
    cluster.create("orders", 2)
    event = CreatePartitions("orders", 4, [[1], [1]])
    cluster.take(decide_create_partitions(cluster.state, event))
    assert cluster.state.partition_count("orders") == 4
