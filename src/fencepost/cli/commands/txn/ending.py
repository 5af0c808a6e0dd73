"""`fencepost txn fence`, `abort` and `commit`: ends transactions whose producer cannot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from fencepost.base.administrators import TXN_ABORT
from fencepost.base.failures import FencepostError
from fencepost.base.options import INT64_MAX
from fencepost.cli.confirmation import Yes, confirm
from fencepost.cli.connection import AsJson, Connection, connected
from fencepost.cli.naming import require_partition
from fencepost.cli.output import output
from fencepost.cli.partitions import parse_partition, refuse_topic

if TYPE_CHECKING:
    from collections.abc import Callable

    from fencepost.client.blocking import Cluster
    from fencepost.forensics.ending import Action, Ended, IdPlan, MarkerPlan, NothingOpen

Plan = TypeVar("Plan", "IdPlan", "MarkerPlan")

TransactionalId = Annotated[str, typer.Argument(metavar="ID", help="The transactional id.")]


@connected
def fence_command(
    connection: Connection,
    transactional_id: TransactionalId,
    idle: Annotated[
        bool,
        typer.Option("--idle", help="Lock out the producer even if it has no open transaction."),
    ] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Abort the transaction of an id on all its partitions and lock out its producer.

    Sends InitProducerId, as a new instance of the application would.

    Example: fencepost txn fence refunds-1
    """
    from fencepost.forensics.ending import Action

    _end(connection, Action.FENCE, transactional_id, yes, as_json, even_idle=idle)


@connected
def commit_command(
    connection: Connection,
    transactional_id: TransactionalId,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Commit the transaction of an id whose producer can no longer end it.

    Sends EndTxn with the producer id and epoch that the coordinator describes. What the producer
    has written so far becomes visible, be it complete or not.

    Example: fencepost txn commit refunds-1
    """
    from fencepost.forensics.ending import Action

    _end(connection, Action.COMMIT, transactional_id, yes, as_json)


@connected
def abort_command(
    connection: Connection,
    what: Annotated[
        str,
        typer.Argument(
            metavar="ID|TOPIC-P",
            help="A transactional id; or, with --producer-id or --start-offset, a partition.",
        ),
    ],
    producer_id: Annotated[
        int | None,
        typer.Option(
            metavar="ID",
            help="Abort this producer's hanging transaction on one partition.",
            min=0,
            max=INT64_MAX,
            show_default=False,
        ),
    ] = None,
    start_offset: Annotated[
        int | None,
        typer.Option(
            metavar="OFFSET",
            help="Abort the hanging transaction that begins there.",
            min=0,
            max=INT64_MAX,
            show_default=False,
        ),
    ] = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="On a partition: although not all transactional ids are visible to this user.",
        ),
    ] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Abort the transaction of an id, or a hanging transaction on one partition.

    By id, EndTxn aborts it on all its partitions. On a partition, WriteTxnMarkers aborts it there
    alone; that is refused while a coordinator has the transaction, because it would be torn in
    half.

    Example: fencepost txn abort orders-0 --producer-id 4001 --start-offset 1200
    """
    if producer_id is None and start_offset is None:
        from fencepost.forensics.ending import Action

        if force:
            raise FencepostError("--force is for a partition: name it with --producer-id.")
        _end(connection, Action.ABORT, what, yes, as_json)
        return
    _abort_on_partition(connection, what, producer_id, start_offset, force, yes, as_json)


def _end(
    connection: Connection,
    action: Action,
    transactional_id: str,
    yes: bool,
    as_json: bool,
    *,
    even_idle: bool = False,
) -> None:
    from fencepost.forensics.ending import carry_out, plan_ending

    with connection.open() as cluster:
        plan = plan_ending(cluster, action, transactional_id, even_idle=even_idle)
    _finish(connection.named(action.client_id), plan, carry_out, yes, as_json)


def _abort_on_partition(
    connection: Connection,
    place: str,
    producer_id: int | None,
    start_offset: int | None,
    force: bool,
    yes: bool,
    as_json: bool,
) -> None:
    from fencepost.forensics.ending import plan_marker, write_marker

    partition = parse_partition(place)
    with connection.open() as cluster:
        refuse_topic(cluster, place)
        require_partition(cluster, partition)
        plan = plan_marker(cluster, partition, producer_id, start_offset, force=force)
    _finish(connection.named(TXN_ABORT), plan, write_marker, yes, as_json)


def _finish(
    connection: Connection,
    plan: Plan | NothingOpen,
    carry_out: Callable[[Cluster, Plan], Ended],
    yes: bool,
    as_json: bool,
) -> None:
    """Asks, does what was planned, and prints what was done."""
    from fencepost.forensics.ending import NothingOpen

    shown = output(as_json)
    if isinstance(plan, NothingOpen):
        shown.note(f"{plan.sentence} Nothing was changed.")
        if as_json:
            shown.details({"changed": False, "found": plan.sentence})
        return
    # No connection stays open during the question: a person may take long to answer.
    confirm(yes, plan.sentence)
    with connection.open() as cluster:
        ended = carry_out(cluster, plan)
    shown.details(
        {
            "changed": True,
            "action": ended.action,
            "transactional_id": ended.transactional_id,
            "producer_id": ended.producer_id,
            "producer_epoch": ended.producer_epoch,
            "partitions": [str(each) for each in ended.partitions],
            "new_producer_id": ended.new_producer_id,
            "new_producer_epoch": ended.new_producer_epoch,
            "leaves": ended.leaves,
        }
    )
