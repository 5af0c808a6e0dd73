"""The replicas of new partitions among several brokers."""

from __future__ import annotations

from collections import Counter

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.coordinator.metadata.decide import decide_create_partitions, decide_create_topic
from fencepost.coordinator.metadata.events import CreatePartitions, CreateTopic
from tests.coordinator.metadata.cluster import Cluster, brokers

TOPIC_ID = b"topic id 16 byte"


def leader_counts(cluster: Cluster) -> Counter[int]:
    return Counter(p.leader for t in cluster.state.topics.values() for p in t.partitions)


def test_replicas_follow_their_leader_in_stripes(cluster: Cluster) -> None:
    cluster.create("orders", 6, replication_factor=2)
    assert cluster.replicas("orders") == [(1, 2), (2, 3), (3, 1), (1, 3), (2, 1), (3, 2)]


def test_a_new_partition_is_led_by_its_first_replica_and_all_are_in_sync(cluster: Cluster) -> None:
    cluster.create("orders", 4, replication_factor=3)
    for partition in cluster.state.topics["orders"].partitions:
        assert partition.leader == partition.replicas[0]
        assert partition.isr == partition.replicas
        assert sorted(partition.replicas) == [1, 2, 3]


def test_a_topic_begins_at_the_broker_that_leads_the_fewest(cluster: Cluster) -> None:
    cluster.create("first", 4)
    assert cluster.leaders("first") == [1, 2, 3, 1]
    cluster.create("second", 5)
    assert cluster.leaders("second") == [2, 3, 1, 2, 3]
    assert leader_counts(cluster) == {1: 3, 2: 3, 3: 3}


def test_many_topics_of_one_partition_are_spread_over_the_brokers(cluster: Cluster) -> None:
    for number in range(30):
        cluster.create(f"topic-{number}", replication_factor=3)
    assert leader_counts(cluster) == {1: 10, 2: 10, 3: 10}


@pytest.mark.parametrize(("count", "factor"), [(1, 2), (2, 3), (3, 4), (3, 32767)])
def test_more_replicas_than_brokers_are_refused(count: int, factor: int) -> None:
    cluster = brokers(count)
    decision = decide_create_topic(cluster.state, CreateTopic("orders", TOPIC_ID, 1, factor))
    assert decision.error is ErrorCode.INVALID_REPLICATION_FACTOR
    assert decision.message is not None
    assert decision.message == (
        f"The target replication factor of {factor} cannot be reached because only {count} "
        "broker(s) are registered."
    )
    assert not decision.records


def test_a_fenced_broker_counts_and_becomes_a_replica_that_is_not_in_sync(cluster: Cluster) -> None:
    cluster.fence(2)
    cluster.create("orders", 4, replication_factor=3)
    for partition in cluster.state.topics["orders"].partitions:
        assert partition.replicas[2] == 2
        assert partition.isr == partition.replicas[:2]
    assert cluster.leaders("orders") == [1, 3, 1, 3]


def test_live_brokers_become_replicas_before_fenced_ones() -> None:
    cluster = brokers(4)
    cluster.fence(1)
    cluster.create("orders", 12, replication_factor=3)
    assert all(1 not in replicas for replicas in cluster.replicas("orders"))


def test_a_broker_that_is_about_to_stop_gets_no_new_replicas(cluster: Cluster) -> None:
    cluster.shut_down(3)
    decision = decide_create_topic(cluster.state, CreateTopic("orders", TOPIC_ID, 1, 3))
    assert decision.error is ErrorCode.INVALID_REPLICATION_FACTOR
    cluster.create("orders", 4, replication_factor=2)
    assert all(3 not in replicas for replicas in cluster.replicas("orders"))


def test_a_topic_cannot_be_created_without_a_live_broker() -> None:
    cluster = brokers(2)
    cluster.fence(1, 2)
    decision = decide_create_topic(cluster.state, CreateTopic("orders", TOPIC_ID, 1, 1))
    assert decision.error is ErrorCode.INVALID_REPLICATION_FACTOR
    assert decision.message == "No broker is available."


