"""Brokers, leader epochs, settings and producer ids."""

from __future__ import annotations

import pytest

from fencepost.base.failures import CorruptError
from fencepost.base.ids import TopicPartition
from fencepost.coordinator.metadata.apply import load
from fencepost.coordinator.metadata.effects import (
    Effect,
    LeadersChanged,
    PartitionChange,
    SettingsChanged,
)
from fencepost.coordinator.metadata.events import AlterSettings
from fencepost.coordinator.metadata.registry import (
    decide_allocate_block,
    decide_alter_settings,
    decide_bump_leader_epochs,
)
from fencepost.coordinator.metadata.state import Endpoint, MetadataState
from tests.coordinator.metadata.cluster import FEATURES, Cluster, entries, one_broker, opens_at

ORDERS_1 = TopicPartition("orders", 1)


def test_the_first_broker_sets_the_features_of_the_cluster() -> None:
    cluster = one_broker()
    assert cluster.state.features == FEATURES
    assert cluster.state.endpoint(1, "PLAINTEXT") == Endpoint("PLAINTEXT", "localhost", 9092)


def test_a_broker_epoch_is_the_offset_of_its_registration() -> None:
    cluster = one_broker()
    assert cluster.state.brokers[1].epoch == len(cluster.log) - 1
    cluster.create("orders")
    decision = cluster.register(1, 9999)
    assert len(decision.records) == 1
    assert cluster.state.brokers[1].epoch == len(cluster.log) - 1
    assert cluster.state.endpoint(1, "PLAINTEXT") == Endpoint("PLAINTEXT", "localhost", 9999)


def test_a_fenced_broker_is_not_reported_to_clients() -> None:
    cluster = one_broker()
    cluster.fence(1)
    assert cluster.state.live_brokers() == []
    assert cluster.state.endpoint(1, "PLAINTEXT") is None
    assert not cluster.fence(1).records
    cluster.bring_back(1)
    assert [broker.node_id for broker in cluster.state.live_brokers()] == [1]


def test_a_leader_epoch_can_rise_without_a_change_of_leader() -> None:
    cluster = one_broker()
    cluster.create("orders", 2)
    cluster.take(decide_bump_leader_epochs(cluster.state, [ORDERS_1, ORDERS_1]))
    topic_id = cluster.state.topics["orders"].topic_id
    change = PartitionChange("orders", 1, topic_id, 1, 1, leader_epoch=1, last_leader=1)
    assert cluster.effects == [LeadersChanged((change,))]
    assert not opens_at(change, 1)
    assert not change.closes_at(1)
    untouched, bumped = cluster.state.topics["orders"].partitions
    assert untouched.leader_epoch == 0
    assert (bumped.leader, bumped.leader_epoch, bumped.partition_epoch) == (1, 1, 1)


def test_bumping_no_partitions_writes_no_records() -> None:
    assert decide_bump_leader_epochs(one_broker().state, []).records == ()


def test_a_setting_can_be_added_changed_and_removed() -> None:
    cluster = one_broker()

    def alter(**changes: str | None) -> list[Effect]:
        cluster.take(decide_alter_settings(cluster.state, AlterSettings(4, "", dict(changes))))
        return cluster.effects

    assert alter(a="1", b="2") == [SettingsChanged(4, "")]
    assert alter(a="1", c=None) == []
    assert cluster.state.settings_of(4, "") == {"a": "1", "b": "2"}
    assert alter(a="3", b=None) == [SettingsChanged(4, "")]
    assert cluster.state.settings_of(4, "") == {"a": "3"}
    alter(a=None)
    assert cluster.state.settings == {}


def test_producer_id_blocks_never_overlap() -> None:
    cluster = one_broker()
    firsts = []
    for _ in range(3):
        firsts.append(cluster.state.next_producer_id)
        cluster.take(decide_allocate_block(cluster.state, 1))
    assert firsts == [0, 1000, 2000]
    assert cluster.reloaded().next_producer_id == 3000


def test_a_record_of_an_unknown_type_is_refused_with_its_offset() -> None:
    log = [*one_broker().log, b"\x01\x7f\x00\x00"]
    with pytest.raises(CorruptError, match=f"offset {len(log) - 1}.*type 127"):
        load(MetadataState(), entries(log))


def test_the_state_counts_its_changes() -> None:
    cluster = Cluster()
    assert cluster.state.version == 0
    cluster.register()
    cluster.create("orders")
    assert cluster.state.version == len(cluster.log)
