"""Time that passes without waiting: what is due is done, in its order, when `advance` returns."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

import fencepost
from fencepost.base.failures import ConfigError, FencepostError
from fencepost.base.ids import TopicPartition
from fencepost.client.blocking import connect
from fencepost.client.failures import ClientError
from fencepost.client.groups import CommittedOffset
from fencepost.client.transactions import ProducerIdentity
from fencepost.records.control import read_marker
from fencepost.records.opened import Record
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.metadata import MetadataRequest
from tests.broker.raw import RawClient
from tests.testing.test_contents import joined

PARTITION = TopicPartition("t", 0)


@pytest.fixture
def broker() -> Iterator[fencepost.Broker]:
    with fencepost.Broker(config={"group.initial.rebalance.delay.ms": 0}) as started:
        started.create_topic("t")
        yield started


def open_one(broker: fencepost.Broker, transactional_id: str, timeout_ms: int) -> ProducerIdentity:
    with connect(broker.bootstrap_servers) as client:
        identity = client.init_producer_id(transactional_id, timeout_ms)
        with client.writer(identity) as writer:
            writer.write_records(PARTITION, [Record(value=transactional_id.encode())])
            writer.flush()
    return identity


# -- transactions ----------------------------------------------------------------------------------


def test_a_transaction_is_aborted_when_its_timeout_has_passed(broker: fencepost.Broker) -> None:
    identity = open_one(broker, "slow", 900_000)
    broker.clock.advance(minutes=14)
    assert [each.transactional_id for each in broker.open_transactions()] == ["slow"]
    broker.clock.advance(minutes=1, seconds=1)
    assert broker.open_transactions() == []
    assert [each.fate for each in broker.records("t")] == ["aborted"]
    with (
        connect(broker.bootstrap_servers) as client,
        pytest.raises(ClientError, match="INVALID_TXN_STATE"),
    ):
        client.end_txn(identity, commit=True)


def test_a_timeout_has_passed_after_exactly_that_time(
    broker: fencepost.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen_ns = time.time_ns()
    frozen = SimpleNamespace(time_ns=lambda: frozen_ns, monotonic=time.monotonic, sleep=time.sleep)
    monkeypatch.setattr("fencepost.testing.clock.time", frozen)
    open_one(broker, "slow", 900_000)
    broker.clock.advance(minutes=15)
    assert broker.open_transactions() == []


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_transactions_time_out_in_their_order_each_at_its_moment(durability: str) -> None:
    with fencepost.Broker(durability=durability) as broker:
        broker.create_topic("t")
        began = broker.clock.now
        for minutes in (5, 1, 3):
            open_one(broker, f"id-{minutes}", minutes * 60_000)
        broker.clock.advance(minutes=10)
        with connect(broker.bootstrap_servers) as client:
            fetched = client.fetch({PARTITION: 0}, isolation="read_uncommitted")[PARTITION]
        markers = [each for each in fetched.batches if each.is_control]
        assert all(not found.commit for found in map(read_marker, markers) if found)
        after = [datetime.fromtimestamp(each.max_timestamp / 1000, UTC) - began for each in markers]
        assert [round(each / timedelta(minutes=1)) for each in after] == [1, 3, 5]


def test_ids_expire_after_a_week_and_a_transaction_that_times_out_on_the_way_later(
    broker: fencepost.Broker,
) -> None:
    broker.produce("t", "x", transactional_id="done")
    broker.clock.advance(days=6)
    open_one(broker, "slow", 60_000)
    broker.clock.advance(days=1, minutes=1)
    assert [each.transactional_id for each in broker.transactions()] == ["slow"]
    broker.clock.advance(days=7)
    assert broker.transactions() == []


def abort_steps() -> list[str]:
    return [each for each in fencepost.Broker().faults.steps if each.startswith("abort.")]


@pytest.mark.parametrize("step", abort_steps())
def test_an_advance_goes_on_when_the_broker_has_recovered_from_a_crash_on_the_way(
    broker: fencepost.Broker, step: str
) -> None:
    open_one(broker, "first", 60_000)
    open_one(broker, "second", 120_000)
    fault = broker.faults.at(step).crash(restart=True)
    moment = broker.clock.now
    broker.clock.advance(minutes=15)
    assert fault.fired == 1
    assert broker.clock.now - moment >= timedelta(minutes=15)
    assert [each.fate for each in broker.records("t")] == ["aborted", "aborted"]
    assert broker.open_transactions() == []


def test_an_advance_says_that_the_broker_has_crashed_on_the_way(broker: fencepost.Broker) -> None:
    open_one(broker, "slow", 60_000)
    broker.faults.at("abort.prepare-appended").crash()
    with pytest.raises(FencepostError, match=r"has crashed, as the test wanted: .restart\(\)"):
        broker.clock.advance(minutes=15)
    broker.restart()
    broker.clock.advance(minutes=15)
    assert [each.fate for each in broker.records("t")] == ["aborted"]


# -- groups ----------------------------------------------------------------------------------------


def test_committed_offsets_expire(broker: fencepost.Broker) -> None:
    broker.produce("t", "x")
    with connect(broker.bootstrap_servers) as client:
        client.offset_commit("g", {PARTITION: CommittedOffset(1)})
    group = broker.group("g")
    broker.clock.advance(days=6)
    assert group.offsets == {PARTITION: 1}
    broker.clock.advance(days=1, seconds=1)
    assert group.offsets == {}


def test_a_member_with_a_connection_stays_in_its_group(broker: fencepost.Broker) -> None:
    membership = joined(broker, "first")
    with membership as consumer:
        broker.clock.advance(days=30)
        consumer.poll(0.1)
        assert [each.client_id for each in broker.group("g").members] == ["first"]
        assert not membership.lost.is_set()


class Consumers:
    """Consumers of the group in a process, which can be killed."""

    def __init__(self, broker: fencepost.Broker) -> None:
        self._broker = broker
        self._process = subprocess.Popen(
            [sys.executable, "-c", CONSUME, broker.bootstrap_servers], stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"assigned\n"
        self._addresses = broker.call(lambda node: node.client_addresses)

    def kill(self) -> None:
        """Returns when the broker knows that its connections are closed."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        while self._addresses & self._broker.call(lambda node: node.client_addresses):
            time.sleep(0.001)


