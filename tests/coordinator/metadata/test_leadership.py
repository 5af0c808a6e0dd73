"""Who leads when brokers die, come back, stop or leave."""

from __future__ import annotations

from collections import Counter

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import TopicPartition
from fencepost.coordinator.metadata.effects import LeadersChanged, PartitionChange
from fencepost.coordinator.metadata.events import Election
from fencepost.coordinator.metadata.registry import (
    decide_controlled_shutdown,
    decide_unfence_brokers,
)
from fencepost.records.metadata_log import (
    BrokerRegistrationChangeRecord,
    PartitionChangeRecord,
    RegisterBrokerRecord,
)
from tests.coordinator.metadata.cluster import Cluster, brokers, opens_at


def changed(cluster: Cluster) -> dict[tuple[str, int], PartitionChange]:
    """The changes of the last batch."""
    (effect,) = cluster.effects
    assert isinstance(effect, LeadersChanged)
    return {(change.topic, change.partition): change for change in effect.partitions}


# -- a broker dies


def test_the_next_live_replica_leads_at_a_higher_epoch(cluster: Cluster) -> None:
    cluster.assign("orders", [1, 2])
    cluster.fence(1)
    partition = cluster.partition("orders")
    assert (partition.leader, partition.leader_epoch, partition.partition_epoch) == (2, 1, 1)
    assert partition.isr == (2,)
    assert partition.replicas == (1, 2)


def test_a_dead_follower_leaves_the_in_sync_replicas_and_the_leader_keeps_its_epoch() -> None:
    cluster = brokers(3)
    cluster.assign("orders", [1, 2, 3])
    cluster.fence(2)
    partition = cluster.partition("orders")
    assert (partition.leader, partition.leader_epoch, partition.partition_epoch) == (1, 0, 1)
    assert partition.isr == (1, 3)
    change = changed(cluster)["orders", 0]
    assert not any(opens_at(change, node) or change.closes_at(node) for node in (1, 2, 3))


def test_partitions_of_other_brokers_do_not_change(cluster: Cluster) -> None:
    cluster.assign("orders", [1, 2], [2, 3])
    cluster.fence(1)
    assert set(changed(cluster)) == {("orders", 0)}
    assert cluster.partition("orders", 1).partition_epoch == 0


def test_a_partition_without_a_live_replica_has_no_leader_and_keeps_its_last_replica() -> None:
    cluster = brokers(2)
    cluster.assign("orders", [1, 2])
    cluster.fence(1)
    cluster.fence(2)
    partition = cluster.partition("orders")
    assert (partition.leader, partition.leader_epoch, partition.isr) == (-1, 2, (2,))
    assert not cluster.fence(2).records


def test_a_partition_changes_once_when_several_brokers_die_together(cluster: Cluster) -> None:
    cluster.assign("orders", [1, 2, 3])
    cluster.assign("refunds", [2, 1])
    cluster.fence(1, 2)
    orders, refunds = cluster.partition("orders"), cluster.partition("refunds")
    assert (orders.leader, orders.leader_epoch, orders.isr) == (3, 1, (3,))
    assert (refunds.leader, refunds.leader_epoch, refunds.isr) == (-1, 1, (2,))


def test_partitions_move_before_their_broker_is_fenced_and_after_it_is_unfenced_as_in_kafka() -> (
    None
):
    cluster = brokers(2)
    cluster.assign("orders", [1, 2])
    fenced = cluster.fence(1)
    assert [type(record) for record in fenced.records] == [
        PartitionChangeRecord,
        BrokerRegistrationChangeRecord,
    ]
    cluster.register(1, fenced=True)
    back = cluster.take(decide_unfence_brokers(cluster.state, frozenset({1})))
    assert [type(record) for record in back.records] == [
        BrokerRegistrationChangeRecord,
        PartitionChangeRecord,
    ]


def test_the_partitions_of_a_dead_broker_are_spread_over_the_others(cluster: Cluster) -> None:
    cluster.create("__transaction_state", 48)
    cluster.create("orders", 30, replication_factor=3)
    cluster.fence(1)
    assert Counter(cluster.leaders("__transaction_state")) == {2: 24, 3: 24}
    assert Counter(cluster.leaders("orders")) == {2: 15, 3: 15}


def test_the_partitions_of_a_dead_broker_are_spread_even_if_all_have_the_same_replicas() -> None:
    cluster = brokers(3)
    cluster.assign("orders", *[[1, 2, 3]] * 10)
    cluster.fence(1)
    assert Counter(cluster.leaders("orders")) == {2: 5, 3: 5}


def test_each_topic_is_spread_even_if_one_broker_leads_more_of_other_topics() -> None:
    cluster = brokers(3)
    cluster.assign("orders", *[[2]] * 20)
    cluster.assign("__transaction_state", *[[1, 2, 3]] * 10)
    cluster.fence(1)
    assert Counter(cluster.leaders("__transaction_state")) == {2: 5, 3: 5}


