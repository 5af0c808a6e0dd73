"""Ends transactions: the only module of this room that changes anything.

There are three requests that end a transaction from outside, and each suits one situation:

    InitProducerId    `fence`: the coordinator aborts the transaction on all its partitions, and the
                      epoch rises, so that the producer is locked out
    EndTxn            `commit` and `abort` by id, with the producer id and epoch that the
                      coordinator describes: it ends the transaction as its producer would
    WriteTxnMarkers   `abort` on one partition, for a transaction that no coordinator has (hanging)

WriteTxnMarkers while a coordinator has the transaction would tear it in half: the coordinator and
the producer do not notice, the producer commits, and one partition stays aborted. So it is refused
unless it is proven that no coordinator has it.

Every action has two steps. `plan_*` looks and returns what will be done, or `NothingOpen`. The
caller shows that and asks. `carry_out` looks again and refuses if the situation has changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from fencepost.base.administrators import TXN_ABORT, TXN_COMMIT, TXN_FENCE
from fencepost.base.failures import FencepostError
from fencepost.client.admin import write_abort_marker
from fencepost.client.failures import UnknownOutcome
from fencepost.client.transactions import ProducerIdentity, learn_transaction_version
from fencepost.forensics.commands import describe_command, fence_command
from fencepost.forensics.history.rules import ADMIN_TIMEOUT_MS
from fencepost.forensics.holders import (
    ONGOING,
    PREPARED,
    Holder,
    Standing,
    judge_holder,
    look_at_transactions,
)
from fencepost.forensics.visibility import look_at_visibility

if TYPE_CHECKING:
    from fencepost.base.ids import TopicPartition
    from fencepost.client.admin import TransactionView
    from fencepost.client.blocking import Cluster

_NAMED_PARTITIONS: Final = 5
TV2: Final = 2


class Action(Enum):
    """What a command does with the transaction of an id."""

    FENCE = "fence"
    ABORT = "abort"
    COMMIT = "commit"

    @property
    def client_id(self) -> str:
        """By which brokers recognise it as an administrator's."""
        return _CLIENT_IDS[self]


_CLIENT_IDS: Final = {
    Action.FENCE: TXN_FENCE,
    Action.ABORT: TXN_ABORT,
    Action.COMMIT: TXN_COMMIT,
}


@dataclass(frozen=True, slots=True)
class NothingOpen:
    """There is nothing to end; the sentence says what was found."""

    sentence: str


@dataclass(frozen=True, slots=True)
class IdPlan:
    """How the transaction of a transactional id will be ended."""

    action: Action
    view: TransactionView
    transaction_version: int
    sentence: str


@dataclass(frozen=True, slots=True)
class MarkerPlan:
    """How a transaction will be aborted on one partition."""

    holder: Holder
    forced: bool
    sentence: str


@dataclass(frozen=True, slots=True)
class Ended:
    """What was done, and what it leaves behind."""

    action: str
    transactional_id: str | None
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]
    leaves: str
    new_producer_id: int | None = None
    new_producer_epoch: int | None = None


# By transactional id.


def plan_ending(
    cluster: Cluster, action: Action, transactional_id: str, *, even_idle: bool = False
) -> IdPlan | NothingOpen:
    """Looks at an id and says how its transaction would be ended.

    With `even_idle`, `fence` locks out a producer without an open transaction too.
    """
    view = _describe(cluster, transactional_id)
    if view.state in PREPARED:
        return _refuse_prepared(action, view)
    if view.state != ONGOING and not (even_idle and action is Action.FENCE):
        return NothingOpen(
            f"Nothing is open: {transactional_id!r} is {view.state} (producer "
            f"{view.producer_id}, epoch {view.producer_epoch})."
        )
    version = cluster.run(learn_transaction_version(cluster.core))
    return IdPlan(action, view, version, _promise(action, view, version))


def carry_out(cluster: Cluster, plan: IdPlan) -> Ended:
    """Looks again, and ends the transaction if it is still the one of the plan."""
    view = plan.view
    now = _describe(cluster, view.transactional_id)
    _require_unchanged(plan, now)
    if plan.action is Action.FENCE:
        # Java's Admin.fenceProducers asks for this, too: on Apache Kafka it is the only sign of an
        # administrator. A cluster that allows less has ids with less.
        timeout_ms = (
            min(view.timeout_ms, ADMIN_TIMEOUT_MS) if view.timeout_ms > 0 else (ADMIN_TIMEOUT_MS)
        )
        after = cluster.init_producer_id(view.transactional_id, timeout_ms)
    else:
        after = _end(cluster, plan)
    return Ended(
        plan.action.value,
        view.transactional_id,
        view.producer_id,
        view.producer_epoch,
        now.partitions,
        _leaves(plan.action, plan.transaction_version),
        after.producer_id,
        after.producer_epoch,
    )


