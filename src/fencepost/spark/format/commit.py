"""After the tasks: everything is checked, the ledger entry joins the transaction, EndTxn ends it.

Theory of operation. The commit runs in a process that knows nothing but the options and the tasks'
reports. Before EndTxn the following must hold, or the batch is aborted:

- every task of the barrier stage has reported, once, with the same identity and the same batch;
- every row that was packed was acknowledged, in one partition, by one task (`settle_accounts`);
- the last sequence of this producer in every partition is that of the last acknowledged record
  (DescribeProducers): nobody else has written with this identity;
- no row went to the ledger's topic, to another one than the option `topic` names, or to one that
  the query reads (`loops.py`).

If the answer to EndTxn is lost, a fresh epoch ends the transaction either way, and the ledger says
which. A batch that turns out to be aborted is not tried again here: the query fails, and Spark
repeats the batch at the next start.

An abort ends the transaction of the reports' identity, or of the one that the planning process has
left behind (`lent_identity.py`). It never fences by the transactional id alone, which might hit a
successor.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from fencepost.base.errors import ErrorCode
from fencepost.base.failures import FencepostError
from fencepost.base.ids import MAX_SEQUENCE
from fencepost.client.failures import ProducerFenced, Refused, UnknownOutcome
from fencepost.spark.connection import cluster_of
from fencepost.spark.failures import CountsDisagree, RowRefused, SinkFailed
from fencepost.spark.format.lent_identity import forget_identity, recall_identity
from fencepost.spark.format.loops import check_loops
from fencepost.spark.format.task import explained_counts
from fencepost.spark.sink.ledger.decision import Verdict, decide
from fencepost.spark.sink.producer import DriverProducer
from fencepost.spark.transport.accounts import Account, settle_accounts

if TYPE_CHECKING:
    from fencepost.client.transactions import ProducerIdentity
    from fencepost.spark.format.checkpoint import StoredBatch
    from fencepost.spark.format.options import WriteOptions
    from fencepost.spark.format.plan import BatchPlan
    from fencepost.spark.format.task import TaskReport

log = logging.getLogger(__name__)


def commit_stream_batch(
    options: WriteOptions, messages: Sequence[TaskReport | None], batch_id: int
) -> None:
    """Ends the batch; raises if it is not in the topics afterwards."""
    reports = complete_reports(messages)
    first = reports[0]
    if {report.batch_id for report in reports} != {batch_id}:
        raise CountsDisagree(f"a task of another batch than {batch_id} has reported")
    if not first.is_drained:
        plan: BatchPlan = first.plan
        batch = plan.batch(first.query_id, batch_id)
        account = check_account(options, reports)
        check_loops(options, topics_of(account), plan.sources.read)
        log.info("batch %d: %d rows are written", batch_id, account.rows)
        producer = resumed(options, first.identity)
        with explained_fence(producer):
            _enter(options, plan, batch, account)
        try:
            producer.commit()
        except UnknownOutcome as problem:
            log.warning("batch %d: %s", batch_id, problem)
            _settle(options, producer, batch)
    forget_identity(options)


def complete_reports(messages: Sequence[TaskReport | None]) -> list[TaskReport]:
    """The reports of all tasks; CountsDisagree unless there is exactly one of each."""
    reports = [message for message in messages if message is not None]
    if len(reports) != len(messages) or not reports:
        raise CountsDisagree(f"{len(messages)} tasks ran, and {len(reports)} have reported")
    tasks = {report.tasks for report in reports}
    found = sorted(report.task for report in reports)
    # Outside of a barrier stage nobody got rows.
    if tasks != {0} and (len(tasks) != 1 or found != list(range(min(tasks)))):
        raise CountsDisagree(f"tasks {found} have reported, of {sorted(tasks)}")
    shared = {(r.identity, r.query_id, r.batch_id, r.is_drained) for r in reports}
    if len(shared) != 1:
        raise CountsDisagree("the tasks of the batch have written with different plans")
    return reports


def check_account(options: WriteOptions, reports: Sequence[TaskReport]) -> Account:
    """Adds up the reports, and compares them with what the brokers have of this producer."""
    with explained_counts():
        account = settle_accounts(row for report in reports for row in report.rows)
    _check_topics(options, account)
    check_sequences(options, reports[0].identity, account)
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


def resumed(options: WriteOptions, identity: ProducerIdentity) -> DriverProducer:
    """The producer of an identity that another process of the driver has requested."""
    producer = DriverProducer(identity.transactional_id or "", options.settings)
    producer.resume(identity)
    return producer


@contextmanager
def explained_fence(producer: DriverProducer) -> Iterator[None]:
    """Says what happened to a producer that is fenced."""
    try:
        yield
    except ProducerFenced as problem:
        raise producer.fenced() from problem


def _enter(options: WriteOptions, plan: BatchPlan, batch: StoredBatch, account: Account) -> None:
    """Source offsets and ledger entry, in the transaction."""
    ledger = options.ledger()
    ledger.prepare()
    ledger.entry_writer(
        plan.identity,
        batch,
        plan.view,
        sources=plan.sources,
        is_stateful=batch.is_stateful,
    ).finish(account.opened_ms)


def _settle(options: WriteOptions, producer: DriverProducer, batch: StoredBatch) -> None:
    """Finds out whether the transaction was committed; SinkFailed if it was not."""
    if producer.is_taken():
        raise producer.fenced("The ledger will tell whether this batch is visible")
    producer.fence()
    ledger = options.ledger()
    ledger.prepare()
    view = ledger.read(batch.query_id, producer)
    # The ledger alone counts here: an override would allow to write, not tell what was written.
    if decide(view, replace(batch.as_batch(), parts=None)).verdict is not Verdict.DRAIN:
        raise SinkFailed(
            f"batch {batch.batch_id}: the answer to EndTxn was lost, and the transaction turned "
            "out to be aborted. Nothing of the batch is visible. Start the query again, and it "
            "repeats the batch"
        )


def abort_stream_batch(options: WriteOptions, messages: Sequence[TaskReport | None]) -> None:
    """Ends the transaction of a failed or stopped batch."""
    known = [message.identity for message in messages if message is not None]
    identity = known[0] if known else recall_identity(options)
    if identity is None:
        log.warning("the transaction of %r ends with its timeout", options.transactional_id)
        return
    abort_transaction(options, identity)
    forget_identity(options)


def abort_transaction(options: WriteOptions, identity: ProducerIdentity) -> None:
    """Aborts. A failure is only logged, because the failure of the batch matters more."""
    try:
        resumed(options, identity).abandon()
    except FencepostError as problem:
        log.warning("the transaction cannot be aborted: %s", problem)
