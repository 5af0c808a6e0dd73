"""Goal: what the tasks report must agree, and be what the options allow, before the commit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the spark extra is not installed")

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import TopicPartition
from fencepost.client.blocking import Cluster
from fencepost.client.failures import Refused
from fencepost.client.transactions import ProducerIdentity
from fencepost.spark.failures import CountsDisagree, RowRefused
from fencepost.spark.format.commit import check_account, check_sequences, complete_reports
from fencepost.spark.format.options import WriteOptions, read_write_options
from fencepost.spark.format.task import TaskReport
from fencepost.spark.transport.accounts import Account, PartitionReport

IDENTITY = ProducerIdentity("t", 7, 3, 2)


def report(task: int, tasks: int = 2, **changes: Any) -> TaskReport:
    return replace(TaskReport(None, IDENTITY, task, tasks, "q", 4), **changes)


def options(**more: str) -> WriteOptions:
    given = {"kafka.bootstrap.servers": "127.0.0.1:1", "transactionalId": "t"}
    return read_write_options(given | more, streaming=True)


def test_one_report_of_each_task_is_complete() -> None:
    assert len(complete_reports([report(1), report(0)])) == 2
    # Tasks without rows, in a stage without a barrier.
    assert len(complete_reports([report(0, 0), report(1, 0), report(5, 0)])) == 3


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [None, None],
        [report(0), None],
        [report(0)],
        [report(0), report(0)],
        [report(0), report(1), report(2)],
        [report(0), report(1, 3)],
        [report(0), report(0, 0)],
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
    nothing = dict.fromkeys(("manifest", "topic", "partition"))
    row = {"topic": "out", "partition": 0, "records": 1, "batches": 1, "size_bytes": 70}
    row |= {"base_offset": 0, "last_offset": 0, "last_sequence": 0, "opened_ms": 1}
    manifest = '{"map": 0, "rows": 1, "partitions": [["out", 0, 1]]}'
    rows = [{**nothing, **row}, {**nothing, "manifest": manifest}]
    with pytest.raises(RowRefused) as refused:
        check_account(options(**more), [report(0, 1, rows=rows)])
    assert words in str(refused.value)


def test_a_user_who_may_not_read_the_topics_can_still_commit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED

    def describe_producers(*_: object) -> None:
        raise Refused("DescribeProducers", code)

    monkeypatch.setattr(Cluster, "describe_producers", describe_producers)
    account = Account(1, {TopicPartition("out", 0): PartitionReport(1, 1, 70, 0, 0)})
    check_sequences(options(), IDENTITY, account)
    code = ErrorCode.INVALID_REQUEST
    with pytest.raises(Refused):
        check_sequences(options(), IDENTITY, account)
