"""Commits and aborts whose coordinator and leaders are different brokers."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from io import StringIO

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import TRANSACTION_STATE_TOPIC, TopicPartition
from fencepost.base.limits import END_TXN_WAIT_MS
from fencepost.broker import turns
from fencepost.broker.peers import FirstWrite
from fencepost.broker.transactions.ending import (
    ABORT_POINTS,
    ABORT_REMOTE_POINTS,
    COMMIT_POINTS,
    COMMIT_REMOTE_POINTS,
)
from fencepost.broker.transactions.markers import (
    ABORT_LEADER_POINTS,
    COMMIT_LEADER_POINTS,
    EndMarker,
)
from fencepost.partition.partition import Partition
from fencepost.partition.producers import Producers
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from tests.broker.raw import ClosedError
from tests.cluster.transactions.brokers_stage import BrokersStage, Call
from tests.transactions.protocol import PROTOCOLS, TV1, TV2, Protocol
from tests.transactions.wire import RETRIABLE, WireProducer, committed_offset, state_of, values


def markers_served(
    cluster: BrokersStage, broker_id: int
) -> list[tuple[EndMarker, list[TopicPartition]]]:
    """The markers of other brokers that a broker has served, with their partitions."""
    return [
        request
        for served_by, request in cluster.served
        if served_by == broker_id and not isinstance(request, FirstWrite)
    ]


def end_in_background(cluster: BrokersStage, producer: WireProducer, *, commit: bool) -> Call:
    """Sends EndTxn, and does not wait for its reply."""
    request = producer.end_request(commit=commit)
    return cluster.send(ApiKey.END_TXN, producer.protocol.end_txn, request)


def end(cluster: BrokersStage, producer: WireProducer, *, commit: bool) -> None:
    """EndTxn with the retries of a client."""
    for _ in range(1_000):
        try:
            error = producer.end(commit=commit)
        except ClosedError:
            error = ErrorCode.NOT_COORDINATOR
        if error == ErrorCode.NONE:
            return
        assert error in RETRIABLE, ErrorCode(error)
        cluster.settle()
    raise AssertionError("the transaction never ended")


both = pytest.mark.parametrize("protocol", PROTOCOLS, ids=repr)
durabilities = pytest.mark.parametrize("durability", ["os", "fsync"])


@both
@durabilities
def test_an_end_over_two_brokers_is_that_of_both(protocol: Protocol, durability: str) -> None:
    with BrokersStage(topics={"t": (1, 2)}, durability=durability) as cluster:
        producer = cluster.producer("a", protocol)
        for number in range(4):
            for index in (0, 1):
                producer.send("t", b"%d" % number, index=index)
            producer.commit() if number % 2 else producer.abort()
        for index in (0, 1):
            assert values(cluster, "t", index=index) == [b"1", b"3"]
            outcomes = [commit for commit, _, _ in cluster.markers("t", index)]
            assert outcomes == [False, True] * 2
        assert cluster.open_transactions() == []


@both
def test_offsets_of_a_group_on_a_third_broker_are_committed_with_the_transaction(
    protocol: Protocol,
) -> None:
    with BrokersStage(brokers=3, topics={"t": (2,)}, offsets=(3,)) as cluster:
        producer = cluster.producer("a", protocol)
        producer.send("t", b"x")
        producer.send_offsets("g", {("t", 0): 5})
        producer.commit()
        assert committed_offset(cluster, "g", "t") == 5
        producer.send_offsets("g", {("t", 0): 9})
        producer.abort()
        assert committed_offset(cluster, "g", "t") == 5
        assert cluster.open_transactions() == []


def test_one_request_has_all_markers_of_a_transaction_for_one_leader() -> None:
    with BrokersStage(topics={"t": (2, 1, 2, 2)}) as cluster:
        producer = cluster.producer("a", TV2)
        for index in range(4):
            producer.send("t", b"x", index=index)
        producer.commit()
        ((_, names),) = markers_served(cluster, 2)
        assert names == [("t", 0), ("t", 2), ("t", 3)]


@durabilities
def test_a_hundred_transactions_that_end_in_the_same_turn_all_end(durability: str) -> None:
    with BrokersStage(brokers=3, topics={"t": (2, 3)}, durability=durability) as cluster:
        producers = [cluster.producer(f"id-{number}", TV2) for number in range(100)]
        for producer in producers:
            producer.send("t", b"x", index=0)
            producer.send("t", b"x", index=1)
        calls = [end_in_background(cluster, producer, commit=True) for producer in producers]
        for call in calls:
            assert cluster.wait_for(call).error_code == ErrorCode.NONE
        for broker_id in (2, 3):
            assert len(markers_served(cluster, broker_id)) == 100
        assert len(values(cluster, "t", index=0)) == 100
        assert cluster.open_transactions() == []


def test_a_marker_that_is_not_durable_does_not_delay_those_behind_it() -> None:
    with BrokersStage(topics={"t": (2,), "u": (2,)}, durability="fsync") as cluster:
        slow, quick = cluster.producer("slow", TV2), cluster.producer("quick", TV2)
        slow.send("t", b"x")
        quick.send("u", b"y")
        leader = cluster.brokers[2]
        when_durable = leader.partitions.when_durable
        held: list[Callable[[], None]] = []

        def hold(partition: Partition, end_offset: int, callback: Callable[[], None]) -> None:
            if partition.name.topic == "t":
                held.append(partial(when_durable, partition, end_offset, callback))
            else:
                when_durable(partition, end_offset, callback)

        leader.runtime.when_durable = hold  # type: ignore[method-assign]
        calls = [end_in_background(cluster, each, commit=True) for each in (slow, quick)]
        assert cluster.wait_for(calls[1]).error_code == ErrorCode.NONE
        assert not calls[0].is_done
        (release,) = held
        release()
        assert cluster.wait_for(calls[0]).error_code == ErrorCode.NONE
        assert cluster.open_transactions() == []


def test_a_trace_shows_what_brokers_send_each_other_as_kafka_would() -> None:
    file = StringIO()
    with BrokersStage(topics={"t": (2,)}, trace=file) as cluster:
        producer = cluster.producer("a", TV1)
        producer.send("t", b"x")
        producer.commit()
    _, *lines = [json.loads(line) for line in file.getvalue().splitlines()]
    assert [(line["api"], line["kind"], line["client"]) for line in lines] == [
        ("AddPartitionsToTxn", "request", "peer"),
        ("AddPartitionsToTxn", "reply", "peer"),
        ("WriteTxnMarkers", "request", "peer"),
        ("WriteTxnMarkers", "reply", "peer"),
    ]
    (asked,) = lines[0]["body"]["transactions"]
    assert asked["transactional_id"] == "a"
    assert asked["verify_only"] is True
    assert asked["topics"] == [{"name": "t", "partitions": [0]}]
    (answered,) = lines[1]["body"]["results_by_transaction"]
    assert answered["topic_results"][0]["name"] == "t"
    (marker,) = lines[2]["body"]["markers"]
    assert (marker["producer_id"], marker["transaction_result"]) == (producer.producer_id, True)
    (marked,) = lines[3]["body"]["markers"]
    assert marked["producer_id"] == producer.producer_id
    assert lines[0]["correlation_id"] == lines[1]["correlation_id"] == 1


# -- slow and dead leaders -------------------------------------------------------------------------


def test_a_marker_is_not_sent_again_while_the_first_copy_may_be_unread() -> None:
    with BrokersStage() as cluster:
        producer = cluster.producer("a", TV1)
        producer.send("t", b"x")
        link = cluster.link(1, 2)
        link.is_held = True
        began_ms = cluster.clock.now_ms()
        call = end_in_background(cluster, producer, commit=True)
        # The decision is final, so the client is answered although the marker is unread.
        assert cluster.wait_for(call).error_code == ErrorCode.NONE
        assert cluster.clock.now_ms() - began_ms >= END_TXN_WAIT_MS
        cluster.advance(60_000)
        assert len(link.unread) == 1
        link.release()
        cluster.advance(10)
        assert values(cluster, "t") == [b"x"]
        assert len(cluster.markers("t")) == 1
        assert cluster.open_transactions() == []


@both
@durabilities
@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("number", range(3))
def test_a_leader_that_dies_at_any_point_of_a_marker_is_replaced(
    protocol: Protocol, durability: str, commit: bool, number: int
) -> None:
    with BrokersStage(brokers=3, topics={"t": (1, 2)}, durability=durability) as cluster:
        producer = cluster.producer("a", protocol)
        producer.send("t", b"here", index=0)
        producer.send("t", b"there", index=1)
        points = COMMIT_LEADER_POINTS if commit else ABORT_LEADER_POINTS
        leader = cluster.brokers[2]
        leader.kill_at(points[number])
        call = end_in_background(cluster, producer, commit=commit)
        cluster.wait_until(lambda: leader.is_dead)
        cluster.advance(200)
        assert not call.is_done
        cluster.fail_over(2, leader=3)
        reply = cluster.wait_for(call)
        assert reply.error_code == ErrorCode.NONE
        producer.ended(reply)
        assert values(cluster, "t", index=0) == ([b"here"] if commit else [])
        assert values(cluster, "t", index=1) == ([b"there"] if commit else [])
        assert cluster.open_transactions() == []
        producer.sequences.clear()
        if protocol is TV1:
            producer.sequences.update({("t", 0): 1, ("t", 1): 1})
        producer.send("t", b"next", index=1)
        producer.commit()
        assert values(cluster, "t", index=1)[-1] == b"next"


def test_a_marker_waits_until_its_partition_has_a_leader() -> None:
    with BrokersStage(brokers=3) as cluster:
        producer = cluster.producer("a", TV2)
        producer.send("t", b"x")
        cluster.move("t", 0, -1)
        call = end_in_background(cluster, producer, commit=True)
        cluster.advance(1_000)
        assert not call.is_done
        cluster.move("t", 0, 3)
        assert cluster.wait_for(call).error_code == ErrorCode.NONE
        assert values(cluster, "t") == [b"x"]
        assert cluster.open_transactions() == []


def test_a_marker_follows_a_partition_that_moves_while_it_is_unread() -> None:
    with BrokersStage(brokers=3) as cluster:
        producer = cluster.producer("a", TV2)
        producer.send("t", b"x")
        link = cluster.link(1, 2)
        link.is_held = True
        call = end_in_background(cluster, producer, commit=True)
        cluster.advance(10)
        cluster.move("t", 0, 3)
        cluster.advance(1_000)
        # The old leader still has the first copy, so the new one must not get another.
        assert markers_served(cluster, 3) == []
        link.release()
        assert cluster.wait_for(call).error_code == ErrorCode.NONE
        assert values(cluster, "t") == [b"x"]
        assert cluster.open_transactions() == []


def test_a_marker_of_this_broker_that_was_not_durable_follows_its_partition() -> None:
    with BrokersStage(topics={"t": (1,)}, durability="fsync") as cluster:
        producer = cluster.producer("a", TV2)
        producer.send("t", b"x")
        coordinator = cluster.brokers[1]
        moved: list[str] = []

        def reach(point: str) -> None:
            if point == COMMIT_POINTS.marker_appended and not moved:
                moved.append(point)
                cluster.loop.call_soon(cluster.move, "t", 0, 2)

        coordinator.runtime.crash_points = reach
        producer.commit()
        assert moved
        # The second copy ends nothing: the producer could not begin its next transaction.
        assert markers_served(cluster, 2)
        assert values(cluster, "t") == [b"x"]
        assert cluster.open_transactions() == []


# -- topics that are deleted -----------------------------------------------------------------------


def test_a_leader_that_does_not_know_the_partition_never_settles_its_marker() -> None:
    with BrokersStage(topics={"t": (2,), "u": (2,)}) as cluster:
        producer = cluster.producer("a", TV2)
        producer.send("t", b"x")
        producer.send("u", b"y")
        cluster.lag(1)
        cluster.delete("t")
        call = end_in_background(cluster, producer, commit=True)
        cluster.advance(1_000)
        assert not call.is_done
        assert state_of(cluster, "a") == "PrepareCommit"
        cluster.catch_up(1)
        assert cluster.wait_for(call).error_code == ErrorCode.NONE
        assert values(cluster, "u") == [b"y"]
        assert cluster.open_transactions() == []


@both
def test_a_topic_that_was_created_again_meanwhile_does_not_block_a_commit(
    protocol: Protocol,
) -> None:
    with BrokersStage(brokers=3, topics={"t": (2,), "u": (2,)}) as cluster:
        producer = cluster.producer("a", protocol)
        producer.send("t", b"x")
        producer.send("u", b"y")
        link = cluster.link(1, 2)
        link.is_held = True
        call = end_in_background(cluster, producer, commit=True)
        cluster.advance(10)
        cluster.delete("t")
        cluster.create("t", (3,))
        link.release()
        assert cluster.wait_for(call).error_code == ErrorCode.NONE
        assert values(cluster, "t") == []
        assert values(cluster, "u") == [b"y"]
        assert cluster.open_transactions() == []


# -- coordinators that die or move -----------------------------------------------------------------


@both
@durabilities
@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("number", range(len(COMMIT_POINTS) + len(COMMIT_REMOTE_POINTS)))
def test_the_next_coordinator_finishes_what_one_began_that_died_at_any_point(
    protocol: Protocol, durability: str, commit: bool, number: int
) -> None:
    points = (
        (*COMMIT_POINTS, *COMMIT_REMOTE_POINTS) if commit else (*ABORT_POINTS, *ABORT_REMOTE_POINTS)
    )
    with BrokersStage(brokers=3, topics={"t": (1, 2, 3)}, durability=durability) as cluster:
        producer = cluster.producer("a", protocol)
        for index in range(3):
            producer.send("t", b"%d" % index, index=index)
        cluster.brokers[1].kill_at(points[number])
        call = end_in_background(cluster, producer, commit=commit)
        cluster.wait_until(lambda: cluster.brokers[1].is_dead)
        cluster.advance(500)
        assert not call.is_done or call.is_lost
        cluster.fail_over(1)
        end(cluster, producer, commit=commit)
        for index in range(3):
            assert values(cluster, "t", index=index) == ([b"%d" % index] if commit else [])
        assert cluster.open_transactions() == []


@pytest.mark.parametrize("commit", [True, False])
def test_coordinator_and_leader_may_die_together(commit: bool) -> None:
    with BrokersStage(brokers=3, topics={"t": (2,)}) as cluster:
        producer = cluster.producer("a", TV1)
        producer.send("t", b"x")
        points = COMMIT_LEADER_POINTS if commit else ABORT_LEADER_POINTS
        cluster.brokers[2].kill_at(points.marker_written)
        end_in_background(cluster, producer, commit=commit)
        cluster.wait_until(lambda: cluster.brokers[2].is_dead)
        cluster.kill(1)
        cluster.fail_over(1, leader=3)
        cluster.fail_over(2, leader=3)
        end(cluster, producer, commit=commit)
        assert values(cluster, "t") == ([b"x"] if commit else [])
        assert cluster.open_transactions() == []


@both
def test_a_coordinator_that_moves_ignores_late_replies_and_the_next_one_finishes(
    protocol: Protocol,
) -> None:
    with BrokersStage(brokers=3) as cluster:
        producer = cluster.producer("a", protocol)
        producer.send("t", b"x")
        link = cluster.link(2, 1)
        link.is_held = True
        call = end_in_background(cluster, producer, commit=True)
        cluster.advance(10)
        assert len(cluster.markers("t")) == 1
        cluster.move(TRANSACTION_STATE_TOPIC, 0, 3)
        cluster.advance(1_000)
        link.release()
        cluster.advance(1_000)
        assert call.is_done
        end(cluster, producer, commit=True)
        assert [epoch for _, _, epoch in cluster.markers("t")] == [0, 1]
        assert values(cluster, "t") == [b"x"]
        assert cluster.open_transactions() == []


def test_a_coordinator_that_moved_retries_nothing_when_its_leader_dies() -> None:
    with BrokersStage(brokers=3) as cluster:
        producer = cluster.producer("a", TV1)
        producer.send("t", b"x")
        cluster.link(1, 2).is_held = True
        end_in_background(cluster, producer, commit=True)
        cluster.advance(10)
        cluster.link(3, 2).is_held = True
        cluster.move(TRANSACTION_STATE_TOPIC, 0, 3)
        cluster.advance(10)
        cluster.kill(2)
        cluster.fail_over(2, leader=1)
        cluster.advance(1_000)
        assert [epoch for _, _, epoch in cluster.markers("t")] == [1]
        assert cluster.open_transactions() == []


def test_a_broker_that_does_not_lead_the_partition_says_so() -> None:
    with BrokersStage(topics={"t": (2,)}) as cluster:
        producer = cluster.producer("a", TV1)
        request = markers_request(producer, "t", "unknown")
        reply = cluster.brokers[1].call(ApiKey.WRITE_TXN_MARKERS, 1, request)
        errors = {topic.name: topic.partitions[0].error_code for topic in reply.markers[0].topics}
        assert errors == {
            "t": ErrorCode.NOT_LEADER_OR_FOLLOWER,
            "unknown": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }


def markers_request(producer: WireProducer, *topics: str) -> WriteTxnMarkersRequest:
    marker = WritableTxnMarker(
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        topics=[WritableTxnMarkerTopic(name=topic, partition_indexes=[0]) for topic in topics],
    )
    return WriteTxnMarkersRequest(markers=[marker])


def test_a_late_marker_of_a_coordinator_that_moved_does_not_end_the_next_transaction() -> None:
    with BrokersStage(brokers=3) as cluster:
        producer = cluster.producer("a", TV1)
        producer.send("t", b"x")
        late = cluster.link(1, 2)
        late.is_held = True
        call = end_in_background(cluster, producer, commit=True)
        cluster.move(TRANSACTION_STATE_TOPIC, 0, 3)  # In the turn in which the marker was sent.
        cluster.advance(1_000)
        assert call.is_done
        end(cluster, producer, commit=True)
        producer.send("t", b"next")
        late.release()
        cluster.advance(1_000)
        assert [epoch for _, _, epoch in cluster.markers("t")] == [1]
        assert values(cluster, "t") == [b"x"]
        producer.abort()
        assert values(cluster, "t") == [b"x"]
        assert cluster.open_transactions() == []


@pytest.mark.interpreted
@pytest.mark.parametrize("checks_epoch", [True, False])
@pytest.mark.parametrize("has_offset_rule", [True, False])
def test_a_late_marker_of_a_dead_coordinator_does_not_end_the_next_transaction(
    has_offset_rule: bool, checks_epoch: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Either of two rules is enough; without both, the planted bug shows.

    The offset of the metadata log closes the link to the dead coordinator before the markers of the
    next one are served. And a partition that has seen the epoch of the next coordinator refuses the
    markers of the last one. Verification is off: a leader that has not heard of the death could not
    verify the next transaction.
    """
    if not checks_epoch:
        monkeypatch.setattr(Producers, "check_marker", lambda *given, **named: None)
    settings = {"transaction.partition.verification.enable": "false"}
    with BrokersStage(brokers=3, has_offset_rule=has_offset_rule, settings=settings) as cluster:
        producer = cluster.producer("a", TV1)
        producer.send("t", b"first")
        late = cluster.link(1, 2)
        late.is_held = True
        end_in_background(cluster, producer, commit=True)
        cluster.advance(10)
        assert len(late.unread) == 1
        cluster.kill(1)
        # The leader has not heard of the death yet.
        cluster.lag(2)
        cluster.fail_over(1, leader=3)
        if has_offset_rule:
            cluster.advance(1_000)
            assert cluster.markers("t") == []
            cluster.catch_up(2)
        end(cluster, producer, commit=True)
        producer.send("t", b"second")
        late.release()
        cluster.advance(10)
        is_planted = not has_offset_rule and not checks_epoch
        assert values(cluster, "t") == [b"first", *([b"second"] if is_planted else [])]
        cluster.catch_up(2)
        producer.abort()
        assert values(cluster, "t") == [b"first", *([b"second"] if is_planted else [])]


def test_a_request_of_many_markers_stops_when_its_sender_is_fenced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns, "TURN_SECONDS", 0.0)  # One marker in each turn.
    with BrokersStage(brokers=3, topics={"t": (2,) * 50}) as cluster:
        producer = cluster.producer("a", TV1)
        for index in range(50):
            producer.send("t", b"x", index=index)
        leader = cluster.brokers[2]
        written = COMMIT_LEADER_POINTS.marker_written
        count_until = leader.runtime.crash_points
        assert count_until is not None

        def fence() -> None:
            cluster.kill(1)
            cluster.lag(3)  # The next coordinator does not act yet.
            cluster.fail_over(1, leader=3)

        def reach(point: str) -> None:
            count_until(point)
            if point == written and leader.points.count(written) == 10:
                cluster.loop.call_soon(fence)

        leader.runtime.crash_points = reach
        end_in_background(cluster, producer, commit=True)
        cluster.advance(1_000)
        assert 10 <= leader.points.count(written) <= 11
        cluster.catch_up(3)
        end(cluster, producer, commit=True)
        for index in range(50):
            assert values(cluster, "t", index=index) == [b"x"]
        assert cluster.open_transactions() == []
