"""Refuses before the fence what the ledger refuses anyway, to spare the owner of the id.

A fence ends the open transaction of the id's owner. A query that is refused afterwards would have
stopped the owner for nothing. A transaction without markers may still change the ledger. So this
refuses once the ledger is settled, or if it would refuse however the open transaction ends: then
the owner is in the middle of a batch, and goes on.

A driver elsewhere with the same id is invisible from here, but its ledger entry is not. If it has
no entry yet, the epoch decides.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from fencepost.spark.failures import SinkRefused
from fencepost.spark.ledger.rule import NO_OVERRIDES, Verdict
from fencepost.spark.ledger.sources import NO_SOURCES

if TYPE_CHECKING:
    from fencepost.spark.ledger.entry import LedgerView
    from fencepost.spark.ledger.rule import Batch, Decision, Overrides
    from fencepost.spark.ledger.sources import SourceUse
    from fencepost.spark.ledger.store import LedgerStore

log = logging.getLogger(__name__)

SETTLING_SECONDS: Final = 0.1
"""How often an unsettled ledger is read again: markers arrive within milliseconds, or only after a
timeout."""

COMMITTED: Final = frozenset({"PrepareCommit", "CompleteCommit"})
"""States of a transactional id whose last transaction was committed."""


def check_ledger(
    store: LedgerStore,
    batch: Batch,
    sources: SourceUse = NO_SOURCES,
    overrides: Overrides = NO_OVERRIDES,
) -> None:
    """SinkRefused if the ledger refuses the batch, however an open transaction ends."""

    def decide(view: LedgerView) -> Decision:
        return store.decide(view, batch, sources, overrides)

    view = store.peek()
    if decide(view).verdict is Verdict.REFUSE:
        view = _settled_view(store)
        ends = [decide(view._replace(entry=entry)) for entry in (view.entry, *view.undecided)]
        if all(decision.verdict is Verdict.REFUSE for decision in ends):
            raise refusal_of(store.transactional_id, ends[0])
        if not view.is_settled:
            return
    is_first = batch.batch_id == 0 or batch.is_version or overrides.may_skip
    if view.entry is None and is_first and not overrides.adopt:
        _refuse_lost_ledger(store, batch)


def _settled_view(store: LedgerStore) -> LedgerView:
    """The ledger once every record has its marker, or as it is if one stays open for too long."""
    deadline = time.monotonic() + store.wait_seconds
    while not (view := store.peek()).is_settled:
        if time.monotonic() >= deadline:
            log.info("the last record of %r is in an open transaction", store.transactional_id)
            break
        time.sleep(SETTLING_SECONDS)
    return view


def _refuse_lost_ledger(store: LedgerStore, batch: Batch) -> None:
    """Refuses a first batch if the id has committed something but has no ledger."""
    if store.state_of_id() not in COMMITTED:
        return
    view = _settled_view(store)
    if not view.is_settled or view.entry is not None:
        return
    if batch.is_version:
        named, what, adopt = "ledgerTopic", "this write", "adopt=true"
    else:
        named, what, adopt = "ledger_topic=", f"batch {batch.batch_id}", "adopt=True"
    raise SinkRefused(
        f"transactional_id {store.transactional_id!r}: the cluster has seen a committed "
        "transaction of this id, but has no ledger of it: the record or its topic was deleted, "
        f"{named} names another topic, or another producer uses the id. The sink cannot tell "
        f"whether {what} is in the topics. Check the end of the topics; only if it is not there, "
        f"pass {adopt} once. If another producer uses the id, choose an unused one. Nothing was "
        "written."
    )


def refusal_of(transactional_id: str, decision: Decision) -> SinkRefused:
    """The error for a batch that the ledger refuses."""
    return SinkRefused(
        f"transactional_id {transactional_id!r}: {decision.reason}. Nothing was written."
    )
