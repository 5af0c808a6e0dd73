"""What would break the promise, looked for before the first batch of a run.

Each refusal says what to change. A second driver elsewhere cannot be seen from here; its entry in
the ledger can (`check_ledger`), and where there is none yet the epoch decides.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from typing import TYPE_CHECKING, Final

from fencepost.client.failures import RetriesExhausted
from fencepost.spark import PYTHON_SET_HERE
from fencepost.spark.failures import SinkRefused
from fencepost.spark.session import concurrent_tasks, is_on, setting
from fencepost.spark.sink.ledger.ledger import NO_PERMITS, RECENT_BATCHES, Verdict
from fencepost.spark.sink.origins import SourceUse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from fencepost.spark.sink.ledger.keeper import LedgerKeeper
    from fencepost.spark.sink.ledger.ledger import Batch, Decision, LedgerEntry, Page, Permits
    from fencepost.spark.sink.micro_batch import MicroBatch
    from fencepost.spark.sink.settings import SinkSettings

log = logging.getLogger(__name__)

LEAST_SPARK: Final = (4, 2)

EXECUTORS_PATIENCE_SECONDS: Final = 120.0
"""How long the first executor may take to come: a cluster starts them while the query starts."""

SETTLING_SECONDS: Final = 0.1
"""How often an undecided ledger is looked at again: markers come within milliseconds, or not before
a timeout."""

NO_SOURCES: Final = SourceUse()

_COMMITTED: Final = frozenset({"PrepareCommit", "CompleteCommit"})
"""States of a transactional id whose last transaction was committed."""

_claims: Final[dict[tuple[str, str], MicroBatch]] = {}
"""Which query of this application uses which transactional id."""


def check_start(
    session: SparkSession, transactional_id: str, settings: SinkSettings, micro_batch: MicroBatch
) -> None:
    """SinkRefused when this session or this query cannot keep the promise."""
    check_session(session)
    claim_id(transactional_id, settings, micro_batch)


def check_session(session: SparkSession) -> None:
    """The session's version, settings and Python."""
    version = tuple(int(part) for part in session.version.split(".")[:2])
    if version < LEAST_SPARK:
        raise SinkRefused(f"Spark {session.version} is too old: fencepost needs Spark 4.2 or newer")
    if is_on(session, "spark.dynamicAllocation.enabled"):
        raise SinkRefused(
            "spark.dynamicAllocation.enabled is true, and Spark does not run barrier stages "
            "then: set it to false"
        )
    if is_on(session, "spark.speculation"):
        raise SinkRefused(
            "spark.speculation is true: a second copy of a task must never write. Set it to false"
        )
    _check_slots(session)
    _use_this_python(session)


def _check_slots(session: SparkSession) -> None:
    deadline = time.monotonic() + EXECUTORS_PATIENCE_SECONDS
    while concurrent_tasks(session) < 1:
        if time.monotonic() >= deadline:
            raise SinkRefused(
                f"no executor that can run a task came within {EXECUTORS_PATIENCE_SECONDS:.0f} "
                "s: the write stage needs "
                "at least one free core (spark.executor.cores, spark.task.cpus, or the number "
                "in local[N])"
            )
        time.sleep(0.05)


def _use_this_python(session: SparkSession) -> None:
    """Workers on this machine run the Python that the driver runs, unless the user has chosen one.

    Those on other machines do not: the path of our interpreter (which importing this package may
    have set) means nothing there.
    """
    context = session.sparkContext
    is_unset = PYTHON_SET_HERE or "PYSPARK_PYTHON" not in os.environ
    if setting(session, "spark.pyspark.python") or not is_unset:
        return
    is_local = (context.master or "").startswith("local")
    context.pythonExec = sys.executable if is_local else "python3"


