"""`fencepost txn list` and `fencepost txn describe`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from fencepost.base.failures import FencepostError
from fencepost.base.options import INT64_MAX
from fencepost.cli.connection import AsJson, Connection, connected
from fencepost.cli.findings import conclude
from fencepost.cli.limits import duration_option
from fencepost.cli.naming import unknown_id
from fencepost.cli.output import output
from fencepost.cli.units import connection_in_words

if TYPE_CHECKING:
    from fencepost.client.admin import ListedTransaction, TransactionView
    from fencepost.forensics.listing import Description

COLUMNS: Final = (
    "id",
    "state",
    "age_ms",
    "producer",
    "epoch",
    "partitions",
    "coordinator",
    "connection",
    "client_id",
    "client_host",
)
CAN_GO: Final = (
    "coordinator",
    "client_host",
    "client_id",
    "epoch",
    "partitions",
    "producer",
    "connection",
    "age_ms",
)


@connected
def list_command(
    connection: Connection,
    state: Annotated[
        list[str],
        typer.Option(metavar="STATE", help="Only this state, by Kafka's name (Ongoing ...)."),
    ] = [],  # noqa: B006 - typer copies it
    producer_id: Annotated[
        list[int],
        typer.Option(metavar="ID", help="Only this producer id.", min=0, max=INT64_MAX),
    ] = [],  # noqa: B006
    older_than: Annotated[
        int | None,
        duration_option("Only transactions that have been open for longer, such as 10s or 5m."),
    ] = None,
    older_than_ms: Annotated[int, typer.Option(min=-1, max=INT64_MAX, hidden=True)] = -1,
    pattern: Annotated[
        str | None,
        typer.Option(metavar="REGEX", help="Only ids that match this whole regular expression."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List transactional ids with their state, age and producer.

    Example: fencepost txn list --state Ongoing --older-than 5m
    """
    from fencepost.forensics.listing import list_ids

    with connection.look() as cluster:
        listed = list_ids(
            cluster,
            states=[kafkas_name(each) for each in state],
            producer_ids=producer_id,
            longer_than_ms=older_than_ms if older_than is None else older_than,
            pattern=pattern,
        )
    rows = [_listed_row(*each, listed.taken_at_ms) for each in listed.transactions]
    if not as_json:
        rows = [
            {
                **row,
                "id": row["transactional_id"],
                "producer": row["producer_id"],
                "epoch": row["producer_epoch"],
                "connection": connection_in_words(view, listed.taken_at_ms),
            }
            for row, (_, view) in zip(rows, listed.transactions, strict=True)
        ]
    output(as_json).table(rows, COLUMNS, "No transactional id matches.", CAN_GO)
    conclude(listed.missing)


def _listed_row(
    each: ListedTransaction, view: TransactionView | None, at_ms: int
) -> dict[str, Any]:
    from fencepost.forensics.client_connection import connection_fields
    from fencepost.forensics.listing import age_of

    return {
        "transactional_id": each.transactional_id,
        "state": each.state,
        "age_ms": age_of(view, at_ms),
        "producer_id": each.producer_id,
        "producer_epoch": view.producer_epoch if view else None,
        "timeout_ms": view.timeout_ms if view else None,
        "partitions": len(view.partitions) if view else None,
        "coordinator": each.coordinator,
        **connection_fields(view),
    }


def kafkas_name(state: str) -> str:
    """Returns a state by Kafka's spelling; FencepostError if there is none.

    A broker returns an empty list for an unknown state.
    """
    from fencepost.records.transaction_log import STATE_NAMES

    for name in STATE_NAMES:
        if name.lower() == state.lower():
            return name
    raise FencepostError(f"There is no state {state!r}: use one of {', '.join(STATE_NAMES)}.")


@connected
def describe_command(
    connection: Connection,
    transactional_id: Annotated[str, typer.Argument(metavar="ID", help="The transactional id.")],
    as_json: AsJson = False,
) -> None:
    """Describe one id, from its coordinator and from __transaction_state.

    Example: fencepost txn describe refunds-1
    """
    from fencepost.forensics.history.facts import look_at_id
    from fencepost.forensics.listing import describe_id
    from fencepost.forensics.logs.partition_reading import Budget

    if not transactional_id:
        raise FencepostError("A transactional id must not be empty.")
    with connection.look() as cluster:
        found = describe_id(cluster, transactional_id)
        if found.view is None and found.logged is None:
            raise unknown_id(cluster, look_at_id(cluster, transactional_id, Budget()))
    row = _description(transactional_id, found)
    if not as_json and found.view is not None:
        row["client_connection"] = connection_in_words(found.view)
        del row["client_gone_at_ms"]
    output(as_json).details(row)


def _description(transactional_id: str, found: Description) -> dict[str, Any]:
    """Returns all fields for JSON: names end with their unit, times are milliseconds since 1970."""
    row: dict[str, Any] = {
        "transactional_id": transactional_id,
        "coordinator": found.coordinator,
    }
    if found.view is not None:
        row |= _view_fields(found.view, found)
    row["log_partition"] = str(found.log_partition) if found.log_partition else None
    row["log_offset"] = found.log_offset
    if found.log_problem is not None:
        row["log_problem"] = found.log_problem
    if found.logged is not None:
        row |= {
            "last_producer_id": _known(found.logged.previous_producer_id),
            "next_producer_id": _known(found.logged.next_producer_id),
            "last_producer_epoch": _known(found.logged.last_producer_epoch),
            "last_update_ms": found.logged.last_update_ms,
            "client_transaction_version": found.logged.client_transaction_version,
        }
    return row


def _view_fields(view: TransactionView, found: Description) -> dict[str, Any]:
    from fencepost.forensics.client_connection import connection_fields
    from fencepost.forensics.listing import age_of

    row: dict[str, Any] = {
        "state": view.state,
        "producer_id": view.producer_id,
        "producer_epoch": view.producer_epoch,
        "timeout_ms": view.timeout_ms,
        "start_ms": view.start_ms if view.start_ms >= 0 else None,
        "age_ms": age_of(view, found.taken_at_ms),
        "partitions": [str(partition) for partition in view.partitions],
        **connection_fields(view),
        "administrator": view.administrator,
    }
    if (times_out := found.times_out_in()) is not None:
        row["times_out_in_ms"], row["times_out_in_at_most_ms"] = times_out
    return row


def _known(value: int) -> int | None:
    return value if value >= 0 else None
