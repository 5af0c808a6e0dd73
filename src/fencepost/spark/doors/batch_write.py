"""The writer of `df.write.format("fencepost")`: one transaction for the whole DataFrame.

Spark pickles it when it plans the write, and uses that copy for the tasks and for the commit or the
abort. So the fence happens as in a stream, when it is pickled, and the transaction is known
everywhere.

With txnAppId and txnVersion the ledger decides (`ledger/rule.py`), and the write can be repeated
after any failure. Without them nothing records that it happened: the transactional id is random,
and a second run writes again. If the answer to EndTxn is lost then, the coordinator's state of that
id is the only witness.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter

from fencepost.spark.connection import cluster_id_of, cluster_of
from fencepost.spark.doors.commit import (
    abort,
    as_plan_refused,
    check_account,
    commit,
    complete_reports,
    topics_of,
)
from fencepost.spark.doors.loops import check_loops
from fencepost.spark.doors.routed_task import Target, TaskReport, find_place, write_task
from fencepost.spark.failures import SinkRefused
from fencepost.spark.ledger.rule import Batch, Verdict
from fencepost.spark.sentences import plain_errors
from fencepost.spark.transaction.identity import DriverProducer
from fencepost.spark.transaction.states import State
from fencepost.spark.transaction.transaction import Transaction

if TYPE_CHECKING:
    import pyarrow as pa

    from fencepost.spark.doors.options import WriteOptions


class TableWriter(DataSourceArrowWriter):
    """One transaction."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._transaction: Transaction | None = None
        self._verdict = Verdict.WRITE
        self._cluster_id = ""

    def __getstate__(self) -> dict[str, Any]:
        """Spark pickles this writer several times; it is fenced once."""
        if self._transaction is None:
            with as_plan_refused(self._options):
                self._transaction = plan_write(self._options)
                self._verdict = self._transaction.decide().verdict
                self._cluster_id = cluster_id_of(self._options.settings.client)
        return self.__dict__

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskReport:
        """Runs in a task."""
        transaction, place = self._transaction, find_place()
        assert transaction is not None
        target = Target(self._options.settings, self._cluster_id)
        with plain_errors():
            return write_task(
                transaction, self._verdict, place, iterator, target, may_be_empty=True
            )

    def commit(self, messages: list[Any]) -> None:
        """Runs on the driver's machine once all tasks have reported."""
        with plain_errors():
            reports = complete_reports(messages)
            if not reports[0].is_drained:
                account = check_account(self._options, reports)
                check_loops(self._options, topics_of(account))
                to_repeat = "Nothing of the write is visible. Repeat it"
                commit(reports[0].transaction, account, to_repeat)

    def abort(self, messages: list[Any]) -> None:
        """Runs there if a task or the commit failed."""
        if self._transaction is not None and self._transaction.state is State.DECIDED:
            self._transaction.lend()
            abort(self._transaction)


def plan_write(options: WriteOptions) -> Transaction:
    """A transaction that has fenced its predecessors; SinkRefused if nothing may be written."""
    if options.app_id is None:
        _refuse_recorded_id(options)
        name = options.transactional_id or f"fencepost-write-{uuid.uuid4()}"
        producer = DriverProducer(name, options.settings)
        transaction = Transaction(producer, None, Batch(name, 0, is_version=True))
    else:
        assert options.version is not None
        ledger = options.ledger()
        ledger.prepare()
        transaction = Transaction(
            DriverProducer(options.transactional_id, options.settings),
            ledger,
            Batch(options.app_id, options.version, is_version=True),
            overrides=options.overrides,
        )
    transaction.fence()
    return transaction


def _refuse_recorded_id(options: WriteOptions) -> None:
    """An id with a ledger belongs to a query: a write without a version would only fence it."""
    name = options.transactional_id
    if not name or cluster_of(options.settings.client).find_topic(options.ledger_topic) is None:
        return
    ledger = options.ledger()
    ledger.prepare()
    entry = ledger.peek().entry
    if entry is not None:
        raise SinkRefused(
            f"transactional_id {name!r} belongs to {entry.query_id!r}, which the ledger knows: a "
            "write without txnAppId and txnVersion needs its own id, or none. Nothing was "
            "written."
        )
