"""First writes whose transaction is coordinated by another broker."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import TRANSACTION_STATE_TOPIC, TopicPartition
from fencepost.base.limits import FIRST_WRITE_WAIT_MS
from fencepost.broker.peers import FirstWrite
from fencepost.wire.apis import ApiKey
from tests.cluster.transactions.brokers_stage import BrokersStage, Call
from tests.records.malformed import batch, record
from tests.transactions.protocol import PROTOCOLS, TV1, TV2, Protocol
from tests.transactions.requests import produce_request
from tests.transactions.wire import WireProducer, state_of, values

both = pytest.mark.parametrize("protocol", PROTOCOLS, ids=repr)


def produce_in_background(cluster: BrokersStage, producer: WireProducer, *values: bytes) -> Call:
    request = producer.produce_request("t", *values)
    return cluster.send(ApiKey.PRODUCE, producer.protocol.produce, request)


def error_of(reply: Any) -> ErrorCode:
    return ErrorCode(reply.responses[0].partition_responses[0].error_code)


def asked(cluster: BrokersStage) -> list[int]:
    """The brokers that have served questions of others."""
    return [broker for broker, request in cluster.served if isinstance(request, FirstWrite)]


@both
def test_a_first_write_is_verified_once_by_the_coordinator_on_another_broker(
    protocol: Protocol,
) -> None:
    with BrokersStage() as cluster:
        producer = cluster.producer("a", protocol)
        for number in range(3):
            producer.send("t", b"%d" % number)
        (write,) = [each for _, each in cluster.served if isinstance(each, FirstWrite)]
        assert write.add is (protocol is TV2)
        producer.commit()
        assert values(cluster, "t") == [b"0", b"1", b"2"]


@both
def test_an_unreadable_batch_is_refused_after_the_coordinator_has_verified_it(
    protocol: Protocol,
) -> None:
    with BrokersStage() as cluster:
        producer = cluster.producer("a", protocol)
        if protocol is TV1:
            producer.add_one("t")
        bad = batch(
            record(off_by=1),
            1,
            base_sequence=0,
            transactional=True,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
        )
        request = produce_request({("t", 0): bad}, transactional_id="a")
        reply = cluster.call(ApiKey.PRODUCE, protocol.produce, request)
        assert error_of(reply) is ErrorCode.INVALID_RECORD
        producer.send("t", b"readable")
        producer.commit()
        assert values(cluster, "t") == [b"readable"]


@both
def test_a_fenced_producer_is_refused_by_a_leader_that_has_not_seen_the_next_one(
    protocol: Protocol,
) -> None:
    with BrokersStage() as cluster:
        old = cluster.producer("a", protocol)
        cluster.producer("a", protocol)
        assert old.produce("t", b"x").error_code == ErrorCode.INVALID_PRODUCER_EPOCH
        assert values(cluster, "t", committed=False) == []


@both
def test_a_leader_asks_the_next_coordinator_when_the_first_one_dies(protocol: Protocol) -> None:
    with BrokersStage(brokers=3) as cluster:
        producer = cluster.producer("a", protocol)
        producer.join(("t", 0))
        cluster.link(2, 1).is_held = True
        call = produce_in_background(cluster, producer, b"x")
        cluster.advance(500)
        assert not call.is_done
        cluster.kill(1)
        cluster.advance(500)
        assert not call.is_done
        cluster.fail_over(1, leader=3)
        assert error_of(cluster.wait_for(call)) is ErrorCode.NONE
        producer.commit()
        assert values(cluster, "t") == [b"x"]
        assert cluster.open_transactions() == []


@both
def test_a_leader_that_becomes_the_coordinator_itself_answers_its_own_question(
    protocol: Protocol,
) -> None:
    with BrokersStage() as cluster:
        producer = cluster.producer("a", protocol)
        producer.join(("t", 0))
        cluster.link(2, 1).is_held = True
        call = produce_in_background(cluster, producer, b"x")
        cluster.kill(1)
        cluster.fail_over(1, leader=2)
        assert error_of(cluster.wait_for(call)) is ErrorCode.NONE


@both
def test_a_question_waits_at_a_broker_that_does_not_know_yet_that_it_coordinates(
    protocol: Protocol,
) -> None:
    with BrokersStage(brokers=3) as cluster:
        producer = cluster.producer("a", protocol)
        producer.join(("t", 0))
        cluster.lag(3)
        cluster.move(TRANSACTION_STATE_TOPIC, 0, 3)
        call = produce_in_background(cluster, producer, b"x")
        cluster.advance(1_000)
        assert not call.is_done
        assert asked(cluster) == []
        cluster.catch_up(3)
        assert error_of(cluster.wait_for(call)) is ErrorCode.NONE


@both
def test_a_coordinator_that_never_answers_costs_the_producer_a_retry(protocol: Protocol) -> None:
    with BrokersStage() as cluster:
        producer = cluster.producer("a", protocol)
        producer.join(("t", 0))
        link = cluster.link(2, 1)
        link.is_held = True
        began_ms = cluster.clock.now_ms()
        call = produce_in_background(cluster, producer, b"x")
        assert error_of(cluster.wait_for(call)) is ErrorCode.NOT_ENOUGH_REPLICAS
        waited_ms = cluster.clock.now_ms() - began_ms
        assert FIRST_WRITE_WAIT_MS <= waited_ms <= FIRST_WRITE_WAIT_MS + 100
        # The late reply changes nothing, and the client's retry is verified again.
        link.release()
        cluster.advance(10)
        assert values(cluster, "t", committed=False) == []
        producer.send("t", b"x")
        producer.commit()
        assert values(cluster, "t") == [b"x"]


def test_a_first_write_without_any_coordinator_is_refused_after_a_while() -> None:
    with BrokersStage(brokers=3) as cluster:
        producer = cluster.producer("a", TV2)
        cluster.move(TRANSACTION_STATE_TOPIC, 0, -1)
        call = produce_in_background(cluster, producer, b"x")
        assert error_of(cluster.wait_for(call)) is ErrorCode.NOT_ENOUGH_REPLICAS
        cluster.move(TRANSACTION_STATE_TOPIC, 0, 3)
        cluster.advance(1_000)
        assert asked(cluster) == []


def test_a_broker_that_does_not_coordinate_an_id_asks_no_other_for_its_peer() -> None:
    with BrokersStage(brokers=3) as cluster:
        producer = cluster.producer("a", TV1)
        write = FirstWrite(
            [TopicPartition("t", 0)], "a", producer.producer_id, producer.epoch, add=False
        )
        replies: list[Any] = []
        cluster.brokers[2].peers.verify(3, write, replies.append)
        cluster.wait_until(lambda: bool(replies))
        assert replies == [[ErrorCode.NOT_COORDINATOR]]
        assert asked(cluster) == [3]


def test_a_topic_that_only_the_coordinator_knows_to_be_deleted_costs_the_others_nothing() -> None:
    with BrokersStage(topics={"t": (2,), "u": (2,)}) as cluster:
        producer = cluster.producer("a", TV2)
        cluster.lag(2)
        cluster.delete("t")
        batches = {(name, 0): producer.batch(b"x", topic=name) for name in ("t", "u")}
        request = produce_request(batches, transactional_id="a")
        reply = cluster.brokers[2].call(ApiKey.PRODUCE, TV2.produce, request)
        errors = {each.name: each.partition_responses[0].error_code for each in reply.responses}
        assert errors["u"] == ErrorCode.NONE
        cluster.catch_up(2)
        producer.commit()
        assert values(cluster, "u") == [b"x"]
        assert cluster.open_transactions() == []


def test_a_question_that_a_marker_overtakes_does_not_open_a_transaction_that_nothing_ends() -> None:
    with BrokersStage() as cluster:
        producer = cluster.producer("a", TV1)
        producer.join(("t", 0))
        replies = cluster.link(1, 2)
        call = produce_in_background(cluster, producer, b"x")
        replies.is_held = True
        cluster.advance(10)
        # The coordinator has confirmed the write; its reply and the marker are unread.
        assert len(replies.unread) == 1
        producer_at_timeout = cluster.send(
            ApiKey.END_TXN, TV1.end_txn, producer.end_request(commit=False)
        )
        cluster.advance(10)
        reply, marker = replies.unread
        replies.unread.clear()
        replies.unread.extend((marker, reply))  # As if the reply had come on a slower link.
        replies.release()
        assert error_of(cluster.wait_for(call)) is ErrorCode.INVALID_TXN_STATE
        assert cluster.wait_for(producer_at_timeout).error_code == ErrorCode.NONE
        assert values(cluster, "t", committed=False) == []
        assert cluster.open_transactions() == []


def test_a_write_waits_for_the_markers_of_the_previous_transaction_at_the_coordinator() -> None:
    with BrokersStage(brokers=3, topics={"t": (2,), "u": (3,)}) as cluster:
        producer = cluster.producer("a", TV2)
        producer.send("u", b"x")
        link = cluster.link(1, 3)
        link.is_held = True
        end = cluster.send(ApiKey.END_TXN, TV2.end_txn, producer.end_request(commit=True))
        cluster.advance(10)
        assert state_of(cluster, "a") == "PrepareCommit"
        producer.epoch += 1
        producer.sequences.clear()
        call = produce_in_background(cluster, producer, b"next")
        cluster.advance(20)
        assert not call.is_done
        link.release()
        assert cluster.wait_for(end).error_code == ErrorCode.NONE
        assert error_of(cluster.wait_for(call)) is ErrorCode.NONE
