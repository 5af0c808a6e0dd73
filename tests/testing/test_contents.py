"""What tests ask a broker: records with their fates, transactions, groups, exactly once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest
from confluent_kafka import Consumer, TopicPartition

import fencepost
from fencepost.base.failures import ConfigError, FencepostError
from fencepost.client.blocking import connect
from fencepost.client.failures import ClientError
from fencepost.testing.contents import Contents, Record


@pytest.fixture
def broker() -> Iterator[fencepost.Broker]:
    config = {"group.initial.rebalance.delay.ms": 0}
    with fencepost.Broker(config=config) as started:
        yield started


# -- records ---------------------------------------------------------------------------------------


def test_records_have_their_fates_and_committed_shows_what_a_consumer_sees(
    broker: fencepost.Broker,
) -> None:
    broker.create_topic("t", config={"cleanup.policy": "delete"})
    broker.produce("t", ("k", "plain"))
    broker.produce("t", b"aborted", transactional_id="a", commit=False)
    broker.produce("t", "committed", (None, None), transactional_id="a")
    records = broker.records("t")
    assert [(each.key, each.value, each.fate) for each in records] == [
        (b"k", b"plain", "not transactional"),
        (None, b"aborted", "aborted"),
        (None, b"committed", "committed"),
        (None, None, "committed"),
    ]
    assert [each.value for each in broker.committed("t")] == [b"plain", b"committed", None]
    assert str(records[0]) == "t-0 @ 0"
    assert broker.open_transactions() == []


def test_an_open_transaction_hides_what_is_behind_it(broker: fencepost.Broker) -> None:
    broker.create_topic("t")
    open_one(broker, "slow")
    broker.produce("t", "behind it")
    assert [each.fate for each in broker.records("t")] == ["open", "not transactional"]
    assert broker.committed("t") == []
    (found,) = broker.open_transactions()
    assert (found.transactional_id, found.state) == ("slow", "Ongoing")
    broker.fence("slow")
    assert [each.value for each in broker.committed("t")] == [b"behind it"]
    assert broker.open_transactions() == []
    assert [each.state for each in broker.transactions()] == ["Empty"]


def open_one(broker: fencepost.Broker, transactional_id: str) -> None:
    from fencepost.base.ids import TopicPartition
    from fencepost.records.opened import Record

    with connect(broker.bootstrap_servers) as client:
        identity = client.init_producer_id(transactional_id)
        with client.writer(identity) as writer:
            writer.write_records(TopicPartition("t", 0), [Record(value=b"open")])
            writer.flush()


def test_keys_choose_partitions_as_kafkas_client_does_unless_one_is_named(
    broker: fencepost.Broker,
) -> None:
    broker.create_topic("t", 3)
    broker.produce("t", *((f"k{number}", "v") for number in range(20)))
    broker.produce("t", ("k0", "named"), partition=2)
    places = {each.key: each.partition for each in broker.records("t") if each.value == b"v"}
    assert set(places.values()) == {0, 1, 2}
    assert [each.partition for each in broker.records("t") if each.value == b"named"] == [2]


def test_the_words_work_for_any_broker_by_its_address(broker: fencepost.Broker) -> None:
    contents = Contents(broker.bootstrap_servers)
    contents.produce("made", "x")  # Creates the topic.
    assert [each.value for each in contents.committed("made")] == [b"x"]


@pytest.mark.parametrize("wrong", [7, ("a", "b", "c"), ("k", 1), None])
def test_what_is_no_record_is_refused(broker: fencepost.Broker, wrong: object) -> None:
    with pytest.raises(ConfigError, match=r"is not a record|str, bytes or None"):
        broker.produce("t", wrong)  # type: ignore[arg-type]


def test_a_transaction_of_nothing_is_none_and_only_a_transaction_can_be_aborted(
    broker: fencepost.Broker,
) -> None:
    broker.produce("t", transactional_id="a")
    broker.produce("t", transactional_id="a", commit=False)
    with pytest.raises(ConfigError, match="add transactional_id="):
        broker.produce("t", "x", commit=False)
    assert (broker.records("t"), broker.open_transactions()) == ([], [])


def test_what_does_not_exist_is_said(broker: fencepost.Broker) -> None:
    with pytest.raises(FencepostError, match="There is no topic 'nowhere'"):
        broker.committed("nowhere")
    broker.create_topic("t")
    with pytest.raises(ClientError, match="TOPIC_ALREADY_EXISTS"):
        broker.create_topic("t")


def test_faults_do_not_apply_to_the_test_itself(broker: fencepost.Broker) -> None:
    broker.faults.on("Produce").fail("NOT_LEADER_OR_FOLLOWER").optional()
    broker.faults.on("Fetch").lose_reply(disconnect=False).optional()
    broker.produce("t", "x")
    assert len(broker.committed("t")) == 1
    assert broker.faults.fired == []


def test_a_function_on_the_brokers_thread_cannot_wait_for_the_broker(
    broker: fencepost.Broker,
) -> None:
    broker.create_topic("t")
    broker.faults.on("InitProducerId").do(lambda _: broker.committed("t"))
    with connect(broker.bootstrap_servers) as client:
        client.init_producer_id("id")
    with pytest.raises(FencepostError, match="runs on the broker's thread"):
        broker.faults.check()


# -- groups ----------------------------------------------------------------------------------------


def test_a_group_has_offsets_lag_and_members(broker: fencepost.Broker) -> None:
    broker.create_topic("t", 2)
    broker.produce("t", "a", "b", "c", partition=0)
    group = broker.group("g")
    with joined(broker, "first") as consumer:
        assert group.offsets == {}
        consumer.commit(offsets=[TopicPartition("t", 0, 1)], asynchronous=False)
        assert {str(each): offset for each, offset in group.offsets.items()} == {"t-0": 1}
        assert {str(each): lag for each, lag in group.lag.items()} == {"t-0": 2}
        assert [each.client_id for each in group.members] == ["first"]


class joined:  # noqa: N801 - it reads as the state of the consumer
    """A consumer that has its partitions."""

    def __init__(self, broker: fencepost.Broker, client_id: str, protocol: str = "classic") -> None:
        settings = {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "g",
            "client.id": client_id,
            "enable.auto.commit": False,
            "heartbeat.interval.ms": 50,
            "group.protocol": protocol,
        }
        self.consumer = Consumer(settings)
        self.assigned = threading.Event()
        self.lost = threading.Event()

    def __enter__(self) -> Consumer:
        self.consumer.subscribe(
            ["t"],
            on_assign=lambda *_: self.assigned.set(),
            on_lost=lambda *_: self.lost.set(),
            on_revoke=lambda *_: self.lost.set(),
        )
        while not self.assigned.is_set():
            self.consumer.poll(0.05)
        return self.consumer

    def __exit__(self, *_: object) -> None:
        self.consumer.close()


def test_an_expired_member_loses_its_partitions_and_joins_again(broker: fencepost.Broker) -> None:
    broker.create_topic("t", 2)
    membership = joined(broker, "first")
    with membership as consumer:
        group = broker.group("g")
        (before,) = group.members
        with pytest.raises(FencepostError, match=r"0 members 'second'.*: 'first'"):
            group.expire("second")
        group.expire("first")
        assert group.members == []
        membership.assigned.clear()
        while not membership.assigned.is_set():
            consumer.poll(0.05)
        assert membership.lost.is_set()
        (after,) = group.members
        assert after.member_id != before.member_id


# -- exactly once ----------------------------------------------------------------------------------


def test_exactly_once_compares_committed_records_by_their_keys(broker: fencepost.Broker) -> None:
    broker.create_topic("payments", 2)
    broker.create_topic("refunds", 2)
    broker.produce("payments", ("s-1", "12"), ("s-2", "7"), ("s-2", "again"))
    broker.produce("refunds", ("s-2", "7"), transactional_id="r", commit=False)
    broker.produce("refunds", ("s-1", "12"), ("s-2", "7"), ("s-2", "8"), transactional_id="r")
    broker.assert_exactly_once("payments", "refunds")
    broker.assert_exactly_once(["payments"], ["refunds"], key=lambda record: record.key)


def test_the_message_of_exactly_once_shows_the_difference(broker: fencepost.Broker) -> None:
    broker.create_topic("t")
    broker.produce("t", ("lost", "1"), ("half", "2"), ("half", "3"), ("twice", "4"), ("fine", "5"))
    broker.create_topic("out")
    broker.produce("out", ("half", "2"), ("twice", "4"), ("twice", "4"), ("fine", "5"), ("x", "6"))
    open_one(broker, "slow")
    with pytest.raises(AssertionError) as found:
        broker.assert_exactly_once("t", "out")
    first, *rest = str(found.value).split("\n")
    assert first == (
        "'out' does not have every committed record of 't' exactly once: 2 lost, 1 more than once, "
        "1 unexpected."
    )
    assert rest == [
        "  lost: b'half' (t-0 @ 1, t-0 @ 2), of 2 only 1 (out-0 @ 0)",
        "  lost: b'lost' (t-0 @ 0)",
        "  more than once: b'twice' 2 times for 1 in (out-0 @ 1, out-0 @ 2)",
        "  unexpected: b'x' (out-0 @ 4)",
        "  'slow' has an open transaction (t-0)",
    ]


def test_exactly_once_of_nothing_is_an_error(broker: fencepost.Broker) -> None:
    broker.create_topic("t")
    broker.create_topic("out")
    open_one(broker, "forgotten")  # Its record is not committed, so it is not compared.
    with pytest.raises(AssertionError) as found:
        broker.assert_exactly_once("t", ["out"])
    assert str(found.value).split("\n") == [
        "Neither 't' nor 'out' has a committed record.",
        "  'forgotten' has an open transaction (t-0)",
    ]


def test_an_aborted_or_open_output_is_no_output(broker: fencepost.Broker) -> None:
    def value(record: Record) -> object:
        return record.value

    broker.produce("payments", "s-1")
    broker.produce("refunds", "s-1", transactional_id="r", commit=False)
    with pytest.raises(AssertionError, match="1 lost"):
        broker.assert_exactly_once("payments", "refunds", key=value)


def test_a_long_difference_is_cut(broker: fencepost.Broker) -> None:
    broker.produce("payments", *((f"k{number}", "v") for number in range(50)))
    broker.create_topic("refunds")
    with pytest.raises(AssertionError) as found:
        broker.assert_exactly_once("payments", "refunds")
    assert len(str(found.value).split("\n")) == 22
    assert str(found.value).endswith("  lost: and 30 more")


# -- snapshots -------------------------------------------------------------------------------------


def test_restore_goes_back_to_the_snapshot_as_often_as_wanted(broker: fencepost.Broker) -> None:
    broker.produce("t", "before", transactional_id="id")
    open_one(broker, "open")
    address = broker.bootstrap_servers
    snapshot = broker.snapshot()
    for _ in range(2):
        broker.produce("t", "after")
        broker.produce("other", "after")
        broker.fence("open")
        broker.restore(snapshot)
        assert [(each.value, each.fate) for each in broker.records("t")] == [
            (b"before", "committed"),
            (b"open", "open"),
        ]
        assert [each.transactional_id for each in broker.open_transactions()] == ["open"]
        with pytest.raises(FencepostError, match="no topic 'other'"):
            broker.records("other")
        assert broker.bootstrap_servers == address


def test_restore_takes_back_the_time_that_has_passed_since(broker: fencepost.Broker) -> None:
    broker.clock.advance(days=1)
    broker.produce("t", "kept")
    open_one(broker, "open")
    snapshot, moment = broker.snapshot(), broker.clock.now
    for _ in range(2):
        broker.clock.advance(days=30)
        assert broker.records("t") == []
        broker.restore(snapshot)
        assert timedelta(0) <= broker.clock.now - moment < timedelta(hours=1)
        broker.clock.advance(seconds=1)
        assert [each.fate for each in broker.records("t")] == ["not transactional", "open"]


def test_restore_is_refused_while_clients_are_connected(broker: fencepost.Broker) -> None:
    snapshot = broker.snapshot()
    with connect(broker.bootstrap_servers) as client:
        client.describe_cluster()
        with pytest.raises(FencepostError, match="open: close all producers, consumers"):
            broker.restore(snapshot)
        assert client.describe_cluster().brokers, "nothing has happened"
    broker.restore(snapshot)


def test_a_snapshot_belongs_to_its_broker_and_goes_with_it(broker: fencepost.Broker) -> None:
    with fencepost.Broker() as other:
        snapshot = other.snapshot()
        with pytest.raises(FencepostError, match="not one of this broker"):
            broker.restore(snapshot)
    with pytest.raises(FencepostError, match="was deleted when it was closed"):
        other.restore(snapshot)


def test_a_crashed_or_stopped_broker_can_be_restored(broker: fencepost.Broker) -> None:
    broker.produce("t", "x")
    snapshot = broker.snapshot()
    broker.crash()
    broker.restore(snapshot)
    broker.stop()
    broker.restore(snapshot)
    assert len(broker.committed("t")) == 1