CONSUME = """
import sys
from confluent_kafka import Consumer, TopicPartition
consumer = Consumer({
    "bootstrap.servers": sys.argv[1], "group.id": "g", "client.id": "same",
    "enable.auto.commit": False, "heartbeat.interval.ms": 50, "session.timeout.ms": 45_000,
})
assigned = []
consumer.subscribe(["t"], on_assign=lambda _, places: assigned.append(places))
while not assigned:
    consumer.poll(0.05)
consumer.commit(offsets=[TopicPartition("t", 0, 1)], asynchronous=False)
print("assigned", flush=True)
while True:
    consumer.poll(0.05)
"""


@pytest.fixture
def consumers(broker: fencepost.Broker) -> Iterator[Consumers]:
    broker.produce("t", "x")
    started = Consumers(broker)
    try:
        yield started
    finally:
        started.kill()


def test_a_killed_member_is_out_of_its_group_when_its_session_has_passed(
    broker: fencepost.Broker, consumers: Consumers
) -> None:
    """The other has the same client id; what tells them apart is the connection."""
    group = broker.group("g")
    with joined(broker, "same") as consumer:
        consumers.kill()
        broker.clock.advance(seconds=30)
        assert len(group.members) == 2
        broker.clock.advance(seconds=15)
        assert len(group.members) == 1
        while not consumer.assignment():
            consumer.poll(0.05)


def test_offsets_of_a_group_whose_members_were_killed_expire(
    broker: fencepost.Broker, consumers: Consumers
) -> None:
    group = broker.group("g")
    broker.clock.advance(days=8)
    assert list(group.offsets.values()) == [1]
    consumers.kill()
    broker.clock.advance(minutes=1)
    assert (group.members, list(group.offsets.values())) == ([], [1])
    broker.clock.advance(days=8)
    assert group.offsets == {}


# -- logs ------------------------------------------------------------------------------------------


def test_records_are_removed_after_their_retention(broker: fencepost.Broker) -> None:
    broker.create_topic("short", config={"retention.ms": 3_600_000, "segment.bytes": 1_048_576})
    broker.produce("short", "x")
    broker.clock.advance(minutes=59)
    assert len(broker.records("short")) == 1
    broker.clock.advance(minutes=2)
    assert broker.records("short") == []


def test_the_broker_stamps_records_with_its_own_time(broker: fencepost.Broker) -> None:
    broker.create_topic("stamped", config={"message.timestamp.type": "LogAppendTime"})
    broker.clock.at("2100-01-01T00:00Z")
    broker.produce("stamped", "x")
    (record,) = broker.records("stamped")
    assert datetime.fromtimestamp(record.timestamp_ms / 1000, UTC).year == 2100


# -- the clock itself ------------------------------------------------------------------------------


def test_time_stays_over_a_restart_and_a_crash(broker: fencepost.Broker) -> None:
    open_one(broker, "slow", 900_000)
    broker.clock.advance(minutes=10)
    moment = broker.clock.now
    broker.restart()
    broker.crash()
    broker.restart()
    assert timedelta(0) <= broker.clock.now - moment < timedelta(minutes=1)
    broker.clock.advance(minutes=6)
    assert broker.open_transactions() == []


def test_a_moment_may_be_a_datetime_or_text(broker: fencepost.Broker) -> None:
    broker.clock.at(datetime(2099, 1, 1))  # noqa: DTZ001 - without a zone it is UTC
    assert broker.clock.now.year == 2099
    broker.clock.at("2100-06-01T12:00+02:00")
    assert (broker.clock.now.month, broker.clock.now.hour) == (6, 10)


def test_time_passes_forwards_only(broker: fencepost.Broker) -> None:
    moment = broker.clock.now
    with pytest.raises(ConfigError, match="forwards only: it cannot go back by"):
        broker.clock.advance(minutes=-1)
    with pytest.raises(ConfigError, match="forwards only: it is"):
        broker.clock.at("2001-01-01")
    with pytest.raises(ConfigError, match=r"not a time such as 2030-01-01T12:00Z"):
        broker.clock.at("tomorrow")
    assert broker.clock.now - moment < timedelta(minutes=1)


def test_time_does_not_pass_while_a_fault_holds_a_request(broker: fencepost.Broker) -> None:
    fault = broker.faults.on("Metadata").hold()
    with RawClient(broker.bootstrap_servers) as client:
        client.send(ApiKey.METADATA, 9, MetadataRequest(topics=[]))
        fault.wait()
        with pytest.raises(FencepostError, match=r"holds a request.*faults.release"):
            broker.clock.advance(minutes=1)
        fault.release()
        broker.clock.advance(minutes=1)


def test_time_does_not_pass_from_the_brokers_thread_or_without_a_broker(
    broker: fencepost.Broker,
) -> None:
    broker.faults.on("Metadata").do(lambda _: broker.clock.advance(minutes=1))
    with RawClient(broker.bootstrap_servers) as client:
        assert client.call(ApiKey.METADATA, 9, MetadataRequest(topics=[])).brokers
    with pytest.raises(FencepostError, match="from the broker's own thread"):
        broker.faults.check()
    broker.stop()
    with pytest.raises(FencepostError, match="not running"):
        broker.clock.advance(minutes=1)
