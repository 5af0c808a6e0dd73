"""Elections, reassignments and the balance of leaders."""

from __future__ import annotations

from collections import Counter

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import TopicPartition
from fencepost.coordinator.metadata.events import Election, PartitionOutcome
from fencepost.coordinator.metadata.leadership import decide_rebalance
from tests.coordinator.metadata.cluster import Cluster, brokers

ORDERS_0 = TopicPartition("orders", 0)
ORDERS_1 = TopicPartition("orders", 1)
MISSING = [TopicPartition("missing", 0), TopicPartition("orders", 2), TopicPartition("orders", -1)]


def after_a_failover() -> Cluster:
    """Broker 1 is the preferred leader of orders-0, and was dead for a while."""
    cluster = brokers(3)
    cluster.assign("orders", [1, 2, 3], [2, 3, 1])
    cluster.fence(1)
    cluster.bring_back(1)
    assert cluster.leaders("orders") == [3, 2]
    return cluster


def errors(outcomes: list[PartitionOutcome]) -> dict[TopicPartition, ErrorCode]:
    for outcome in outcomes:
        assert (outcome.error is ErrorCode.NONE) == (outcome.message is None)
    return {outcome.partition: outcome.error for outcome in outcomes}


# -- elections


def test_the_preferred_leader_is_elected_at_a_higher_epoch() -> None:
    cluster = after_a_failover()
    before = cluster.partition("orders")
    assert errors(cluster.elect([ORDERS_0])) == {ORDERS_0: ErrorCode.NONE}
    after = cluster.partition("orders")
    assert (after.leader, after.leader_epoch) == (1, before.leader_epoch + 1)
    assert (after.isr, after.replicas) == (before.isr, before.replicas)


def test_a_preferred_leader_that_leads_needs_no_election() -> None:
    cluster = after_a_failover()
    assert errors(cluster.elect([ORDERS_1])) == {ORDERS_1: ErrorCode.ELECTION_NOT_NEEDED}
    assert cluster.partition("orders", 1).leader_epoch == 0


@pytest.mark.parametrize("stops", [True, False])
def test_a_preferred_leader_that_is_dead_or_stopping_is_not_elected(*, stops: bool) -> None:
    cluster = brokers(2)
    cluster.assign("orders", [1, 2])
    if stops:
        cluster.shut_down(1)
    else:
        cluster.fence(1)
    assert errors(cluster.elect([ORDERS_0])) == {ORDERS_0: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}
    assert cluster.leaders("orders") == [2]


def test_a_partition_without_a_live_replica_cannot_elect_its_preferred_leader() -> None:
    cluster = brokers(1)
    cluster.create("orders")
    cluster.fence(1)
    assert errors(cluster.elect([ORDERS_0])) == {ORDERS_0: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}


@pytest.mark.parametrize("election", Election)
def test_an_election_for_a_missing_partition_is_refused(election: Election) -> None:
    cluster = after_a_failover()
    assert errors(cluster.elect(MISSING, election)) == dict.fromkeys(
        MISSING, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )


def test_a_partition_with_a_leader_needs_no_unclean_election() -> None:
    cluster = after_a_failover()
    outcomes = cluster.elect([ORDERS_0], Election.UNCLEAN)
    assert errors(outcomes) == {ORDERS_0: ErrorCode.ELECTION_NOT_NEEDED}
    assert cluster.leaders("orders") == [3, 2]


def test_an_unclean_election_needs_a_live_replica() -> None:
    cluster = brokers(2)
    cluster.assign("orders", [1])
    cluster.fence(1)
    outcomes = cluster.elect([ORDERS_0], Election.UNCLEAN)
    assert errors(outcomes) == {ORDERS_0: ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE}


def test_an_election_of_all_partitions_lists_only_those_that_needed_one() -> None:
    cluster = after_a_failover()
    cluster.assign("refunds", [2], [1])
    cluster.fence(2)
    assert errors(cluster.elect(None)) == {
        ORDERS_0: ErrorCode.NONE,
        ORDERS_1: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        TopicPartition("refunds", 0): ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
    }
    assert cluster.leaders("orders")[0] == 1


