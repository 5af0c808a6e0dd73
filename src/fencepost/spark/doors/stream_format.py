"""The writer of `df.writeStream.format("fencepost")`: one transaction per micro-batch.

Theory of operation. Spark creates a writer twice per batch, in different processes: to plan the
write, and again for the commit or the abort. Nothing on the driver is called per batch before the
tasks run, except one thing: PySpark pickles the first writer for them. So the fence and the
decision happen there, in `__getstate__`, and the constructor has no effects. Every batch gets its
own epoch, so what an earlier batch or an earlier driver left running cannot write into this one.

    plan     __getstate__    fence, ask the ledger, decide             a process of the driver
    write    write           write what comes, report                  the tasks (`routed_task.py`)
    commit   commit          check the reports, enter, EndTxn          a process of the driver
    abort    abort           end the transaction of the reports        a process of the driver

If the checkpoint can be read (`engine/stored_batch.py`), everything is decided in the plan: an id
that belongs to another query is refused before its owner is fenced, as in the sink. Otherwise only
the tasks know the query id and the batch id. Each of them decides, from the same entry.

A batch that turns out to be aborted is not tried again here: the query fails, and Spark repeats the
batch at the next start.

An abort knows the identity from the reports alone. If the query is stopped in the middle of a batch
there are none: the transaction then ends with its timeout, or with the fence of the next start. The
abort never fences by the transactional id, which might hit a successor.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamArrowWriter

from fencepost.spark.compiled import freeze_loaded_objects
from fencepost.spark.connection import cluster_id_of
from fencepost.spark.doors.commit import (
    abort,
    as_plan_refused,
    check_account,
    commit,
    complete_reports,
    topics_of,
)
from fencepost.spark.doors.loops import PERMISSION, check_loops
from fencepost.spark.doors.routed_task import Target, TaskPlace, TaskReport, find_place, write_task
from fencepost.spark.engine.read_topics import refuse_loop, refuse_own_ledger, topics_by_id
from fencepost.spark.engine.stored_batch import StoredBatch, read_checkpoint
from fencepost.spark.failures import CountsDisagree, SinkRefused
from fencepost.spark.ledger.rule import Batch, Decision
from fencepost.spark.ledger.sources import NO_SOURCES, SourceUse
from fencepost.spark.offsets import parse_all
from fencepost.spark.sentences import plain_errors
from fencepost.spark.transaction.identity import DriverProducer
from fencepost.spark.transaction.states import State
from fencepost.spark.transaction.transaction import Transaction

if TYPE_CHECKING:
    import pyarrow as pa

    from fencepost.spark.doors.options import WriteOptions
    from fencepost.spark.ledger.store import LedgerStore

log = logging.getLogger(__name__)

_UNKNOWN: Batch = Batch("", -1)


class StreamWriter(DataSourceStreamArrowWriter):
    """One transaction per micro-batch."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._transaction: Transaction | None = None
        self._decision: Decision | None = None
        self._cluster_id = ""

    def __getstate__(self) -> dict[str, Any]:
        """Spark pickles this writer when it plans a batch, several times; it is fenced once."""
        if self._transaction is None:
            with as_plan_refused(self._options):
                self._transaction = plan_batch(self._options)
                if self._transaction.batch is not _UNKNOWN:
                    self._decision = self._transaction.decide()
                self._cluster_id = cluster_id_of(self._options.settings.client)
            freeze_loaded_objects()
        return self.__dict__

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskReport:
        """Runs in a task."""
        transaction, place = self._transaction, find_place()
        assert transaction is not None
        with plain_errors():
            transaction, decision = self._decided(transaction, place)
            target = Target(self._options.settings, self._cluster_id)
            report = write_task(
                transaction, decision.verdict, place, iterator, target, may_be_empty=False
            )
        freeze_loaded_objects()
        return report

    def _decided(self, transaction: Transaction, place: TaskPlace) -> tuple[Transaction, Decision]:
        """The transaction of the plan, and its decision if it was about this batch."""
        if not place.query_id or place.batch_id < 0:
            raise SinkRefused(
                "this Spark does not tell its tasks which query and batch they belong to: use "
                "TransactionalSink in foreachBatch instead of the format. Nothing was written"
            )
        planned = (transaction.batch.query_id, transaction.batch.batch_id)
        if self._decision is not None and planned == (place.query_id, place.batch_id):
            return transaction, self._decision
        batch = Batch(place.query_id, place.batch_id)
        known = replace(transaction, batch=batch, sources=NO_SOURCES, state=State.FENCED)
        return known, known.decide()

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        """Runs on the driver's machine once all tasks have reported."""
        with plain_errors():
            reports = complete_reports(messages)
            first = reports[0]
            if {report.batch_id for report in reports} != {batchId}:
                raise CountsDisagree(f"a task of another batch than {batchId} has reported")
            if not first.is_drained:
                account = check_account(self._options, reports)
                read = first.transaction.sources.read
                check_loops(self._options, topics_of(account), read)
                log.info("batch %d: %d rows are written", batchId, account.rows)
                commit(
                    first.transaction,
                    account,
                    f"Nothing of batch {batchId} is visible. Start the query again, and it repeats "
                    "the batch",
                )
        freeze_loaded_objects()

    def abort(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        """Runs there if a task or the commit failed, or if the query was stopped."""
        known = [message.transaction for message in messages if message is not None]
        if known:
            abort(known[0])
            return
        name = self._options.transactional_id
        log.warning("no task has reported: a transaction of %r may be open until its timeout", name)


def plan_batch(options: WriteOptions) -> Transaction:
    """A transaction that has fenced its predecessors; SinkRefused if nothing may be written."""
    ledger = options.ledger()
    stored = read_checkpoint(options.checkpoint)
    ledger.prepare()
    sources = NO_SOURCES
    if stored is not None:
        sources = _find_sources(stored, ledger, options.commit_source_offsets)
    _check_sources(options, sources)
    transaction = Transaction(
        DriverProducer(options.transactional_id, options.settings),
        ledger,
        _UNKNOWN if stored is None else replace(stored.as_batch(), run_id=""),
        sources=sources,
        overrides=options.overrides,
    )
    transaction.fence()
    return transaction


def _find_sources(batch: StoredBatch, ledger: LedgerStore, commit: bool | None) -> SourceUse:
    """What is known of the sources: whether the transaction can commit their offsets.

    The options of the sources are not known here. Our own source stores topic ids with its offsets,
    and a topic with the same id is in the same cluster.
    """
    read = topics_by_id(batch.end_offsets, ledger)
    ended = parse_all(batch.end_offsets)
    are_ours = ended is not None and {place.topic for place in ended.offsets} <= read.names
    return SourceUse(are_ours, are_ours and commit is not False, read)


def _check_sources(options: WriteOptions, sources: SourceUse) -> None:
    if not options.may_write_to_sources:
        refuse_own_ledger(options.ledger_topic, options.read | sources.read, PERMISSION)
        refuse_loop(options.topic, sources.read, PERMISSION)
    if options.commit_source_offsets and not sources.commits:
        raise SinkRefused(
            "commitSourceOffsets is true, but the checkpoint's files do not prove that all sources "
            "are topics of this cluster: they must be on the driver's file system, and the source "
            "must be format fencepost. Leave commitSourceOffsets out; Spark's checkpoint alone "
            "then keeps the position in the source"
        )
