"""What each client library raises if a commit fails: the table of docs/concepts/recovering.md."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import aiokafka
import confluent_kafka
import kafka
import pytest

import fencepost
from fencepost.base.errors import ErrorCode
from fencepost.wire.apis import ApiKey

NewName = Callable[[str], str]

FENCED = "a newer instance fenced it"
INVALID_STATE = "INVALID_TXN_STATE (48)"
UNKNOWN_ID = "INVALID_PRODUCER_ID_MAPPING (49)"
CONCURRENT = "CONCURRENT_TRANSACTIONS (51)"
MOVED = "NOT_COORDINATOR (16)"
LOST = "the reply to EndTxn was lost"
TOO_LARGE = "a record above `max.message.bytes`"

COMMITTED = "committed"
RAISED = {
    "confluent-kafka": {
        FENCED: "_FENCED fatal",
        INVALID_STATE: "INVALID_TXN_STATE fatal",
        UNKNOWN_ID: "INVALID_PRODUCER_ID_MAPPING abort",
        TOO_LARGE: "MSG_SIZE_TOO_LARGE abort",
    },
    "kafka-python": {
        FENCED: "ProducerFencedError",
        INVALID_STATE: "InvalidTxnStateError",
        UNKNOWN_ID: "KafkaError",
        TOO_LARGE: "KafkaError",
    },
    "aiokafka": {FENCED: "ProducerFenced", INVALID_STATE: "KafkaError", UNKNOWN_ID: "KafkaError"},
}
"""Without an entry the commit succeeds: the client retried EndTxn, or, aiokafka with a record
that is too large, left the record out."""

CASES = [
    (client, case)
    for client in RAISED
    for case in (FENCED, INVALID_STATE, UNKNOWN_ID, CONCURRENT, MOVED, LOST, TOO_LARGE)
]


@pytest.mark.parametrize(("client", "case"), CASES)
def test_a_failed_commit_is_reported_as_documented(
    broker: fencepost.Broker, new_name: NewName, client: str, case: str
) -> None:
    outcome = asyncio.run(_CLIENTS[client](broker, new_name("failing"), case))
    assert outcome == RAISED[client].get(case, COMMITTED)


@pytest.mark.parametrize(("then", "copies"), [("commit", 1), ("abort", 2)])
def test_after_a_commit_that_timed_out_only_the_same_call_again_writes_once(
    broker: fencepost.Broker, new_name: NewName, then: str, copies: int
) -> None:
    """The wrong branch of a well-known flow chart: abort, and a fresh transaction."""
    topic = transactional_id = new_name("late")
    servers = {"bootstrap.servers": broker.bootstrap_servers, "log_level": "0"}
    settings = servers | {"transactional.id": transactional_id}
    producer = confluent_kafka.Producer(settings)
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(topic, b"49900")
    producer.flush()
    held: queue.Queue[Callable[[], None]] = queue.Queue()
    broker.call(lambda node: node.faults.delay(ApiKey.END_TXN, held.put))
    with pytest.raises(confluent_kafka.KafkaException) as timeout:
        producer.commit_transaction(1)
    assert timeout.value.args[0].retriable()
    release = held.get(timeout=30)
    if then == "commit":
        broker.call(lambda node: release())
        producer.commit_transaction(30)
    else:
        with pytest.raises(confluent_kafka.KafkaException, match="already in progress"):
            producer.abort_transaction(30)
        broker.call(lambda node: release())
        fresh = confluent_kafka.Producer(settings)
        fresh.init_transactions(30)
        fresh.begin_transaction()
        fresh.produce(topic, b"49900")
        fresh.commit_transaction(30)
    assert committed(servers, topic) == [b"49900"] * copies


def committed(servers: dict[str, str], topic: str) -> list[bytes]:
    """The records that a read_committed reader sees, up to the end of the partition."""
    reader = confluent_kafka.Consumer(
        servers
        | {"group.id": topic, "isolation.level": "read_committed", "enable.partition.eof": True}
    )
    reader.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    found = []
    while not (record := reader.poll(30)).error():
        found.append(record.value())
    reader.close()
    return found


def inject(broker: fencepost.Broker, case: str) -> None:
    """Make the next EndTxn of this broker fail."""
    codes = {
        INVALID_STATE: ErrorCode.INVALID_TXN_STATE,
        UNKNOWN_ID: ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        CONCURRENT: ErrorCode.CONCURRENT_TRANSACTIONS,
        MOVED: ErrorCode.NOT_COORDINATOR,
    }
    if case in codes:
        broker.call(lambda node: node.faults.fail(ApiKey.END_TXN, codes[case]))
    if case == LOST:
        broker.call(lambda node: node.faults.drop(ApiKey.END_TXN, effect=True))


def value(case: str) -> bytes:
    return b"x" * (2_000_000 if case == TOO_LARGE else 10)


async def with_confluent(broker: fencepost.Broker, name: str, case: str) -> str:
    settings: dict[str, Any] = {
        "bootstrap.servers": broker.bootstrap_servers,
        "transactional.id": name,
        "message.max.bytes": 3_000_000,
        "log_level": 0,
    }
    producer = confluent_kafka.Producer(settings)
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(name, value(case))
    try:
        producer.flush(20)
        if case == FENCED:
            confluent_kafka.Producer(settings).init_transactions(20)
        inject(broker, case)
        producer.commit_transaction(20)
    except confluent_kafka.KafkaException as problem:
        error = problem.args[0]
        kind = "fatal" if error.fatal() else "abort" if error.txn_requires_abort() else "other"
        return f"{error.name()} {kind}"
    return COMMITTED


async def with_kafka_python(broker: fencepost.Broker, name: str, case: str) -> str:
    settings: dict[str, Any] = {
        "bootstrap_servers": broker.bootstrap_servers,
        "transactional_id": name,
        "max_request_size": 3_000_000,
    }
    producer, newer = kafka.KafkaProducer(**settings), kafka.KafkaProducer(**settings)
    try:
        producer.init_transactions()
        producer.begin_transaction()
        sent = producer.send(name, value(case))
        producer.flush(20)
        assert sent.failed() is (case == TOO_LARGE)
        if case == FENCED:
            newer.init_transactions()
        inject(broker, case)
        producer.commit_transaction()
    except kafka.errors.KafkaError as problem:
        return type(problem).__name__
    finally:
        producer.close(timeout=0)
        newer.close(timeout=0)
    return COMMITTED


async def with_aiokafka(broker: fencepost.Broker, name: str, case: str) -> str:
    settings: dict[str, Any] = {
        "bootstrap_servers": broker.bootstrap_servers,
        "transactional_id": name,
        "max_request_size": 3_000_000,
    }
    producers = [aiokafka.AIOKafkaProducer(**settings)]
    await producers[0].start()
    try:
        await producers[0].begin_transaction()
        sent = await producers[0].send(name, value(case))
        await asyncio.wait([sent])
        assert (sent.exception() is not None) is (case == TOO_LARGE)
        if case == FENCED:
            producers.append(aiokafka.AIOKafkaProducer(**settings))
            await producers[1].start()
        inject(broker, case)
        await producers[0].commit_transaction()
    except aiokafka.errors.KafkaError as problem:
        return type(problem).__name__
    finally:
        for producer in producers:
            with suppress(Exception):  # It repeats the error of the commit.
                await producer.stop()
    return COMMITTED


_CLIENTS: dict[str, Callable[[fencepost.Broker, str, str], Coroutine[Any, Any, str]]] = {
    "confluent-kafka": with_confluent,
    "kafka-python": with_kafka_python,
    "aiokafka": with_aiokafka,
}
