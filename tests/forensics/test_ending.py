"""Goal: ending a transaction does what it says, once, and only to the transaction that was shown.

Method: prepared situations on a broker; between the plan and the action the situation changes.
"""

from __future__ import annotations

import pytest

import fencepost
from fencepost.base.failures import FencepostError
from fencepost.base.ids import TopicPartition
from fencepost.client.blocking import Cluster
from fencepost.client.failures import ProducerFenced, Refused, UnknownTopicOrPartition
from fencepost.forensics.ending import (
    Action,
    IdPlan,
    MarkerPlan,
    NothingOpen,
    carry_out,
    plan_ending,
    plan_marker,
    write_marker,
)
from fencepost.records.builder import build_batch
from fencepost.records.opened import Record
from tests.forensics.situations.open_transactions import (
    OpenTransaction,
    begin,
    create_topic,
    end,
    forgotten_hanging_transaction,
    hanging_transaction,
    now_ms,
    pinned_partition,
    produce,
    stuck_marker_on_fencepost,
    until,
    without_verification,
)


def visible(cluster: Cluster, partition: TopicPartition) -> list[bytes | None]:
    """What a reader of committed records sees up to the end."""
    stop = cluster.list_offsets({partition: -1}, isolation="read_uncommitted")[partition].offset
    until(
        lambda: (
            cluster.list_offsets({partition: -1}, isolation="read_committed")[partition].offset
            == stop
        )
    )
    return [each.value for each in cluster.records(partition, isolation="read_committed")]


def planned(cluster: Cluster, action: Action, opened: OpenTransaction) -> IdPlan:
    plan = plan_ending(cluster, action, opened.transactional_id)
    assert isinstance(plan, IdPlan)
    return plan


@pytest.mark.parametrize(
    ("action", "seen"),
    [(Action.FENCE, [b"plain"]), (Action.ABORT, [b"plain"]), (Action.COMMIT, [b"open", b"plain"])],
)
def test_each_action_ends_the_transaction_on_all_partitions_and_a_second_one_finds_nothing(
    servers: str, cluster: Cluster, name: str, action: Action, seen: list[bytes]
) -> None:
    with pinned_partition(servers, name, name, partitions=2) as opened:
        ended = carry_out(cluster, planned(cluster, action, opened))
        assert ended.partitions == tuple(opened.starts)
        assert [visible(cluster, place) for place in opened.starts] == [seen, seen]
        assert isinstance(plan_ending(cluster, action, name), NothingOpen)
        with pytest.raises((ProducerFenced, Refused)):
            cluster.end_txn(opened.identity, commit=action is not Action.COMMIT)


def test_a_transaction_that_ended_meanwhile_is_not_touched(
    servers: str, cluster: Cluster, name: str
) -> None:
    with pinned_partition(servers, name, name) as opened:
        plan = planned(cluster, Action.FENCE, opened)
        cluster.end_txn(opened.identity, commit=True)
        with pytest.raises(FencepostError, match=r"has changed since: it is CompleteCommit now"):
            carry_out(cluster, plan)


def test_the_next_transaction_of_the_same_id_is_not_ended_for_the_last_one(
    servers: str, cluster: Cluster, name: str
) -> None:
    with pinned_partition(servers, name, name) as opened:
        plan = planned(cluster, Action.COMMIT, opened)
        end(cluster, name)
        (place,) = opened.starts
        begin(cluster, name, [place])
        with pytest.raises(FencepostError, match="has changed since: it is Ongoing now"):
            carry_out(cluster, plan)


def test_commit_refuses_while_the_producer_is_still_at_work(
    servers: str, cluster: Cluster, name: str
) -> None:
    with pinned_partition(servers, name, name) as opened:
        plan = planned(cluster, Action.COMMIT, opened)
        (other,) = create_topic(cluster, f"{name}-other")
        with cluster.writer(opened.identity) as writer:
            writer.write_records(other, [Record(value=b"more")])
            writer.flush()
        with pytest.raises(FencepostError, match="still at work"):
            carry_out(cluster, plan)


def test_a_deleted_topic_does_not_keep_its_transaction_from_being_ended(
    servers: str, cluster: Cluster, name: str
) -> None:
    with pinned_partition(servers, name, name) as opened:
        plan = planned(cluster, Action.FENCE, opened)
        cluster.delete_topics([name])
        assert carry_out(cluster, plan).new_producer_epoch is not None
        assert isinstance(plan_ending(cluster, Action.FENCE, name), NothingOpen)


