"""The writer of `df.write.format("fencepost")`: one transaction for the whole DataFrame.

Spark pickles it when it plans the write, and uses that copy for the tasks and for the commit or the
abort. So the fence happens as in a stream, when it is pickled, and the plan is known everywhere.

With txnAppId and txnVersion the ledger decides (`versions.py`), and the write can be repeated after
any failure. Without them nothing records that it happened: the transactional id is random, and a
second run writes again. If the answer to EndTxn is lost then, the coordinator's state of that id is
the only witness.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceArrowWriter

from fencepost.client.failures import UnknownOutcome
from fencepost.spark.connection import cluster_id_of, cluster_of
from fencepost.spark.failures import SinkFailed, SinkRefused
from fencepost.spark.format.commit import (
    abort_transaction,
    check_account,
    complete_reports,
    explained_fence,
    resumed,
    topics_of,
)
from fencepost.spark.format.loops import check_loops
from fencepost.spark.format.plan import accepted, as_plan_refused
from fencepost.spark.format.task import TaskReport, find_place, run_task
from fencepost.spark.format.versions import decide_version
from fencepost.spark.plain_errors import plain_errors
from fencepost.spark.sink.checks import COMMITTED, check_timeout
from fencepost.spark.sink.ledger.decision import Verdict
from fencepost.spark.sink.ledger.entry import LedgerEntry, LedgerView, next_entry
from fencepost.spark.sink.producer import DriverProducer

if TYPE_CHECKING:
    import pyarrow as pa

    from fencepost.client.admin import TransactionView
    from fencepost.client.transactions import ProducerIdentity
    from fencepost.spark.format.options import WriteOptions
    from fencepost.spark.sink.ledger.store import LedgerStore
    from fencepost.spark.transport.accounts import Account

log = logging.getLogger(__name__)

_ENDING: Final = frozenset({"PrepareCommit", "PrepareAbort", "PrepareEpochFence"})
"""States in which the outcome is decided and the markers are not all written."""


@dataclass(frozen=True, slots=True)
class WritePlan:
    """What the tasks and the commit get."""

    identity: ProducerIdentity
    verdict: Verdict
    view: LedgerView | None = None
    """The ledger before the write; None if the write is not recorded."""
    cluster_id: str = ""


class BatchWriter(DataSourceArrowWriter):
    """One transaction."""

    def __init__(self, options: WriteOptions, token: str) -> None:
        """`token`: with which tasks find the steps that write for them."""
        self._options = options
        self._token = token
        self._plan: WritePlan | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Spark pickles this writer several times; the plan is made once."""
        if self._plan is None:
            self._plan = plan_write(self._options)
        return self.__dict__

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskReport:
        """Runs in a task."""
        with plain_errors():
            return self._write(iterator)

    def _write(self, iterator: Iterator[pa.RecordBatch]) -> TaskReport:
        plan, place = self._plan, find_place()
        assert plan is not None
        verdict = plan.verdict
        return run_task(plan, lambda: verdict, place, iterator, self._token)

    def commit(self, messages: list[Any]) -> None:
        """Runs on the driver's machine once all tasks have reported."""
        assert self._plan is not None
        with plain_errors():
            reports = complete_reports(messages)
            if not reports[0].is_drained:
                account = check_account(self._options, reports)
                check_loops(self._options, topics_of(account))
                commit_write(self._options, self._plan, account)

    def abort(self, messages: list[Any]) -> None:
        """Runs there if a task or the commit failed."""
        if self._plan is not None:
            abort_transaction(self._options, self._plan.identity)


def plan_write(options: WriteOptions) -> WritePlan:
    """Fences and decides; PlanRefused if nothing may be written."""
    with as_plan_refused(options):
        app_id = options.app_id
        plan = _plan_once(options) if app_id is None else _plan_version(options, app_id)
        return replace(plan, cluster_id=cluster_id_of(options.settings.client))


def _plan_once(options: WriteOptions) -> WritePlan:
    _refuse_recorded_id(options)
    name = options.transactional_id or f"fencepost-write-{uuid.uuid4()}"
    producer = DriverProducer(name, options.settings)
    producer.fence()
    return WritePlan(producer.lend(), Verdict.WRITE)


def _plan_version(options: WriteOptions, app_id: str) -> WritePlan:
    name, ledger = options.transactional_id, options.ledger()
    ledger.prepare()
    # A settled refusal spares the owner of the id. One in doubt is decided after the fence.
    before = ledger.peek(app_id, stable=False)
    if before.is_settled:
        _decide(options, before)
    if before.entry is None and before.is_settled:
        _refuse_lost_ledger(options, ledger)
    producer = DriverProducer(name, options.settings)
    producer.fence()
    view = ledger.read(app_id, producer)
    check_timeout(name, options.settings, view.entry)
    return WritePlan(producer.lend(), _decide(options, view), view)


