"""What to do with a batch write that has txnAppId and txnVersion.

They are what the query id and the batch id are to a stream: the transaction of a write records both
in the ledger. The names are Delta's, the table is stricter; the first matching row decides:

    ledger                            version v of application a
    none                              write; refuse if the id has committed something before
    another application or query p    refuse; takeOver names p: write
    a, v                              drain: the write is in the topics
    a, a later version                refuse: Delta would skip it, and hide a mistake
    a, an earlier version             write

`adopt` writes in every row but "a, v".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencepost.spark.sink.ledger.decision import Decision, Overrides, Verdict

if TYPE_CHECKING:
    from fencepost.spark.sink.ledger.entry import LedgerEntry


def decide_version(
    entry: LedgerEntry | None, app_id: str, version: int, overrides: Overrides
) -> Decision:
    """Applies the table in the module docstring, but for what the id has committed before."""
    if entry is None:
        return Decision(Verdict.WRITE, "the first write")
    if entry.query_id == app_id and entry.batch_id == version:
        return Decision(Verdict.DRAIN, f"version {version} is already in the topics")
    if overrides.adopt:
        return Decision(Verdict.WRITE, "adopted")
    if entry.query_id != app_id:
        return _decide_other(entry, app_id, overrides)
    if entry.batch_id > version:
        return Decision(
            Verdict.REFUSE,
            f"the last version of {app_id!r} in the topics is {entry.batch_id}, and this write is "
            f"version {version}: it was written before, or never will be in order. Give every "
            "write a higher txnVersion than the one before; pass adopt=true once if this one is "
            "not in the topics and belongs there",
        )
    return Decision(Verdict.WRITE, f"version {entry.batch_id} is the last one in the topics")


def _decide_other(entry: LedgerEntry, app_id: str, overrides: Overrides) -> Decision:
    if overrides.take_over == entry.query_id:
        return Decision(Verdict.TAKE_OVER, f"continues {entry.query_id}")
    return Decision(
        Verdict.REFUSE,
        f"it belongs to {entry.query_id!r} (last batch or version {entry.batch_id}), and this is "
        f"txnAppId {app_id!r}. Leave transactionalId out, or give this write its own; to continue "
        f'the other one, pass takeOver="{entry.query_id}" once',
    )
