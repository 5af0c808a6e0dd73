"""A producer that hangs, for real: a broker that holds its request, a tap in between, and a client.

The seed of all this: a producer hangs inside a call for longer than its transaction timeout and is
then told that it was fenced. The trace must show which request was in flight, since when, how old
the transaction was, and which broker had it; while it hangs, and afterwards.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer

import fencepost
from fencepost.base.ids import TopicPartition
from fencepost.client.admin import NewTopic
from fencepost.client.blocking import Cluster, connect
from fencepost.client.failures import Refused
from fencepost.client.transactions import ProducerIdentity
from fencepost.forensics.tap.swimlane import show
from fencepost.forensics.tap.swimlane.conclusion import TIMEOUT, Conclusion, Outcome, conclude
from fencepost.forensics.tap.swimlane.conclusion_words import sentences
from fencepost.forensics.tap.swimlane.waits import Place
from fencepost.records.opened import Record
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.end_txn import EndTxnRequest
from tests.broker.raw import frame_of
from tests.forensics.conftest import HURRY
from tests.forensics.situations import await_state
from tools.tap_process import TapProcess

ID = "refunds-1"
PAYMENTS = TopicPartition("payments", 0)
TIMEOUT_MS = 1_500
BROKER = "broker 1"


class Held:
    """Requests that a broker holds until they are released; later ones pass then."""

    def __init__(self, broker: fencepost.Broker, api: ApiKey, count: int = 1) -> None:
        self._broker = broker
        self._held: list[Callable[[], None]] = []
        self._is_open = False
        for _ in range(count):
            broker.call(lambda node: node.faults.delay(api, self._hold))

    def _hold(self, resume: Callable[[], None]) -> None:
        if self._is_open:
            resume()
        else:
            self._held.append(resume)

    def release(self) -> None:
        def resume_all(_: object) -> None:
            self._is_open = True
            for resume in self._held:
                resume()

        self._broker.call(resume_all)


@pytest.fixture
def broker() -> Iterator[fencepost.Broker]:
    with fencepost.Broker(config=HURRY) as running:
        with connect(running.bootstrap_servers) as cluster:
            cluster.create_topics([NewTopic(PAYMENTS.topic, partitions=1)])
        yield running


@pytest.fixture
def direct(broker: fencepost.Broker) -> Iterator[Cluster]:
    """A client that does not use the tap."""
    with connect(broker.bootstrap_servers) as cluster:
        yield cluster


@pytest.fixture
def tap(broker: fencepost.Broker, tmp_path: Path) -> Iterator[TapProcess]:
    with TapProcess(broker.bootstrap_servers, tmp_path / "trace.jsonl", "--bytes") as running:
        yield running


def begun(cluster: Cluster) -> ProducerIdentity:
    identity = cluster.init_producer_id(ID, timeout_ms=TIMEOUT_MS)
    with cluster.writer(identity) as writer:
        writer.write_records(PAYMENTS, [Record(value=b"v")])
        writer.flush()
    return identity


def concluded(tap: TapProcess) -> Conclusion:
    (found,) = conclude(show.story(show.read(str(tap.out), None, None), ID))
    return found


def is_end_txn(kind: str) -> Callable[[dict[str, Any]], bool]:
    return lambda line: line.get("api") == "EndTxn" and line["kind"] == kind


def await_waiting_past_the_timeout(tap: TapProcess) -> None:
    """Waits until the trace shows that a request has waited for longer than the timeout."""
    sent_us = tap.wait_for(is_end_txn("request"))["time_us"]
    late_us = sent_us + TIMEOUT_MS * 1000
    tap.wait_for(lambda line: line["kind"] == "waiting" and line["time_us"] >= late_us)


def assert_hung_in_end_txn(found: Conclusion) -> None:
    """What, since when, how old, and where."""
    assert found.call is not None
    assert (found.call.api, found.call.broker) == ("EndTxn", BROKER)
    assert found.wait is not None
    assert (found.wait.place, found.wait.since_us) == (
        Place.IN_CALL,
        found.wait.attempts[0].time_us,
    )
    assert found.wait.spent_us >= TIMEOUT_MS * 1000 / 2
    transaction = found.transaction
    assert transaction is not None
    assert (transaction.timeout_ms, transaction.coordinator) == (TIMEOUT_MS, BROKER)
    assert found.age_us is not None
    assert found.age_us >= TIMEOUT_MS * 1000
    assert found.by.value == TIMEOUT
    assert "EndTxn" in [call.api for call in found.in_flight_then]


def test_a_call_that_hangs_past_the_timeout_is_told_while_it_hangs_and_afterwards(
    broker: fencepost.Broker, direct: Cluster, tap: TapProcess
) -> None:
    held = Held(broker, ApiKey.END_TXN)
    with connect(tap.bootstrap_servers) as cluster, ThreadPoolExecutor(1) as other:
        identity = begun(cluster)
        ended = other.submit(cluster.end_txn, identity, commit=True)
        await_state(direct, ID, "CompleteAbort")
        await_waiting_past_the_timeout(tap)

        hanging = concluded(tap)
        assert hanging.outcome is Outcome.WAITING
        assert_hung_in_end_txn(hanging)
        drawn = "\n".join(show.drawing(show.story(show.read(str(tap.out), None, None), ID), 120))
        assert "EndTxn: no reply" in drawn
        assert "the trace ends" in drawn
        assert "EndTxn to broker 1 has been in flight for " in drawn

        held.release()
        with pytest.raises(Refused):
            ended.result()
    tap.wait_for(is_end_txn("reply"))
    fenced = concluded(tap)
    assert fenced.outcome is Outcome.FENCED
    assert_hung_in_end_txn(fenced)
    assert "~fenced by its transaction timeout" in "\n".join(sentences(ID, [fenced]))


def test_a_connection_that_is_lost_in_the_call_is_told(
    broker: fencepost.Broker, direct: Cluster, tap: TapProcess
) -> None:
    held = Held(broker, ApiKey.END_TXN)
    with connect(tap.bootstrap_servers) as cluster:
        identity = begun(cluster)
    request = EndTxnRequest(
        transactional_id=ID,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        committed=True,
    )
    host, _, port = tap.bootstrap_servers.rpartition(":")
    with socket.create_connection((host, int(port))) as client:
        client.sendall(frame_of(ApiKey.END_TXN, 3, request, 1))
        await_state(direct, ID, "CompleteAbort")
        await_waiting_past_the_timeout(tap)
        # Closing resets the connection, as the end of a killed process may.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    tap.wait_for(lambda line: line.get("event") == "closed" and line["unanswered_requests"])
    found = concluded(tap)
    assert found.outcome is Outcome.LOST
    assert_hung_in_end_txn(found)
    assert "whether it took effect is not in the trace." in sentences(ID, [found])[0]
    held.release()


def test_a_producer_that_is_silent_past_the_timeout_is_told(
    direct: Cluster, tap: TapProcess
) -> None:
    with connect(tap.bootstrap_servers) as cluster:
        identity = begun(cluster)
        await_state(direct, ID, "CompleteAbort")
        with pytest.raises(Refused):
            cluster.end_txn(identity, commit=True)
    tap.wait_for(is_end_txn("reply"))
    found = concluded(tap)
    assert found.outcome is Outcome.FENCED
    assert found.wait is not None
    assert found.wait.place is Place.BEFORE_CALL
    assert (found.by.value, found.in_flight_then) == (TIMEOUT, [])


def test_librdkafka_gives_up_a_call_that_hangs_and_its_attempts_belong_together(
    broker: fencepost.Broker, direct: Cluster, tap: TapProcess
) -> None:
    held = Held(broker, ApiKey.END_TXN, count=5)
    producer = Producer(
        {
            "bootstrap.servers": tap.bootstrap_servers,
            "transactional.id": ID,
            "transaction.timeout.ms": TIMEOUT_MS,
        }
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(PAYMENTS.topic, b"v")
    producer.flush(30)
    failure: list[BaseException] = []

    def commit() -> None:
        try:
            producer.commit_transaction(60)
        except KafkaException as problem:
            failure.append(problem)

    thread = threading.Thread(target=commit)
    thread.start()
    await_state(direct, ID, "CompleteAbort")
    held.release()
    thread.join(60)
    assert failure, "the transaction was aborted"
    tap.wait_for(lambda line: is_end_txn("reply")(line) and line["errors"])
    found = concluded(tap)
    assert found.outcome is Outcome.FENCED
    assert_hung_in_end_txn(found)