def test_topics_of_one_partition_go_to_the_broker_that_leads_the_fewest(cluster: Cluster) -> None:
    cluster.assign("orders", *[[2]] * 10)
    for number in range(10):
        cluster.assign(f"topic-{number}", [1, 2, 3])
    cluster.fence(1)
    assert {cluster.leaders(f"topic-{number}")[0] for number in range(10)} == {3}


def test_the_new_leader_opens_the_partition_and_the_old_one_closes_it(cluster: Cluster) -> None:
    cluster.assign("orders", [1, 2])
    cluster.fence(1)
    change = changed(cluster)["orders", 0]
    topic_id = cluster.state.topics["orders"].topic_id
    assert change == PartitionChange("orders", 0, topic_id, 1, 2, leader_epoch=1, last_leader=1)
    assert [node for node in (1, 2, 3) if opens_at(change, node)] == [2]
    assert [node for node in (1, 2, 3) if change.closes_at(node)] == [1]


def test_one_batch_moves_ten_thousand_partitions(cluster: Cluster) -> None:
    cluster.create("wide", 10_000, replication_factor=3)
    assert len(cluster.fence(1).records) == 10_000 + 1
    assert cluster.state.leader_counts == {2: 5_000, 3: 5_000}


# -- a broker comes back


def test_a_broker_that_comes_back_is_in_sync_again_and_does_not_lead_yet(cluster: Cluster) -> None:
    cluster.assign("orders", [1, 2, 3])
    cluster.fence(1)
    cluster.bring_back(1)
    partition = cluster.partition("orders")
    assert (partition.leader, partition.leader_epoch) == (2, 1)
    assert partition.isr == (1, 2, 3)


def test_a_partition_that_lost_its_only_replica_gets_it_back_at_a_higher_epoch() -> None:
    cluster = brokers(2)
    cluster.assign("orders", [1])
    before = cluster.state.brokers[1].epoch
    cluster.fence(1)
    assert cluster.partition("orders").leader == -1
    cluster.bring_back(1)
    partition = cluster.partition("orders")
    assert (partition.leader, partition.leader_epoch, partition.isr) == (1, 2, (1,))
    assert opens_at(changed(cluster)["orders", 0], 1)
    assert cluster.state.brokers[1].epoch > before


def test_any_replica_that_comes_back_can_lead_because_there_is_one_copy() -> None:
    """Kafka waits for the last in-sync replica, or elects another one uncleanly."""
    cluster = brokers(2)
    cluster.assign("orders", [1, 2])
    cluster.fence(1)
    cluster.fence(2)
    cluster.bring_back(1)
    partition = cluster.partition("orders")
    assert (partition.leader, partition.leader_epoch, partition.isr) == (1, 3, (1,))


def test_preferred_leaders_lead_when_all_brokers_come_back_together(cluster: Cluster) -> None:
    cluster.create("orders", 9, replication_factor=3)
    before = cluster.leaders("orders")
    cluster.fence(1, 2, 3)
    assert set(cluster.leaders("orders")) == {-1}
    cluster.bring_back(1, 2, 3)
    assert cluster.leaders("orders") == before


def test_a_broker_registers_fenced_and_leads_nothing_until_it_is_ready() -> None:
    cluster = brokers(1)
    cluster.register(2, fenced=True)
    cluster.assign("orders", [2, 1])
    assert cluster.partition("orders").isr == (1,)
    assert [broker.node_id for broker in cluster.state.live_brokers()] == [1]
    cluster.take(decide_unfence_brokers(cluster.state, frozenset({2})))
    assert cluster.partition("orders").isr == (2, 1)


def test_an_active_broker_that_registers_again_as_fenced_leads_nothing() -> None:
    cluster = brokers(2)
    cluster.assign("orders", [1, 2])
    decision = cluster.register(1, fenced=True)
    assert cluster.partition("orders").leader == 2
    (registration, _) = decision.records
    assert isinstance(registration, RegisterBrokerRecord)
    assert registration.broker_epoch == cluster.state.brokers[1].epoch == len(cluster.log) - 2


def test_a_single_broker_keeps_its_leader_epochs_when_it_registers_again() -> None:
    cluster = brokers(1)
    cluster.create("orders", 3)
    decision = cluster.register(1)
    assert [type(record) for record in decision.records] == [RegisterBrokerRecord]
    assert cluster.partition("orders").leader_epoch == 0


def test_a_single_broker_leads_again_when_it_registers_after_it_was_fenced() -> None:
    cluster = brokers(1)
    cluster.create("orders", 3)
    cluster.fence(1)
    cluster.register(1)
    assert cluster.leaders("orders") == [1, 1, 1]
    assert cluster.partition("orders").leader_epoch == 2


# -- a broker stops


def test_others_take_over_from_a_broker_that_is_about_to_stop() -> None:
    cluster = brokers(2)
    cluster.assign("orders", [1, 2])
    cluster.shut_down(1)
    partition = cluster.partition("orders")
    assert (partition.leader, partition.leader_epoch, partition.isr) == (2, 1, (2,))
    assert changed(cluster)["orders", 0].closes_at(1)
    assert cluster.state.endpoint(1, "PLAINTEXT") is not None, "clients still see it"
    assert not decide_controlled_shutdown(cluster.state, 1).records