def test_the_default_replication_factor_is_that_of_the_cluster(cluster: Cluster) -> None:
    event = CreateTopic("orders", TOPIC_ID, 2, default_factor=2)
    cluster.take(decide_create_topic(cluster.state, event))
    assert [len(replicas) for replicas in cluster.replicas("orders")] == [2, 2]


@pytest.mark.parametrize(("count", "factor"), [(1, 1), (2, 2), (3, 3), (5, 3)])
@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state"])
def test_an_internal_topic_has_three_replicas_if_there_are_three_brokers(
    name: str, count: int, factor: int
) -> None:
    cluster = brokers(count)
    cluster.create(name, 50)
    assert {len(replicas) for replicas in cluster.replicas(name)} == {factor}
    counts = leader_counts(cluster)
    assert max(counts.values()) - min(counts.values()) <= 1


def test_an_internal_topic_may_have_another_replication_factor(cluster: Cluster) -> None:
    cluster.create("__transaction_state", 50, replication_factor=2)
    assert {len(replicas) for replicas in cluster.replicas("__transaction_state")} == {2}


def test_a_manual_assignment_may_have_several_replicas(cluster: Cluster) -> None:
    cluster.assign("orders", [3, 1], [2, 3])
    assert cluster.replicas("orders") == [(3, 1), (2, 3)]
    assert cluster.leaders("orders") == [3, 2]


def test_a_manual_assignment_is_led_by_its_first_live_broker(cluster: Cluster) -> None:
    cluster.fence(3)
    cluster.assign("orders", [3, 2, 1])
    partition = cluster.partition("orders")
    assert (partition.leader, partition.isr) == (2, (2, 1))


@pytest.mark.parametrize(
    "replicas",
    [
        pytest.param([[1, 2], [3]], id="different numbers"),
        pytest.param([[2]], id="fenced"),
        pytest.param([[1, 4]], id="unknown"),
        pytest.param([[1, 3, 1]], id="twice"),
    ],
)
def test_an_invalid_manual_assignment_is_refused(replicas: list[list[int]]) -> None:
    cluster = brokers(3)
    cluster.fence(2)
    event = CreateTopic("orders", TOPIC_ID, -1, assignments=list(enumerate(replicas)))
    decision = decide_create_topic(cluster.state, event)
    assert decision.error is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert not decision.records


def test_added_partitions_have_as_many_replicas_as_the_first(cluster: Cluster) -> None:
    cluster.create("orders", 1, replication_factor=2)
    cluster.take(decide_create_partitions(cluster.state, CreatePartitions("orders", 4)))
    assert [len(replicas) for replicas in cluster.replicas("orders")] == [2, 2, 2, 2]
    assert leader_counts(cluster) == {1: 2, 2: 1, 3: 1}


@pytest.mark.parametrize("replicas", [[3], [3, 2, 1]])
def test_added_partitions_with_another_number_of_replicas_are_refused(replicas: list[int]) -> None:
    cluster = brokers(3)
    cluster.create("orders", 1, replication_factor=2)
    event = CreatePartitions("orders", 2, [replicas])
    decision = decide_create_partitions(cluster.state, event)
    assert decision.error is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    cluster.take(decide_create_partitions(cluster.state, event._replace(assignments=[[3, 2]])))
    assert cluster.replicas("orders") == [(1, 2), (3, 2)]


def test_added_partitions_need_as_many_brokers_as_the_first_has_replicas(cluster: Cluster) -> None:
    cluster.create("orders", 1, replication_factor=3)
    cluster.shut_down(2)
    decision = decide_create_partitions(cluster.state, CreatePartitions("orders", 2))
    assert decision.error is ErrorCode.INVALID_REPLICATION_FACTOR