def claim_id(transactional_id: str, settings: SinkSettings, micro_batch: MicroBatch) -> None:
    """Refuses a second live query of this application with the same id; those elsewhere are fenced."""
    key = (",".join(map(str, settings.client.bootstrap)), transactional_id)
    holder = _claims.get(key)
    if holder is not None and holder.query_id != micro_batch.query_id and holder.is_running():
        raise SinkRefused(
            f"query {holder.query_id} of this application writes with transactional_id "
            f"{transactional_id!r}, and so "
            f"does query {micro_batch.query_id}: give each query its own transactional_id"
        )
    _claims[key] = micro_batch


def check_ledger(
    keeper: LedgerKeeper,
    transactional_id: str,
    batch: Batch,
    sources: SourceUse = NO_SOURCES,
    permits: Permits = NO_PERMITS,
) -> None:
    """Refuses what the fence would not change, so that whoever writes with this id is not stopped for nothing.

    A transaction that is committed but whose markers are on their way may still change the ledger,
    so a refusal is given on a settled one.
    """

    def judge(page: Page) -> Decision:
        return keeper.judge(page, batch, sources, permits)

    page = keeper.look(batch.query_id, stable=False)
    if judge(page).verdict is Verdict.REFUSE:
        settled = _settled_page(keeper, transactional_id, batch)
        if settled is None:
            return
        page = settled
        decision = judge(page)
        if decision.verdict is Verdict.REFUSE:
            raise refusal_of(transactional_id, decision)
    is_first = batch.batch_id == 0 or permits.may_skip
    if page.entry is None and is_first and not permits.adopt:
        _refuse_lost_ledger(keeper, transactional_id, batch)


def _settled_page(keeper: LedgerKeeper, transactional_id: str, batch: Batch) -> Page | None:
    """The page when no transaction of the id is open; None when one stays open for longer than we wait."""
    deadline = time.monotonic() + keeper.patience_seconds
    try:
        while not (page := keeper.look(batch.query_id, stable=True)).is_settled:
            if time.monotonic() >= deadline:
                log.info("an entry of %r is in an open transaction", transactional_id)
                return None
            time.sleep(SETTLING_SECONDS)
    except RetriesExhausted as problem:
        # Somebody died in the middle of a transaction. Fence it; the ledger will be read again.
        log.info("the ledger of %r is not settled: %s", transactional_id, problem)
        return None
    return page


def _refuse_lost_ledger(keeper: LedgerKeeper, transactional_id: str, batch: Batch) -> None:
    """A first batch without a ledger is a new query, unless the id has committed something: then a ledger is missing."""
    if keeper.state_of_id() not in _COMMITTED:
        return
    page = _settled_page(keeper, transactional_id, batch)
    if page is not None and page.entry is None:
        raise SinkRefused(
            f"transactional_id {transactional_id!r}: the cluster has seen a committed "
            "transaction of this id, but has no "
            "ledger of it: the record or its topic was deleted, ledger_topic= names another "
            "topic, or another producer "
            f"uses the id. Whether batch {batch.batch_id} is in the topics cannot be known. "
            "Look at the end of the topics; if the batch "
            "is not there, pass adopt=True once, or give this query a transactional_id that "
            "nobody has used. Nothing was "
            "written."
        )


def refusal_of(transactional_id: str, decision: Decision) -> SinkRefused:
    """The ledger's refusal of a batch, in words."""
    return SinkRefused(
        f"transactional_id {transactional_id!r}: {decision.reason}. Nothing was written."
    )


def check_timeout(transactional_id: str, settings: SinkSettings, entry: LedgerEntry | None) -> None:
    """Refuses a timeout that one of the last transactions of this id would have exceeded."""
    timeout_ms = settings.transaction_timeout_ms
    longest_ms = 0 if entry is None else entry.longest_ms
    if longest_ms >= timeout_ms:
        raise SinkRefused(
            f"one of the last {RECENT_BATCHES} transactions of {transactional_id!r} was open "
            f"for {longest_ms} ms, and the "
            f"timeout is {timeout_ms} ms: raise kafka.transaction.timeout.ms; or, where batches "
            "are smaller now, run "
            f"`fencepost ledger forget --durations {transactional_id}`. Nothing was written"
        )
