"""Before the tasks of a stream's batch: checks, the fence, the ledger, the decision.

Theory of operation. Spark creates a writer twice per batch, in different processes: to plan the
write, and again for the commit or the abort. Only the first one is pickled, so the plan is made at
that moment, and only then: `StreamWriter.__getstate__` calls `plan_batch`. It is the one place that
fences. Every batch gets its own epoch, so whatever an earlier batch or an earlier driver left
running cannot write into this one.

If the checkpoint can be read (`checkpoint.py`), everything is decided here: an id that belongs to
another query is refused before its owner is fenced, as in the sink. Otherwise the query id and the
batch id are known only in the tasks. They decide, each by itself, from the same ledger entry.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fencepost.base.failures import FencepostError
from fencepost.spark.connection import cluster_id_of
from fencepost.spark.failures import SinkRefused
from fencepost.spark.format.checkpoint import StoredBatch, find_sources, read_checkpoint
from fencepost.spark.format.lent_identity import remember_identity
from fencepost.spark.format.loops import PERMISSION
from fencepost.spark.plain_errors import plain_errors
from fencepost.spark.sink.batch.read_topics import refuse_loop, refuse_own_ledger
from fencepost.spark.sink.checks import NO_SOURCES, check_ledger, check_timeout, refusal_of
from fencepost.spark.sink.ledger.decision import Decision, Verdict, decide
from fencepost.spark.sink.producer import DriverProducer

if TYPE_CHECKING:
    from fencepost.client.transactions import ProducerIdentity
    from fencepost.spark.format.options import WriteOptions
    from fencepost.spark.sink.batch.origins import SourceUse
    from fencepost.spark.sink.ledger.entry import LedgerView
    from fencepost.spark.sink.ledger.store import LedgerStore


class PlanRefused(SinkRefused, pickle.PickleError):
    """A refusal while Spark pickles the plan: PySpark passes on no other exception unchanged."""


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """What the tasks of one batch get, and return with their reports."""

    identity: ProducerIdentity
    view: LedgerView
    """The ledger before the batch."""
    stored: StoredBatch | None = None
    """The batch, if the checkpoint's files can be read."""
    verdict: Verdict | None = None
    """The decision about `stored`."""
    sources: SourceUse = NO_SOURCES
    cluster_id: str = ""

    def batch(self, query_id: str, batch_id: int) -> StoredBatch:
        """The batch that a task belongs to, with everything that is known about it."""
        stored = self.stored
        if stored is not None and (stored.query_id, stored.batch_id) == (query_id, batch_id):
            return stored
        return StoredBatch(query_id, batch_id)


def plan_batch(options: WriteOptions) -> BatchPlan:
    """Fences and decides; PlanRefused if nothing may be written."""
    with as_plan_refused(options):
        ledger = options.ledger()
        stored = read_checkpoint(options.checkpoint)
        ledger.prepare()
        sources = _check_before_fence(options, ledger, stored)
        producer = DriverProducer(options.transactional_id, options.settings)
        producer.fence()
        remember_identity(options, producer.identity)
        view = ledger.read("" if stored is None else stored.query_id, producer)
        check_timeout(options.transactional_id, options.settings, view.entry)
        verdict = None
        if stored is not None:
            decision = ledger.decide(view, stored.as_batch(), sources, options.overrides)
            verdict = accepted(options.transactional_id, decision)
        cluster_id = cluster_id_of(options.settings.client)
        return BatchPlan(producer.lend(), view, stored, verdict, sources, cluster_id)


def verdict_of(plan: BatchPlan, options: WriteOptions, query_id: str, batch_id: int) -> Verdict:
    """What a task does with its rows; SinkRefused if the ledger does not allow the batch."""
    batch = plan.batch(query_id, batch_id)
    if batch is plan.stored and plan.verdict is not None:
        return plan.verdict
    decision = decide(plan.view, batch.as_batch(), options.overrides)
    return accepted(options.transactional_id, decision)


def accepted(transactional_id: str, decision: Decision) -> Verdict:
    """The verdict; SinkRefused if it is a refusal."""
    if decision.verdict is Verdict.REFUSE:
        raise refusal_of(transactional_id, decision)
    return decision.verdict


def _check_before_fence(
    options: WriteOptions, ledger: LedgerStore, stored: StoredBatch | None
) -> SourceUse:
    sources = NO_SOURCES
    if stored is not None:
        sources = find_sources(stored, ledger, options.commit_source_offsets)
    if not options.may_write_to_sources:
        refuse_own_ledger(options.ledger_topic, options.read | sources.read, PERMISSION)
        refuse_loop(options.topic, sources.read, PERMISSION)
    if stored is not None:
        name = options.transactional_id
        check_ledger(ledger, name, stored.as_batch(), sources, options.overrides)
    if options.commit_source_offsets and not sources.commits:
        raise SinkRefused(
            "commitSourceOffsets is true, but the checkpoint's files do not prove that all sources "
            "are topics of this cluster: they must be on the driver's file system, and the source "
            "must be format fencepost. Leave commitSourceOffsets out; Spark's checkpoint alone "
            "then keeps the position in the source"
        )
    return sources


@contextmanager
def as_plan_refused(options: WriteOptions) -> Iterator[None]:
    """Turns every failure of ours into one that PySpark passes on."""
    try:
        with plain_errors(options.settings.client):
            yield
    except FencepostError as problem:
        raise PlanRefused(f"{problem}") from problem