def test_a_broker_that_has_stopped_is_fenced_without_another_change_of_its_partitions() -> None:
    cluster = brokers(2)
    cluster.assign("orders", [1, 2])
    cluster.assign("refunds", [1])
    cluster.shut_down(1)
    assert cluster.leaders("orders") + cluster.leaders("refunds") == [2, -1]
    decision = cluster.fence(1)
    assert [type(record) for record in decision.records] == [BrokerRegistrationChangeRecord]


def test_only_a_new_registration_ends_a_controlled_shutdown() -> None:
    cluster = brokers(2)
    cluster.assign("orders", [1])
    cluster.shut_down(1)
    cluster.fence(1)
    cluster.take(decide_unfence_brokers(cluster.state, frozenset({1})))
    assert cluster.partition("orders").leader == -1
    cluster.bring_back(1)
    assert cluster.partition("orders").leader == 1


def test_a_dead_broker_needs_no_controlled_shutdown() -> None:
    cluster = brokers(2)
    cluster.fence(1)
    assert not cluster.shut_down(1).records


# -- a broker is killed and does not die


def test_nobody_leads_what_a_suspended_broker_led_until_it_is_fenced(cluster: Cluster) -> None:
    cluster.assign("orders", [1, 2, 3], [2, 1, 3])
    cluster.suspend(1)
    led, other = cluster.state.topics["orders"].partitions
    assert (led.leader, led.leader_epoch, led.isr, led.replicas) == (-1, 1, (1,), (1, 2, 3))
    assert (other.leader, other.leader_epoch, other.isr) == (2, 0, (2, 3))
    assert cluster.state.endpoint(1, "PLAINTEXT") is None, "clients do not try to reach it"
    cluster.fence(1)
    led = cluster.partition("orders")
    assert (led.leader, led.leader_epoch, led.isr) == (3, 2, (2, 3))


def test_no_event_gives_the_partitions_of_a_suspended_broker_to_others(cluster: Cluster) -> None:
    cluster.assign("orders", [1, 2, 3])
    cluster.suspend(1)
    withheld = cluster.partition("orders")
    name = TopicPartition("orders", 0)
    cluster.fence(2)
    cluster.bring_back(2)
    cluster.shut_down(3)
    cluster.rebalance(None)
    cluster.suspend(1)
    cluster.elect(None, Election.PREFERRED)
    assert cluster.partition("orders") == withheld
    (outcome,) = cluster.elect([name], Election.UNCLEAN)
    assert outcome.error is ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    (outcome,) = cluster.reassign({name: [2]})
    assert outcome.error is ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    assert outcome.message == (
        "Broker 1 led orders-0 and was killed, but its process has not ended. Others can lead it "
        "when it has."
    )
    assert cluster.partition("orders") == withheld


def test_the_preferred_leader_is_not_elected_while_the_last_leader_is_suspended() -> None:
    cluster = brokers(2)
    cluster.assign("orders", [1, 2])
    cluster.reassign({TopicPartition("orders", 0): [2, 1]})
    cluster.suspend(1)
    (outcome,) = cluster.elect([TopicPartition("orders", 0)], Election.PREFERRED)
    assert outcome.error is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    assert "Broker 1 led orders-0 and was killed" in str(outcome.message)
    assert cluster.partition("orders").leader == -1


def test_two_brokers_may_be_suspended_at_once(cluster: Cluster) -> None:
    cluster.assign("orders", [1, 2, 3], [2, 1, 3])
    cluster.suspend(1)
    cluster.suspend(2)
    assert cluster.leaders("orders") == [-1, -1]
    cluster.fence(1)
    assert cluster.leaders("orders") == [3, -1]
    cluster.fence(2)
    assert cluster.leaders("orders") == [3, 3]


def test_a_suspended_broker_that_has_died_and_returns_may_lead() -> None:
    cluster = brokers(2)
    cluster.assign("orders", [1])
    cluster.suspend(1)
    cluster.fence(1)
    assert cluster.partition("orders").leader == -1
    cluster.bring_back(1)
    assert cluster.partition("orders").leader == 1


def test_the_next_start_of_a_cluster_knows_no_suspended_brokers() -> None:
    cluster = brokers(2)
    cluster.assign("orders", [1, 2])
    cluster.suspend(1)
    cluster.resize(1, 2)
    assert cluster.partition("orders").leader == 1
    cluster.suspend(1)
    cluster.resize(2)
    assert cluster.leaders("orders") == [2]


def test_a_new_process_of_a_suspended_broker_proves_that_the_old_one_has_ended() -> None:
    cluster = brokers(2)
    cluster.assign("orders", [1, 2])
    cluster.suspend(1)
    cluster.register(1, fenced=True)
    assert cluster.partition("orders").leader == 2


def test_a_dead_broker_is_not_suspended() -> None:
    cluster = brokers(2)
    cluster.fence(1)
    assert not cluster.suspend(1).records
