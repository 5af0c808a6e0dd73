"""A directory that is served by more or fewer brokers than at its last start."""

from __future__ import annotations

from collections import Counter

import pytest

from fencepost.coordinator.metadata.effects import LeadersChanged
from fencepost.coordinator.metadata.state import Endpoint
from fencepost.records.metadata_log import (
    PartitionChangeRecord,
    RegisterBrokerRecord,
    UnregisterBrokerRecord,
)
from tests.coordinator.metadata.cluster import Cluster, brokers, one_broker

INTERNAL = "__transaction_state"


def factors(cluster: Cluster, topic: str) -> set[int]:
    return {len(replicas) for replicas in cluster.replicas(topic)}


# -- more brokers


def test_the_partitions_of_one_broker_are_spread_over_three() -> None:
    cluster = one_broker()
    cluster.create("orders", 9)
    cluster.create("refunds", 3)
    cluster.resize(1, 2, 3)
    assert Counter(cluster.leaders("orders")) == {1: 3, 2: 3, 3: 3}
    assert Counter(cluster.leaders("refunds")) == {1: 1, 2: 1, 3: 1}
    assert factors(cluster, "orders") == {1}, "topics keep their replication factor"


def test_topics_of_one_partition_are_spread_too() -> None:
    cluster = one_broker()
    for number in range(9):
        cluster.create(f"topic-{number}")
    cluster.resize(1, 2, 3)
    assert cluster.state.leader_counts == {1: 3, 2: 3, 3: 3}


def test_an_internal_topic_gets_the_replication_factor_of_the_settings() -> None:
    cluster = one_broker()
    cluster.create(INTERNAL, 6)
    cluster.resize(1, 2, 3, **{INTERNAL: 3})
    assert factors(cluster, INTERNAL) == {3}
    assert Counter(cluster.leaders(INTERNAL)) == {1: 2, 2: 2, 3: 2}
    assert cluster.partition(INTERNAL, 1).isr == cluster.partition(INTERNAL, 1).replicas


def test_a_new_broker_is_active_and_has_no_address_until_it_registers() -> None:
    cluster = one_broker()
    cluster.create("orders", 2)
    cluster.resize(1, 2)
    assert cluster.state.active_nodes() == {1, 2}
    assert cluster.state.endpoint(2, "PLAINTEXT") is None
    epochs = [partition.leader_epoch for partition in cluster.state.topics["orders"].partitions]
    decision = cluster.register(2, 9093)
    assert len(decision.records) == 1, "its partitions and their epochs stay"
    assert cluster.state.endpoint(2, "PLAINTEXT") == Endpoint("PLAINTEXT", "localhost", 9093)
    assert epochs == [0, 1], "only a change of the leader raises an epoch"


def test_the_epochs_of_registrations_are_their_offsets() -> None:
    cluster = one_broker()
    cluster.resize(1, 2, 3)
    offset = len(cluster.log)
    assert [cluster.state.brokers[node].epoch for node in (2, 3)] == [offset - 2, offset - 1]


# -- fewer brokers


def test_one_broker_leads_everything_that_three_had() -> None:
    cluster = brokers(3)
    cluster.create(INTERNAL, 6)
    cluster.create("orders", 6, replication_factor=2)
    decision = cluster.resize(1, **{INTERNAL: 1})
    for topic in (INTERNAL, "orders"):
        assert cluster.replicas(topic) == [(1,)] * 6
        assert cluster.leaders(topic) == [1] * 6
    assert list(cluster.state.brokers) == [1]
    assert [type(record) for record in decision.records[-2:]] == [UnregisterBrokerRecord] * 2


def test_a_replication_factor_is_at_most_the_number_of_brokers() -> None:
    cluster = brokers(3)
    cluster.create("orders", 4, replication_factor=3)
    cluster.create("refunds", 4, replication_factor=1)
    cluster.resize(1, 2)
    assert (factors(cluster, "orders"), factors(cluster, "refunds")) == ({2}, {1})
    assert cluster.state.leader_counts == {1: 4, 2: 4}


def test_a_directory_of_three_dead_brokers_can_be_served_by_one_of_them() -> None:
    cluster = brokers(3)
    cluster.create("orders", 3)
    cluster.fence(1, 2, 3)
    cluster.resize(1)
    assert cluster.leaders("orders") == [1, 1, 1]
    assert cluster.state.endpoint(1, "PLAINTEXT") is not None, "a known broker keeps its address"


def test_other_brokers_can_take_over_all_of_them() -> None:
    cluster = brokers(2)
    cluster.create("orders", 4, replication_factor=2)
    cluster.resize(7, 8)
    assert set(cluster.state.brokers) == {7, 8}
    assert Counter(cluster.leaders("orders")) == {7: 2, 8: 2}


# -- the same brokers


@pytest.mark.parametrize("count", [1, 3])
def test_the_same_brokers_need_no_change(count: int) -> None:
    cluster = brokers(count)
    cluster.assign("orders", [1], [1])
    assert not cluster.resize(*range(1, count + 1)).records


@pytest.mark.parametrize("stops", [True, False])
def test_a_broker_that_was_dead_or_stopping_is_active_again(*, stops: bool) -> None:
    cluster = brokers(2)
    cluster.assign("orders", [1])
    cluster.assign("refunds", [2, 1])
    if stops:
        cluster.shut_down(1)
    else:
        cluster.fence(1)
    decision = cluster.resize(1, 2)
    assert [type(record) for record in decision.records] == [
        RegisterBrokerRecord,
        PartitionChangeRecord,
        PartitionChangeRecord,
    ]
    assert cluster.partition("orders").leader == 1
    assert cluster.partition("refunds").leader == 2
    assert cluster.partition("refunds").isr == (2, 1)


def test_a_second_resize_changes_nothing() -> None:
    cluster = brokers(3)
    cluster.create("orders", 7, replication_factor=2)
    cluster.resize(2, 3, 4)
    assert not cluster.resize(2, 3, 4).records
    assert cluster.effects == []


def test_one_batch_places_ten_thousand_partitions_again() -> None:
    cluster = one_broker()
    cluster.create("wide", 10_000)
    cluster.resize(1, 2, 3)
    (effect,) = cluster.effects
    assert isinstance(effect, LeadersChanged)
    assert sorted(cluster.state.leader_counts.values()) == [3_333, 3_333, 3_334]