def test_a_partition_that_is_named_twice_is_elected_once() -> None:
    cluster = after_a_failover()
    before = cluster.partition("orders").leader_epoch
    cluster.elect([ORDERS_0, ORDERS_0])
    assert cluster.partition("orders").leader_epoch == before + 1


# -- reassignments


def test_a_partition_gets_other_replicas_at_once(cluster: Cluster) -> None:
    cluster.assign("orders", [1, 2])
    assert errors(cluster.reassign({ORDERS_0: [3, 2]})) == {ORDERS_0: ErrorCode.NONE}
    partition = cluster.partition("orders")
    assert (partition.leader, partition.leader_epoch) == (3, 1)
    assert partition.replicas == partition.isr == (3, 2)


def test_the_leader_stays_if_it_is_among_the_new_replicas(cluster: Cluster) -> None:
    cluster.assign("orders", [1, 2])
    cluster.reassign({ORDERS_0: [3, 1]})
    partition = cluster.partition("orders")
    assert (partition.leader, partition.leader_epoch, partition.isr) == (1, 0, (3, 1))


def test_the_same_replicas_again_change_nothing(cluster: Cluster) -> None:
    cluster.assign("orders", [1, 2])
    assert errors(cluster.reassign({ORDERS_0: [1, 2]})) == {ORDERS_0: ErrorCode.NONE}
    assert cluster.partition("orders").partition_epoch == 0


def test_a_partition_moves_to_a_broker_by_a_new_replica_order_and_an_election() -> None:
    """The steps of `fencepost cluster move`."""
    cluster = brokers(3)
    cluster.assign("orders", [1, 2, 3])
    cluster.reassign({ORDERS_0: [3, 1, 2]})
    assert cluster.leaders("orders") == [1]
    cluster.elect([ORDERS_0])
    partition = cluster.partition("orders")
    assert (partition.leader, partition.leader_epoch, partition.isr) == (3, 1, (3, 1, 2))


def test_a_partition_without_a_leader_can_be_moved_to_a_live_broker() -> None:
    cluster = brokers(2)
    cluster.assign("orders", [1])
    cluster.fence(1)
    cluster.reassign({ORDERS_0: [2]})
    partition = cluster.partition("orders")
    assert (partition.leader, partition.leader_epoch, partition.isr) == (2, 2, (2,))


def test_a_dead_broker_among_the_new_replicas_is_not_in_sync(cluster: Cluster) -> None:
    cluster.assign("orders", [1])
    cluster.fence(2)
    cluster.reassign({ORDERS_0: [2, 3]})
    partition = cluster.partition("orders")
    assert (partition.leader, partition.isr, partition.replicas) == (3, (3,), (2, 3))


def test_there_is_never_a_reassignment_to_cancel() -> None:
    cluster = brokers(2)
    cluster.assign("orders", [1])
    cluster.reassign({ORDERS_0: [2]})
    outcomes = cluster.reassign({ORDERS_0: None})
    assert errors(outcomes) == {ORDERS_0: ErrorCode.NO_REASSIGNMENT_IN_PROGRESS}


@pytest.mark.parametrize("replicas", [[], [1, 1], [4], [1, -1], [2]])
def test_invalid_replicas_are_refused(cluster: Cluster, replicas: list[int]) -> None:
    cluster.assign("orders", [1])
    cluster.fence(2)
    outcomes = cluster.reassign({ORDERS_0: replicas})
    assert errors(outcomes) == {ORDERS_0: ErrorCode.INVALID_REPLICA_ASSIGNMENT}
    assert cluster.replicas("orders") == [(1,)]


@pytest.mark.parametrize("replicas", [[3], [3, 2, 1]])
def test_the_replication_factor_changes_only_if_the_request_allows_it(replicas: list[int]) -> None:
    cluster = brokers(3)
    cluster.assign("orders", [1, 2])
    outcomes = cluster.reassign({ORDERS_0: replicas}, allow_replication_factor_change=False)
    assert errors(outcomes) == {ORDERS_0: ErrorCode.INVALID_REPLICATION_FACTOR}
    assert cluster.replicas("orders") == [(1, 2)]
    cluster.reassign({ORDERS_0: replicas})
    assert cluster.replicas("orders") == [tuple(replicas)]