def _decide(options: WriteOptions, view: LedgerView) -> Verdict:
    assert options.app_id is not None
    assert options.version is not None
    decision = decide_version(view.entry, options.app_id, options.version, options.overrides)
    return accepted(options.transactional_id, decision)


def _refuse_lost_ledger(options: WriteOptions, ledger: LedgerStore) -> None:
    if not options.overrides.adopt and ledger.state_of_id() in COMMITTED:
        raise SinkRefused(
            f"transactional_id {options.transactional_id!r}: the cluster has seen a committed "
            "transaction of this id, but has no ledger of it: the record or its topic was deleted, "
            "ledgerTopic names another topic, or another producer uses the id. Check the end of "
            "the topics; if this write is not there, pass adopt=true once. Nothing was written."
        )


def _refuse_recorded_id(options: WriteOptions) -> None:
    """An id with a ledger belongs to a query: a write without a version would only fence it."""
    name = options.transactional_id
    if not name or cluster_of(options.settings.client).find_topic(options.ledger_topic) is None:
        return
    ledger = options.ledger()
    ledger.prepare()
    entry = ledger.peek("", stable=False).entry
    if entry is not None:
        raise SinkRefused(
            f"transactional_id {name!r} belongs to {entry.query_id!r}, which the ledger knows: a "
            "write without txnAppId and txnVersion needs an id of its own, or none. Nothing was "
            "written."
        )


# The commit.


def commit_write(options: WriteOptions, plan: WritePlan, account: Account) -> None:
    """Ends the transaction; raises if the rows are not in the topics afterwards."""
    producer = resumed(options, plan.identity)
    if plan.view is not None:
        with explained_fence(producer):
            _enter(options, plan.identity, plan.view, account)
    try:
        producer.commit()
    except UnknownOutcome as problem:
        log.warning("%s", problem)
        is_committed = (
            _settle_by_state(options, plan.identity)
            if plan.view is None
            else _settle_by_ledger(options, producer)
        )
        if not is_committed:
            raise SinkFailed(
                "the answer to EndTxn was lost, and the transaction turned out to be aborted. "
                "Nothing of the write is visible. Repeat it"
            ) from problem


def _enter(
    options: WriteOptions, identity: ProducerIdentity, view: LedgerView, account: Account
) -> None:
    assert options.app_id is not None
    assert options.version is not None
    now_ms = time.time_ns() // 1_000_000
    open_ms = max(0, now_ms - account.opened_ms) if account.opened_ms else 0
    entry = next_entry(view.entry, LedgerEntry(options.app_id, options.version), open_ms)
    ledger = options.ledger()
    ledger.prepare()
    ledger.write(identity, entry, view)


def _settle_by_ledger(options: WriteOptions, producer: DriverProducer) -> bool:
    """Whether the transaction was committed. A fresh epoch makes the answer final."""
    if producer.is_taken():
        raise producer.fenced("The ledger will tell whether this write is visible")
    producer.fence()
    ledger = options.ledger()
    ledger.prepare()
    entry = ledger.read(options.app_id or "", producer).entry
    return entry is not None and (entry.query_id, entry.batch_id) == (
        options.app_id,
        options.version,
    )


def _settle_by_state(options: WriteOptions, identity: ProducerIdentity) -> bool:
    """Whether the transaction was committed, by the coordinator's state of its id."""
    name = identity.transactional_id or ""
    cluster = cluster_of(options.settings.client)
    deadline = time.monotonic() + options.settings.client.default_api_timeout_ms / 1_000
    while True:
        view = cluster.describe_transactions([name])[name]
        if view is None or not _is_of(view, identity) or time.monotonic() >= deadline:
            raise SinkFailed(
                "the answer to EndTxn was lost, and the cluster does not say any more whether the "
                "rows are visible: look at the end of the topics before you repeat the write. With "
                "txnAppId and txnVersion the ledger would tell"
            )
        if view.state not in _ENDING:
            return view.state in COMMITTED
        time.sleep(0.05)


def _is_of(view: TransactionView, identity: ProducerIdentity) -> bool:
    """Whether the id still belongs to this producer. The end of its transaction adds one."""
    is_same = view.producer_id == identity.producer_id
    return is_same and view.producer_epoch <= identity.producer_epoch + 1
