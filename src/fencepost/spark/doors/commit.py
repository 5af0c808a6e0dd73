"""What both writers of format("fencepost") share: the checks before EndTxn, and the end.

Theory of operation. The commit runs in a process that knows nothing but the options and the tasks'
reports. Before EndTxn the following must hold, or the batch is aborted:

- every task of the barrier stage has reported, once, with the same identity and the same batch: a
  missing report is a failure, never a zero;
- every row that was packed was acknowledged, in one partition, by one task (`reconcile_reports`);
- the transaction has exactly the partitions that the reports name (DescribeTransactions), and none
  if they name none: no task has written and then reported nothing;
- the last sequence of this producer in every partition is that of the last acknowledged record
  (DescribeProducers): no one else has written with this identity;
- no row went to the ledger's topic, to another one than the option `topic` names, or to one that
  the query reads (`loops.py`).
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from fencepost.base.errors import ErrorCode
from fencepost.base.failures import FencepostError
from fencepost.base.ids import MAX_SEQUENCE
from fencepost.client.failures import ProducerFenced, Refused
from fencepost.spark.connection import cluster_of
from fencepost.spark.doors.routed_task import explained_counts
from fencepost.spark.failures import CountsDisagree, RowRefused, SinkFailed, SinkRefused
from fencepost.spark.sentences import plain_errors
from fencepost.spark.transaction.states import OPEN
from fencepost.spark.ways.accounts import Account, reconcile_reports
from fencepost.spark.ways.row_writer import BY_COLUMN

if TYPE_CHECKING:
    from fencepost.client.transactions import ProducerIdentity
    from fencepost.spark.doors.options import WriteOptions
    from fencepost.spark.doors.routed_task import TaskReport
    from fencepost.spark.transaction.identity import DriverProducer
    from fencepost.spark.transaction.transaction import Transaction

log = logging.getLogger(__name__)

_OPEN: Final = "Ongoing"
"""The state of a transaction that has partitions."""


def complete_reports(messages: Sequence[TaskReport | None]) -> list[TaskReport]:
    """The reports of all tasks; CountsDisagree unless there is exactly one of each."""
    reports = [message for message in messages if message is not None]
    if len(reports) != len(messages) or not reports:
        raise CountsDisagree(f"{len(messages)} tasks ran, and {len(reports)} have reported")
    tasks = {report.tasks for report in reports}
    found = sorted(report.task for report in reports)
    # Outside of a barrier stage there is one task, which got no rows.
    if len(tasks) != 1 or found != list(range(max(1, *tasks))):
        raise CountsDisagree(f"tasks {found} have reported, of {sorted(tasks)}")
    shared = {
        (r.transaction.producer.identity, r.query_id, r.batch_id, r.is_drained) for r in reports
    }
    if len(shared) != 1:
        raise CountsDisagree("the tasks of the batch have written with different plans")
    return reports


def check_account(options: WriteOptions, reports: Sequence[TaskReport]) -> Account:
    """Adds up the reports, and compares them with what the brokers have of this producer."""
    with explained_counts():
        account = reconcile_reports(row for report in reports for row in report.rows)
    _check_topics(options, account)
    producer = reports[0].transaction.producer
    check_partitions(options, producer, account)
    check_sequences(options, producer.identity, account)
    return account


def _check_topics(options: WriteOptions, account: Account) -> None:
    topics = topics_of(account)
    if options.ledger_topic in topics:
        raise RowRefused(
            f"a row names topic {options.ledger_topic!r}, which holds the ledger. Nothing of the "
            "batch was kept"
        )
    if options.topic is not None and (others := sorted(topics - {options.topic})):
        raise RowRefused(
            f"rows went to topic {others[0]!r}, and the option topic is {options.topic!r}: give "
            "route() the same topic, or leave the option out. Nothing of the batch was kept"
        )


def topics_of(account: Account) -> set[str]:
    """The topics that got rows."""
    return {place.topic for place in account.partitions}


def check_partitions(options: WriteOptions, producer: DriverProducer, account: Account) -> None:
    """CountsDisagree if the transaction has other partitions than those reported."""
    identity = producer.identity
    name = identity.transactional_id or ""
    # A user who may write with the id may also describe it.
    view = cluster_of(options.settings.client).describe_transactions([name])[name]
    mine = (identity.producer_id, identity.producer_epoch)
    if view is None or (view.producer_id, view.producer_epoch) != mine:
        raise producer.fenced()
    found = set(view.partitions) if view.state == _OPEN else set()
    if others := found ^ account.partitions.keys():
        where = "in the transaction" if min(others) in found else "reported"
        raise CountsDisagree(
            f"{min(others)} is only {where}: the tasks have reported {len(account.partitions)} "
            f"partitions, and the transaction has {len(found)}. Nothing of the batch is visible. "
            "Start the query or the write again, and it repeats the batch"
        )


def check_sequences(options: WriteOptions, identity: ProducerIdentity, account: Account) -> None:
    """CountsDisagree if a partition has more, or less, of this producer than was acknowledged."""
    if not account.partitions:
        return
    try:
        cluster = cluster_of(options.settings.client)
        described = cluster.describe_producers(list(account.partitions))
    except Refused as problem:
        if problem.code != ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            raise
        # Barrier stage and first attempt are what the guarantee rests on; this is a second check.
        log.warning("the last sequences cannot be checked: grant READ on the topics (%s)", problem)
        return
    mine = (identity.producer_id, identity.producer_epoch)
    for place, report in account.partitions.items():
        last = [
            producer.last_sequence
            for producer in described[place]
            if (producer.producer_id, producer.producer_epoch) == mine
        ]
        if last != [(report.records - 1) & MAX_SEQUENCE]:
            raise CountsDisagree(
                f"{place}: {report.records} records were acknowledged, and the last sequence of "
                f"the producer there is {last[0] if last else 'none'}: another task has written "
                "with its identity. Nothing of the batch is visible"
            )


def commit(transaction: Transaction, account: Account, to_repeat: str) -> None:
    """Enters what was written, and ends the transaction; raises if it is not committed.

    `to_repeat`: what to do if it turns out to be aborted.
    """
    try:
        transaction.enter({BY_COLUMN: account})
    except ProducerFenced as problem:
        raise transaction.producer.fenced() from problem
    if not transaction.end():
        raise SinkFailed(
            "the answer to EndTxn was lost, and the transaction turned out to be aborted. "
            f"{to_repeat}"
        )


def abort(transaction: Transaction) -> None:
    """Aborts. A failure is only logged, because the failure of the batch matters more."""
    try:
        if transaction.state in OPEN:
            transaction.abort()
    except FencepostError as problem:
        log.warning("the transaction cannot be aborted: %s", problem)


class PlanRefused(SinkRefused, pickle.PickleError):
    """A refusal while Spark pickles the plan: PySpark passes on no other exception unchanged."""


@contextmanager
def as_plan_refused(options: WriteOptions) -> Iterator[None]:
    """Turns every failure of ours into one that PySpark passes on."""
    try:
        with plain_errors(options.settings.client):
            yield
    except FencepostError as problem:
        raise PlanRefused(f"{problem}") from problem