def _describe(cluster: Cluster, transactional_id: str) -> TransactionView:
    if not transactional_id:
        raise FencepostError("A transactional id must not be empty.")
    view = cluster.describe_transactions([transactional_id])[transactional_id]
    if view is None:
        raise FencepostError(
            f"No coordinator knows the transactional id {transactional_id!r}: it was never used "
            "here, or it has expired. `fencepost txn list` shows all ids."
        )
    return view


def _refuse_prepared(action: Action, view: TransactionView) -> NothingOpen:
    is_commit = view.state == "PrepareCommit"
    if (action is Action.COMMIT) == is_commit and action is not Action.FENCE:
        return NothingOpen(
            f"Nothing is left to decide: {view.transactional_id!r} is {view.state}, and waits for "
            f"the marker on {_named(view.partitions)}."
        )
    word = "committed" if is_commit else "aborted"
    raise FencepostError(
        f"{view.transactional_id!r} is {view.state}: it is already being {word}, and only the "
        f"marker on {_named(view.partitions)} is missing. Nothing was changed; see "
        f"`{describe_command(view.transactional_id)}`."
    )


def _require_unchanged(plan: IdPlan, now: TransactionView) -> None:
    before = plan.view
    same = (
        now.state == before.state
        and (now.producer_id, now.producer_epoch) == (before.producer_id, before.producer_epoch)
        and now.start_ms == before.start_ms
    )
    if not same:
        raise FencepostError(
            f"{before.transactional_id!r} has changed since: it is {now.state} now (producer "
            f"{now.producer_id}, epoch {now.producer_epoch}). Nothing was changed; run the command "
            "again."
        )
    if plan.action is Action.COMMIT and now.partitions != before.partitions:
        raise FencepostError(
            f"The producer of {before.transactional_id!r} is still at work: it has written to "
            "another partition since. Nothing was changed; let it commit, or stop it first."
        )


def _end(cluster: Cluster, plan: IdPlan) -> ProducerIdentity:
    view = plan.view
    identity = ProducerIdentity(
        view.transactional_id, view.producer_id, view.producer_epoch, plan.transaction_version
    )
    try:
        return cluster.end_txn(identity, commit=plan.action is Action.COMMIT)
    except UnknownOutcome as problem:
        raise FencepostError(
            f"It is not known whether the {plan.action.value} took effect: {problem.__cause__}. "
            f"See `{describe_command(view.transactional_id)}`, and run the command again if it is "
            "still Ongoing."
        ) from problem


def _promise(action: Action, view: TransactionView, version: int) -> str:
    """One sentence: what will happen to the transaction, and to its producer."""
    who = f"producer {view.producer_id}, epoch {view.producer_epoch}"
    its = f"the transaction of {view.transactional_id!r} on {_named(view.partitions)}"
    is_fenced = action is Action.FENCE or version >= TV2
    producer = (
        f"and fence its producer ({who})" if is_fenced else f"but not fence its producer ({who})"
    )
    match action:
        case Action.FENCE if view.state != ONGOING:
            return (
                f"This will fence the producer of {view.transactional_id!r} ({who}), which has no "
                "open transaction."
            )
        case Action.FENCE | Action.ABORT:
            return f"This will abort {its}, {producer}."
        case Action.COMMIT:
            return (
                f"This will commit {its} as far as it was written, be it complete or not, "
                f"{producer}."
            )


def _leaves(action: Action, version: int) -> str:
    records = (
        "its records are visible to every reader"
        if action is Action.COMMIT
        else "its records stay in the log, and readers of committed records skip them"
    )
    if action is Action.FENCE or version >= TV2:
        return (
            f"{records}; its producer is fenced: its next request fails, and it must be restarted."
        )
    return (
        f"{records}; its producer keeps its epoch (the cluster has transaction.version {version}), "
        "so it can begin another transaction, and its own EndTxn may fail. Lock it out with "
        "`fencepost txn fence`."
    )


