"""Refuses, before the first batch of a run, what would break the guarantee.

Each refusal says what to change. A driver elsewhere with the same id is invisible from here, but
its ledger entry is not (`check_ledger`). If it has no entry yet, the epoch decides.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from fencepost.client.failures import RetriesExhausted
from fencepost.spark.failures import SinkRefused
from fencepost.spark.session import allows_barrier, await_slots, is_on
from fencepost.spark.sink.batch.connect_batch import check_connect
from fencepost.spark.sink.batch.origins import SourceUse
from fencepost.spark.sink.jobs.hosts import check_secrets
from fencepost.spark.sink.ledger.decision import NO_OVERRIDES, Verdict
from fencepost.spark.sink.ledger.entry import RECENT_BATCHES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from fencepost.spark.sink.batch.micro_batch import MicroBatch
    from fencepost.spark.sink.ledger.decision import Batch, Decision, Overrides
    from fencepost.spark.sink.ledger.entry import LedgerEntry, LedgerView
    from fencepost.spark.sink.ledger.store import LedgerStore
    from fencepost.spark.sink.settings import SinkSettings

log = logging.getLogger(__name__)

LEAST_SPARK: Final = (4, 0)

EXECUTOR_WAIT_SECONDS: Final = 120.0
"""How long to wait for the first executor: a cluster starts them while the query starts."""

SETTLING_SECONDS: Final = 0.1
"""How often an unsettled ledger is read again: markers arrive within milliseconds, or only after a
timeout."""

NO_SOURCES: Final = SourceUse()

COMMITTED: Final = frozenset({"PrepareCommit", "CompleteCommit"})
"""States of a transactional id whose last transaction was committed."""

_claims: Final[dict[tuple[str, str], MicroBatch]] = {}
"""Which query of this application uses which transactional id."""


def check_start(
    session: SparkSession, transactional_id: str, settings: SinkSettings, micro_batch: MicroBatch
) -> None:
    """Raises SinkRefused if this session or this query cannot keep the guarantee."""
    if not micro_batch.has_engine:
        check_connect(session, settings)
    check_session(session)
    check_secrets(session, settings)
    claim_id(transactional_id, settings, micro_batch)


NO_CHECKPOINT: Final = (
    "this query has no checkpointLocation, so its checkpoint ends with it, and every start is "
    'another query: add .option("checkpointLocation", ...), the same at every start'
)


def warn_about_checkpoint(micro_batch: MicroBatch) -> None:
    """Warns of the first run of a query that cannot have a second one."""
    if not micro_batch.has_lasting_checkpoint:
        log.warning("fencepost: %s", NO_CHECKPOINT)


@contextmanager
def naming_checkpoint(micro_batch: MicroBatch) -> Iterator[None]:
    """Adds to a refusal by the ledger that the query has no checkpoint of its own."""
    try:
        yield
    except SinkRefused as problem:
        if micro_batch.has_lasting_checkpoint:
            raise
        raise SinkRefused(f"{NO_CHECKPOINT}. {problem}") from None


def check_version(session: SparkSession) -> None:
    """Refuses a Spark that is too old."""
    version = tuple(int(part) for part in session.version.split(".")[:2])
    if version < LEAST_SPARK:
        raise SinkRefused(f"Spark {session.version} is too old: fencepost needs Spark 4.0 or newer")


def check_session(session: SparkSession) -> None:
    """Checks the session's version and settings."""
    check_version(session)
    if is_on(session, "spark.speculation"):
        raise SinkRefused(
            "spark.speculation is true: a second copy of a task must never write. Set it to false"
        )
    if allows_barrier(session):
        check_slots(session)


def check_slots(session: SparkSession) -> None:
    """Waits for the first executor; SinkRefused if none comes."""
    if not await_slots(session, EXECUTOR_WAIT_SECONDS):
        raise SinkRefused(
            "no executor that can run a task registered within "
            f"{EXECUTOR_WAIT_SECONDS:.0f} s: the write stage needs at least one free core "
            "(spark.executor.cores, spark.task.cpus, or the number in local[N])"
        )