def test_fence_locks_out_an_idle_producer_only_if_asked_to(cluster: Cluster, name: str) -> None:
    identity = cluster.init_producer_id(name)
    assert isinstance(plan_ending(cluster, Action.FENCE, name), NothingOpen)
    plan = plan_ending(cluster, Action.FENCE, name, even_idle=True)
    assert isinstance(plan, IdPlan)
    assert carry_out(cluster, plan).new_producer_epoch == identity.producer_epoch + 1


@pytest.mark.parametrize(
    "odd", ["ü ñ 漢", "with 'quotes' \"both\"", "-dash", "a:0", " ", "x" * 500]
)
def test_odd_ids_are_ended_like_others(servers: str, cluster: Cluster, name: str, odd: str) -> None:
    with pinned_partition(servers, name, odd) as opened:
        carry_out(cluster, planned(cluster, Action.ABORT, opened))


def test_unknown_and_empty_ids_are_refused_and_not_created(cluster: Cluster, name: str) -> None:
    for action in Action:
        with pytest.raises(FencepostError, match="No coordinator knows"):
            plan_ending(cluster, action, name, even_idle=True)
        with pytest.raises(FencepostError, match="must not be empty"):
            plan_ending(cluster, action, "")
    assert cluster.describe_transactions([name]) == {name: None}


def test_a_transaction_whose_marker_is_stuck_is_left_to_its_coordinator(
    broker: fencepost.Broker, cluster: Cluster, name: str
) -> None:
    with stuck_marker_on_fencepost(broker, name, name) as opened:
        for action in (Action.FENCE, Action.ABORT):
            with pytest.raises(FencepostError, match=f"already being committed.*{name}-0"):
                plan_ending(cluster, action, name)
        assert isinstance(plan_ending(cluster, Action.COMMIT, name), NothingOpen)
        (place,) = opened.starts
        with pytest.raises(FencepostError, match="PrepareCommit: its coordinator is writing"):
            plan_marker(cluster, place, opened.identity.producer_id, None)


# By partition.


@pytest.mark.parametrize("situation", [hanging_transaction, forgotten_hanging_transaction])
def test_a_hanging_transaction_is_aborted_on_its_partition(
    servers: str, cluster: Cluster, name: str, situation: object
) -> None:
    with situation(servers, name) as opened:  # type: ignore[operator]
        ((place, offset),) = opened.starts.items()
        plan = plan_marker(cluster, place, opened.identity.producer_id, offset)
        assert isinstance(plan, MarkerPlan)
        assert write_marker(cluster, plan).partitions == (place,)
        assert visible(cluster, place) == []
        again = plan_marker(cluster, place, opened.identity.producer_id, None)
        assert isinstance(again, NothingOpen)
        with pytest.raises(FencepostError, match="has changed since"):
            write_marker(cluster, plan)


def test_a_marker_is_refused_while_a_coordinator_has_the_transaction(
    servers: str, cluster: Cluster, name: str
) -> None:
    with pinned_partition(servers, name, name) as opened:
        ((place, offset),) = opened.starts.items()
        for producer_id, start in ((opened.identity.producer_id, None), (None, offset)):
            with pytest.raises(FencepostError, match=rf"tear it in half.*txn fence {name}`"):
                plan_marker(cluster, place, producer_id, start, force=True)


def test_a_transaction_that_a_producer_adopts_meanwhile_is_not_torn(
    servers: str, cluster: Cluster, name: str
) -> None:
    with hanging_transaction(servers, name) as opened:
        (place,) = opened.starts
        plan = plan_marker(cluster, place, opened.identity.producer_id, None)
        assert isinstance(plan, MarkerPlan)
        begin(cluster, opened.transactional_id, [place])
        with pytest.raises(FencepostError, match="live transaction"):
            write_marker(cluster, plan)
        end(cluster, opened.transactional_id)


def test_a_newer_epoch_of_the_hanging_producer_is_not_aborted_for_the_old_one(
    servers: str, cluster: Cluster, name: str
) -> None:
    with forgotten_hanging_transaction(servers, name) as opened:
        (place,) = opened.starts
        plan = plan_marker(cluster, place, opened.identity.producer_id, None)
        assert isinstance(plan, MarkerPlan)
        newer = build_batch(
            [Record(value=b"newer")],
            timestamp_ms=now_ms(),
            producer_id=opened.identity.producer_id,
            producer_epoch=opened.identity.producer_epoch + 1,
            base_sequence=0,
            transactional=True,
        )
        with without_verification(cluster):
            produce(cluster, place, newer, f"{name}-nobody")
        with pytest.raises(FencepostError, match="its producer has another epoch"):
            write_marker(cluster, plan)


def test_a_topic_that_does_not_exist_is_said(cluster: Cluster, name: str) -> None:
    with pytest.raises(UnknownTopicOrPartition):
        plan_marker(cluster, TopicPartition(name, 0), 1, None)