def _named(partitions: tuple[TopicPartition, ...]) -> str:
    if not partitions:
        return "no partition"
    names = ", ".join(map(str, partitions[:_NAMED_PARTITIONS]))
    more = len(partitions) - _NAMED_PARTITIONS
    return f"{names} and {more} more" if more > 0 else names


# By partition.


def plan_marker(
    cluster: Cluster,
    partition: TopicPartition,
    producer_id: int | None,
    start_offset: int | None,
    *,
    force: bool = False,
) -> MarkerPlan | NothingOpen:
    """Looks for the open transaction and says how it would be aborted on this partition.

    Refuses while a coordinator has it, and unless `force` also if that cannot be excluded.
    """
    producers = cluster.describe_producers([partition])[partition]
    found = [
        each
        for each in producers
        if each.current_txn_start_offset >= 0
        and producer_id in (None, each.producer_id)
        and start_offset in (None, each.current_txn_start_offset)
    ]
    if not found:
        return NothingOpen(f"Nothing is open: {_wanted(producer_id, start_offset)} on {partition}.")
    (producer,) = found
    transactions, missing = look_at_transactions(cluster, {producer.producer_id})
    transaction = transactions.get(producer.producer_id)
    visibility = look_at_visibility(cluster, missing) if transaction is None else None
    holder = judge_holder(partition, producer, transaction, visibility)
    _refuse_marker(holder, force=force)
    return MarkerPlan(holder, force, _promise_marker(holder))


def write_marker(cluster: Cluster, plan: MarkerPlan) -> Ended:
    """Looks again, and writes the marker if the same transaction is still open there."""
    before = plan.holder
    now = plan_marker(
        cluster,
        before.partition,
        before.producer.producer_id,
        before.start_offset,
        force=plan.forced,
    )
    if isinstance(now, NothingOpen) or (
        now.holder.producer.producer_epoch != before.producer.producer_epoch
    ):
        raise FencepostError(
            f"The transaction on {before.partition} has changed since: it has ended, or its "
            "producer has another epoch. Nothing was changed; run the command again."
        )
    producer = now.holder.producer
    cluster.run(
        write_abort_marker(
            cluster.core,
            before.partition,
            producer.producer_id,
            producer.producer_epoch,
            producer.coordinator_epoch,
        )
    )
    return Ended(
        "abort",
        before.transaction.transactional_id if before.transaction else None,
        producer.producer_id,
        producer.producer_epoch,
        (before.partition,),
        _MARKER_LEAVES,
    )


_MARKER_LEAVES: Final = (
    "its records on this partition stay in the log, and readers of committed records skip them; no "
    "coordinator and no other partition has changed."
)


def _wanted(producer_id: int | None, start_offset: int | None) -> str:
    who = "no producer" if producer_id is None else f"producer {producer_id}"
    where = "" if start_offset is None else f" from offset {start_offset}"
    verb = "has an open transaction" if producer_id is None else "has no open transaction"
    return f"{who} {verb}{where}"


def _refuse_marker(holder: Holder, *, force: bool) -> None:
    view = holder.view
    if holder.standing is Standing.LIVE and view is not None:
        raise FencepostError(
            f"{view.transactional_id!r} has {holder.partition} in a live transaction. A marker on "
            "this partition alone would tear it in half, and its producer could still commit the "
            "rest. Nothing was changed; end it as a whole with "
            f"`{fence_command(view.transactional_id)}`."
        )
    if holder.standing is Standing.ENDING and view is not None:
        raise FencepostError(
            f"{view.transactional_id!r} is {view.state}: its coordinator is writing the marker for "
            f"{holder.partition}. Nothing was changed; see "
            f"`{describe_command(view.transactional_id)}`."
        )
    if holder.standing is Standing.UNSEEN and not force:
        raise FencepostError(
            f"It cannot be told whether a live transaction has {holder.partition}: {holder.why}. "
            "Nothing was changed; run it as a user who may see all transactional ids; only if "
            "you know that it hangs, add --force."
        )


def _promise_marker(holder: Holder) -> str:
    producer = holder.producer
    return (
        f"This will abort the transaction of producer {producer.producer_id}, epoch "
        f"{producer.producer_epoch}, from offset {holder.start_offset} of {holder.partition}, on "
        f"this partition alone: {holder.why}."
    )
