"""A service under test: the faults of docs/guide/testing.md, with names of each test's own.

They pass on a broker of their own, and on the cluster that FENCEPOST_TEST_BOOTSTRAP names:
tests/compat/test_kit_on_kafka.py runs this file on Apache Kafka.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from fencepost.testing.embedded import Broker
from fencepost.testing.faults import Request

COUNT = 5


class Service:
    """Reads payments and writes refunds, each in a transaction with its offset."""

    def __init__(self, broker: Broker, prefix: str) -> None:
        self.broker = broker
        self.payments, self.refunds = prefix + "payments", prefix + "refunds"
        self.name = prefix + "service"
        broker.create_topic(self.payments)
        broker.create_topic(self.refunds, partitions=2)
        given = [(f"s-{number}", f"{number}00") for number in range(COUNT)]
        broker.produce(self.payments, *given)

    def run(self, count: int = COUNT, **settings: Any) -> None:
        servers = self.broker.bootstrap_servers
        consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": self.name,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        producer = Producer(
            {
                "bootstrap.servers": servers,
                "transactional.id": self.name,
                "metadata.recovery.strategy": "none",
                "connections.max.idle.ms": 10_000,
                **settings,
            }
        )
        try:
            producer.init_transactions()
            consumer.subscribe([self.payments])
            while count:
                message = consumer.poll(1)
                if message is None or message.error() is not None:
                    continue
                producer.begin_transaction()
                producer.produce(self.refunds, key=message.key(), value=message.value())
                producer.send_offsets_to_transaction(
                    consumer.position(consumer.assignment()), consumer.consumer_group_metadata()
                )
                producer.commit_transaction()
                count -= 1
        finally:
            consumer.close()

    def check(self) -> None:
        self.broker.assert_exactly_once(self.payments, self.refunds)
        mine = [each.transactional_id for each in self.broker.open_transactions()]
        assert self.name not in mine
        assert list(self.broker.group(self.name).offsets.values()) == [COUNT]


@pytest.fixture
def service(fencepost_broker: Broker, fencepost_namespace: str) -> Service:
    return Service(fencepost_broker, fencepost_namespace)


@pytest.mark.parametrize("api", ["Produce", "TxnOffsetCommit", "EndTxn"])
@pytest.mark.parametrize("what", ["lose_request", "lose_reply"])
def test_a_lost_message_is_not_a_second_refund(service: Service, api: str, what: str) -> None:
    fault = getattr(service.broker.faults.on(api), what)()
    service.run()
    service.check()
    assert fault.fired == 1


@pytest.mark.parametrize(
    ("api", "error"),
    [
        ("Metadata", "LEADER_NOT_AVAILABLE"),
        ("FindCoordinator", "COORDINATOR_NOT_AVAILABLE"),
        ("Produce", "NOT_LEADER_OR_FOLLOWER"),
        ("TxnOffsetCommit", "COORDINATOR_LOAD_IN_PROGRESS"),
        ("EndTxn", "NOT_COORDINATOR"),
    ],
)
def test_an_error_that_passes_by_is_not_a_lost_refund(
    service: Service, api: str, error: str
) -> None:
    service.broker.faults.on(api).fail(error).times(2)
    service.run()
    service.check()


def test_a_slow_broker_changes_nothing(service: Service) -> None:
    service.broker.faults.on("Produce", topic=service.refunds).delay(0.05).times(2)
    service.broker.faults.on("EndTxn").throttle(20)
    service.run()
    service.check()


def test_a_function_sees_what_is_committed(service: Service) -> None:
    seen = []

    def look(request: Request) -> str | None:
        seen.append(request.body.transactional_id)
        return "COORDINATOR_NOT_AVAILABLE" if len(seen) == 1 else None

    service.broker.faults.on("EndTxn").do(look).times(3)
    service.run()
    service.check()
    assert seen == [service.name] * 3


def test_a_second_instance_fences_the_first_one_in_the_middle_of_its_commit(
    service: Service,
) -> None:
    commit = service.broker.faults.on("EndTxn", transactional_id=service.name).hold()
    failed: list[Exception] = []

    def first_instance() -> None:
        try:
            service.run()
        except Exception as problem:  # noqa: BLE001 - looked at below
            failed.append(problem)

    first = threading.Thread(target=first_instance)
    first.start()
    commit.wait(30)
    service.broker.fence(service.name)
    commit.release()
    first.join()
    assert failed, "the first instance must notice"
    assert service.broker.committed(service.refunds) == []
    service.run()
    service.check()


def test_a_transaction_that_takes_too_long_is_aborted(service: Service) -> None:
    producer = Producer(
        {
            "bootstrap.servers": service.broker.bootstrap_servers,
            "transactional.id": service.name,
            "transaction.timeout.ms": 600_000,
        }
    )
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(service.refunds, value="49900")
    producer.flush()
    service.broker.clock.advance(minutes=11)
    assert [each.fate for each in service.broker.records(service.refunds)] == ["aborted"]


def test_a_broker_that_dies_in_the_middle_of_a_commit_loses_nothing(service: Service) -> None:
    service.broker.faults.at("commit.prepare-appended").crash(restart=True)
    service.run()
    service.check()