def claim_id(transactional_id: str, settings: SinkSettings, micro_batch: MicroBatch) -> None:
    """Refuses a second live query of this application with the same id. The fence stops others."""
    key = (",".join(map(str, settings.client.bootstrap)), transactional_id)
    holder = _claims.get(key)
    if holder is not None and holder.query_id != micro_batch.query_id and holder.is_running():
        raise SinkRefused(
            f"query {holder.query_id} of this application writes with transactional_id "
            f"{transactional_id!r}, and so does query {micro_batch.query_id}: give each query its "
            "own transactional_id"
        )
    _claims[key] = micro_batch


def check_ledger(
    store: LedgerStore,
    transactional_id: str,
    batch: Batch,
    sources: SourceUse = NO_SOURCES,
    overrides: Overrides = NO_OVERRIDES,
) -> None:
    """Refuses before the fence what the ledger refuses anyway, to spare the owner of the id.

    A transaction without markers may still change the ledger. So it refuses once the ledger is
    settled, or if it would refuse whichever way the open transaction ends: the owner of the id
    is in the middle of a batch then, and goes on.
    """

    def decide(view: LedgerView) -> Decision:
        return store.decide(view, batch, sources, overrides)

    view = store.peek(batch.query_id, stable=False)
    if decide(view).verdict is Verdict.REFUSE:
        latest = _settled_view(store, transactional_id, batch)
        if latest is None:
            return
        view = latest
        if not view.is_settled and not view.undecided:
            return
        ends = [decide(view._replace(entry=entry)) for entry in (view.entry, *view.undecided)]
        if all(decision.verdict is Verdict.REFUSE for decision in ends):
            raise refusal_of(transactional_id, ends[0])
        if not view.is_settled:
            return
    is_first = batch.batch_id == 0 or overrides.may_skip
    if view.entry is None and is_first and not overrides.adopt:
        _refuse_lost_ledger(store, transactional_id, batch)


def _settled_view(store: LedgerStore, transactional_id: str, batch: Batch) -> LedgerView | None:
    """The ledger once no transaction of the id is open, or as it is if one stays open for too long.

    None if the group's offsets stay unstable.
    """
    deadline = time.monotonic() + store.wait_seconds
    try:
        while not (view := store.peek(batch.query_id, stable=True)).is_settled:
            if time.monotonic() >= deadline:
                log.info("the last ledger record of %r is in an open transaction", transactional_id)
                return view
            time.sleep(SETTLING_SECONDS)
    except RetriesExhausted as problem:
        # A producer died in the middle of a transaction. The fence ends it, and the ledger is read
        # again.
        log.info("the ledger of %r is not settled: %s", transactional_id, problem)
        return None
    return view


def _refuse_lost_ledger(store: LedgerStore, transactional_id: str, batch: Batch) -> None:
    """Refuses a first batch if the id has committed something but has no ledger."""
    if store.state_of_id() not in COMMITTED:
        return
    view = _settled_view(store, transactional_id, batch)
    if view is not None and view.is_settled and view.entry is None:
        raise SinkRefused(
            f"transactional_id {transactional_id!r}: the cluster has seen a committed transaction "
            "of this id, but has no ledger of it: the record or its topic was deleted, "
            "ledger_topic= names another topic, or another producer uses the id. The sink cannot "
            f"tell whether batch {batch.batch_id} is in the topics. Check the end of the topics; "
            "if the batch is not there, pass adopt=True once, or give this query an unused "
            "transactional_id. Nothing was written."
        )


def refusal_of(transactional_id: str, decision: Decision) -> SinkRefused:
    """The error for a batch that the ledger refuses."""
    return SinkRefused(
        f"transactional_id {transactional_id!r}: {decision.reason}. Nothing was written."
    )


def check_timeout(transactional_id: str, settings: SinkSettings, entry: LedgerEntry | None) -> None:
    """Refuses a timeout that one of the id's last transactions would have exceeded."""
    timeout_ms = settings.transaction_timeout_ms
    longest_ms = 0 if entry is None else entry.longest_ms
    if longest_ms >= timeout_ms:
        raise SinkRefused(
            f"one of the last {RECENT_BATCHES} transactions of {transactional_id!r} was open for "
            f"{longest_ms} ms, and the timeout is {timeout_ms} ms: raise "
            "kafka.transaction.timeout.ms; or, if batches are smaller now, run "
            f"`fencepost ledger forget --durations {transactional_id}`. Nothing was written"
        )
