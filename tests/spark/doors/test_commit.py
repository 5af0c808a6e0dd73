"""Goal: what the tasks report must agree, and be what the options allow, before the commit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the spark extra is not installed")

from fencepost import Broker
from fencepost.base.errors import ErrorCode
from fencepost.base.ids import TopicPartition
from fencepost.client.admin import NewTopic
from fencepost.client.blocking import Cluster, connect
from fencepost.client.failures import Refused
from fencepost.client.transactions import ProducerIdentity
from fencepost.client.writer import Written
from fencepost.records.opened import Record
from fencepost.spark.doors.commit import (
    check_account,
    check_partitions,
    check_sequences,
    complete_reports,
)
from fencepost.spark.doors.options import WriteOptions, read_write_options
from fencepost.spark.doors.routed_task import TaskReport
from fencepost.spark.doors.stream_format import StreamWriter
from fencepost.spark.failures import CountsDisagree, RowRefused, SinkRefused
from fencepost.spark.ledger.rule import Batch
from fencepost.spark.transaction.identity import DriverProducer
from fencepost.spark.transaction.transaction import Transaction
from fencepost.spark.ways.accounts import Account, manifest_of, report_of

IDENTITY = ProducerIdentity("t", 7, 3, 2)


def options(**more: str) -> WriteOptions:
    given = {"kafka.bootstrap.servers": "127.0.0.1:1", "transactionalId": "t"}
    return read_write_options(given | more, streaming=True)


def producer_of(identity: ProducerIdentity, found: WriteOptions | None = None) -> DriverProducer:
    producer = DriverProducer("t", (found or options()).settings)
    producer.resume(identity)
    return producer


def report(
    task: int,
    tasks: int = 2,
    identity: ProducerIdentity = IDENTITY,
    found: WriteOptions | None = None,
    **changes: Any,
) -> TaskReport:
    transaction = Transaction(producer_of(identity, found), None, Batch("q", 4))
    return replace(TaskReport(transaction, task, tasks, "q", 4), **changes)


def test_one_report_of_each_task_is_complete() -> None:
    assert len(complete_reports([report(1), report(0)])) == 2
    # The only task of a batch write without rows, in a stage without a barrier.
    assert len(complete_reports([report(0, 0)])) == 1


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [None, None],
        [report(0), None],
        [report(0), report(1), None],
        [report(0)],
        [report(0), report(0)],
        [report(0), report(1), report(2)],
        [report(0), report(1, 3)],
        [report(0), report(0, 0)],
        [report(0, 0), report(1, 0)],
        [report(1, 0)],
        [report(0), report(1, is_drained=True)],
        [report(0), report(1, query_id="other")],
        [report(0), report(1, identity=replace(IDENTITY, producer_epoch=4))],
    ],
)
def test_reports_that_are_missing_doubled_or_of_other_plans_are_not(
    messages: list[TaskReport | None],
) -> None:
    with pytest.raises(CountsDisagree):
        complete_reports(messages)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"ledgerTopic": "out"}, "which holds the ledger"),
        ({"topic": "other"}, "rows went to topic 'out', and the option topic is 'other'"),
    ],
)
def test_rows_in_a_topic_that_the_options_exclude_are_refused(
    more: dict[str, str], words: str
) -> None:
    place = TopicPartition("out", 0)
    row = report_of(7, 1, {place: Written(1, 1, 70, 0, 0, 0)}, [manifest_of(0, 1, {place: 1})])
    with pytest.raises(RowRefused) as refused:
        check_account(options(**more), [report(0, 1, rows=[row])])
    assert words in str(refused.value)


def test_a_user_who_may_not_read_the_topics_can_still_commit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED

    def describe_producers(*_: object) -> None:
        raise Refused("DescribeProducers", code)

    monkeypatch.setattr(Cluster, "describe_producers", describe_producers)
    account = Account(1, {TopicPartition("out", 0): Written(1, 1, 70, 0, 0)})
    check_sequences(options(), IDENTITY, account)
    code = ErrorCode.INVALID_REQUEST
    with pytest.raises(Refused):
        check_sequences(options(), IDENTITY, account)


# With a broker.


PLACES = [TopicPartition("out", index) for index in range(2)]


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as found, connect(found.bootstrap_servers) as cluster:
        cluster.create_topics([NewTopic("out", 2, 1)])
        yield found


def begun(broker: Broker, *places: TopicPartition) -> tuple[WriteOptions, ProducerIdentity]:
    """A transaction with a record in each of these partitions."""
    found = options(**{"kafka.bootstrap.servers": broker.bootstrap_servers})
    with connect(broker.bootstrap_servers) as cluster:
        identity = cluster.init_producer_id("t")
        with cluster.writer(identity) as writer:
            for place in places:
                writer.write_records(place, [Record(value=b"a")])
            writer.flush()
    return found, identity


def account_of(*places: TopicPartition) -> Account:
    return Account(len(places), {place: Written(1, 1, 70, 0, 0) for place in places})


@pytest.mark.parametrize(
    ("written", "reported", "words"),
    [
        (PLACES, PLACES, ""),
        ([], [], ""),
        (PLACES, PLACES[:1], "out-1 is only in the transaction"),
        (PLACES[:1], PLACES, "out-1 is only reported"),
        (PLACES[:1], [], "out-0 is only in the transaction"),
        ([], PLACES[:1], "out-0 is only reported"),
    ],
)
def test_the_transaction_must_have_the_partitions_that_were_reported(
    broker: Broker, written: list[TopicPartition], reported: list[TopicPartition], words: str
) -> None:
    found, identity = begun(broker, *written)
    if not words:
        check_partitions(found, producer_of(identity, found), account_of(*reported))
        return
    with pytest.raises(CountsDisagree) as refused:
        check_partitions(found, producer_of(identity, found), account_of(*reported))
    assert words in str(refused.value)
    assert "Nothing of the batch is visible" in str(refused.value)


def test_reports_of_no_rows_cannot_commit_a_transaction_that_has_some(broker: Broker) -> None:
    found, identity = begun(broker, PLACES[0])
    reports = [report(task, identity=identity, found=found) for task in (0, 1)]
    with pytest.raises(CountsDisagree, match="out-0 is only in the transaction"):
        check_account(found, reports)
    for messages in ([], [None, None], [reports[0], None], reports[:1]):
        with pytest.raises(CountsDisagree):
            StreamWriter(found).commit(messages, 4)
    with connect(broker.bootstrap_servers) as cluster:
        assert list(cluster.records(PLACES[0])) == []


def test_a_producer_that_has_lost_its_id_cannot_commit(broker: Broker) -> None:
    found, identity = begun(broker, PLACES[0])
    begun(broker)
    with pytest.raises(SinkRefused, match="was taken over by another query"):
        check_partitions(found, producer_of(identity, found), account_of(PLACES[0]))


def test_a_user_who_may_not_describe_the_id_cannot_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    def describe_transactions(*_: object) -> None:
        raise Refused("DescribeTransactions", ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)

    monkeypatch.setattr(Cluster, "describe_transactions", describe_transactions)
    with pytest.raises(Refused, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"):
        check_partitions(options(), producer_of(IDENTITY), account_of(PLACES[0]))