def test_invalid_replicas_are_refused_before_a_change_of_the_replication_factor() -> None:
    cluster = brokers(3)
    cluster.assign("orders", [1, 2])
    outcomes = cluster.reassign({ORDERS_0: [4]}, allow_replication_factor_change=False)
    assert errors(outcomes) == {ORDERS_0: ErrorCode.INVALID_REPLICA_ASSIGNMENT}


@pytest.mark.parametrize("replicas", [[1], None])
def test_a_reassignment_of_a_missing_partition_is_refused(replicas: list[int] | None) -> None:
    cluster = after_a_failover()
    outcomes = cluster.reassign(dict.fromkeys(MISSING, replicas))
    assert errors(outcomes) == dict.fromkeys(MISSING, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def test_one_bad_reassignment_does_not_stop_the_others() -> None:
    cluster = brokers(2)
    cluster.assign("orders", [1], [1])
    outcomes = cluster.reassign({ORDERS_0: [9], ORDERS_1: [2]})
    assert errors(outcomes) == {
        ORDERS_0: ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ORDERS_1: ErrorCode.NONE,
    }
    assert cluster.leaders("orders") == [1, 2]


# -- balance


def test_a_broker_that_came_back_gets_its_share_of_the_leaders(cluster: Cluster) -> None:
    cluster.create("orders", 9, replication_factor=3)
    cluster.create("__transaction_state", 50)
    before = cluster.leaders("orders"), cluster.leaders("__transaction_state")
    cluster.fence(1)
    cluster.bring_back(1)
    cluster.rebalance()
    assert (cluster.leaders("orders"), cluster.leaders("__transaction_state")) == before


def test_a_second_rebalance_changes_nothing(cluster: Cluster) -> None:
    cluster.assign("orders", *[[1, 2, 3]] * 7)
    cluster.assign("refunds", *[[2, 3]] * 5)
    assert cluster.rebalance().records
    assert not decide_rebalance(cluster.state).records


def test_leaders_are_balanced_even_if_all_partitions_prefer_one_broker(cluster: Cluster) -> None:
    cluster.assign("orders", *[[1, 2, 3]] * 10)
    assert Counter(cluster.leaders("orders")) == {1: 10}
    cluster.rebalance()
    assert Counter(cluster.leaders("orders")) == {1: 4, 2: 3, 3: 3}


def test_partitions_with_a_choice_make_up_for_those_without(cluster: Cluster) -> None:
    cluster.assign("orders", *[[1, 2, 3]] * 8)
    cluster.assign("refunds", *[[1]] * 4, *[[2]] * 3)
    cluster.rebalance()
    assert Counter(cluster.leaders("orders")) == {1: 1, 2: 2, 3: 5}


def test_partitions_with_more_choices_make_up_for_those_with_fewer(cluster: Cluster) -> None:
    cluster.assign("orders", *[[1, 2, 3]] * 3)
    cluster.assign("refunds", *[[1, 2]] * 6)
    cluster.rebalance()
    assert Counter(cluster.leaders("refunds")) == {1: 3, 2: 3}
    assert Counter(cluster.leaders("orders")) == {3: 3}


def test_a_difference_of_one_moves_nothing() -> None:
    cluster = brokers(2)
    cluster.assign("orders", [1, 2], [2, 1], [1, 2])
    assert not cluster.rebalance().records


def test_a_dead_broker_gets_no_share_of_the_leaders(cluster: Cluster) -> None:
    cluster.assign("orders", *[[1, 2, 3]] * 4)
    cluster.assign("refunds", [1])
    cluster.fence(1)
    cluster.rebalance()
    assert Counter(cluster.leaders("orders")) == {2: 2, 3: 2}
    assert cluster.leaders("refunds") == [-1]


def test_a_rebalance_in_steps_ends_with_the_same_leaders_as_one_step() -> None:
    def unbalanced() -> Cluster:
        cluster = brokers(3)
        cluster.assign("orders", *[[1, 2, 3]] * 12)
        return cluster

    at_once, in_steps = unbalanced(), unbalanced()
    at_once.rebalance()
    steps = 0
    while records := in_steps.rebalance(at_most=3).records:
        assert len(records) <= 3
        steps += 1
    assert steps == 3
    assert in_steps.leaders("orders") == at_once.leaders("orders")
