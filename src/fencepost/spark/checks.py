"""What would break the promise, looked for before the first batch of a run.

Each refusal says what to change. A second driver elsewhere cannot be seen from here; its entry in the ledger can
(`check_ledger`), and where there is none yet the epoch decides.
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
from fencepost.spark.ledger import Verdict, decide, group_of, read_page
from fencepost.spark.session import concurrent_tasks, is_on, setting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from fencepost.client.blocking import Cluster
    from fencepost.spark.ledger import Batch, Decision
    from fencepost.spark.moment import Moment
    from fencepost.spark.settings import SinkSettings

log = logging.getLogger(__name__)

LEAST_SPARK: Final = (4, 2)

EXECUTORS_PATIENCE_SECONDS: Final = 120.0
"""How long the first executor may take to come: a cluster starts them while the query starts."""

_COMMITTED: Final = frozenset({"PrepareCommit", "CompleteCommit"})
"""States of a transactional id whose last transaction was committed."""

_claims: Final[dict[tuple[str, str], Moment]] = {}
"""Which query of this application uses which transactional id."""


def check_start(
    session: SparkSession, transactional_id: str, settings: SinkSettings, moment: Moment
) -> None:
    """SinkRefused when this session or this query cannot keep the promise."""
    check_session(session)
    claim_id(transactional_id, settings, moment)


def check_session(session: SparkSession) -> None:
    """The session's version, settings and Python."""
    version = tuple(int(part) for part in session.version.split(".")[:2])
    if version < LEAST_SPARK:
        raise SinkRefused(f"Spark {session.version} is too old: fencepost needs Spark 4.2 or newer")
    if is_on(session, "spark.dynamicAllocation.enabled"):
        raise SinkRefused(
            "spark.dynamicAllocation.enabled is true, and Spark does not run barrier stages then: set it to false"
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
                f"no executor that can run a task came within {EXECUTORS_PATIENCE_SECONDS:.0f} s: the write stage needs "
                "at least one free core (spark.executor.cores, spark.task.cpus, or the number in local[N])"
            )
        time.sleep(0.05)


def _use_this_python(session: SparkSession) -> None:
    """Workers on this machine run the Python that the driver runs, unless the user has chosen one.

    Those on other machines do not: the path of our interpreter (which importing this package may have set) means
    nothing there.
    """
    context = session.sparkContext
    is_unset = PYTHON_SET_HERE or "PYSPARK_PYTHON" not in os.environ
    if setting(session, "spark.pyspark.python") or not is_unset:
        return
    is_local = (context.master or "").startswith("local")
    context.pythonExec = sys.executable if is_local else "python3"


def claim_id(transactional_id: str, settings: SinkSettings, moment: Moment) -> None:
    """Refuses a second live query of this application with the same id; those elsewhere are fenced."""
    key = (",".join(map(str, settings.client.bootstrap)), transactional_id)
    holder = _claims.get(key)
    if holder is not None and holder.query_id != moment.query_id and holder.is_running():
        raise SinkRefused(
            f"query {holder.query_id} of this application writes with transactional_id {transactional_id!r}, and so "
            f"does query {moment.query_id}: give each query its own transactional_id"
        )
    _claims[key] = moment


def check_ledger(cluster: Cluster, transactional_id: str, batch: Batch) -> None:
    """Refuses what the fence would not change, so that whoever writes with this id is not stopped for nothing.

    A transaction that is committed but whose markers are on their way may still change the ledger, so a refusal is given
    on a settled one.
    """
    group = group_of(transactional_id)
    page = read_page(cluster.offset_fetch(group, require_stable=False), batch.query_id)
    if decide(page, batch).verdict is Verdict.REFUSE:
        try:
            page = read_page(cluster.offset_fetch(group), batch.query_id)
        except RetriesExhausted as problem:
            # Somebody died in the middle of a transaction. Fence it; the ledger will be read again.
            log.info("the ledger of %r is not settled: %s", transactional_id, problem)
            return
        decision = decide(page, batch)
        if decision.verdict is Verdict.REFUSE:
            raise refusal_of(transactional_id, decision)
    if page.entry is None and batch.batch_id == 0:
        _refuse_lost_ledger(cluster, transactional_id, batch)


def _refuse_lost_ledger(cluster: Cluster, transactional_id: str, batch: Batch) -> None:
    """A first batch without a ledger is a new query, unless the id has committed something: then a ledger is missing."""
    view = cluster.describe_transactions([transactional_id])[transactional_id]
    if view is None or view.state not in _COMMITTED:
        return
    page = read_page(cluster.offset_fetch(group_of(transactional_id)), batch.query_id)
    if page.entry is None:
        raise SinkRefused(
            f"transactional_id {transactional_id!r}: the cluster has seen a committed transaction of this id, but has no "
            "ledger of it: the ledger expired (offsets.retention.minutes) or was deleted, or another producer uses the "
            "id. Whether batch 0 is in the topics cannot be known. Look at the end of the topics; if the batch is not "
            "there, pass adopt=True once, or give this query a transactional_id that nobody has used. Nothing was written."
        )


def refusal_of(transactional_id: str, decision: Decision) -> SinkRefused:
    """The ledger's refusal of a batch, in words."""
    return SinkRefused(
        f"transactional_id {transactional_id!r}: {decision.reason}. Nothing was written."
    )


def check_timeout(transactional_id: str, settings: SinkSettings, longest_ms: int) -> None:
    """Refuses a timeout that a transaction of this id would have exceeded before."""
    timeout_ms = settings.transaction_timeout_ms
    if longest_ms >= timeout_ms:
        raise SinkRefused(
            f"a transaction of {transactional_id!r} has been open for {longest_ms} ms, and the timeout is "
            f"{timeout_ms} ms: raise kafka.transaction.timeout.ms, or make batches smaller"
        )
