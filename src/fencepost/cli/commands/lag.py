"""`fencepost lag`: what a group has still to read, and what is hidden from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from fencepost.cli.connection import AsJson, Connection, connected
from fencepost.cli.naming import unknown_group
from fencepost.cli.output import output

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fencepost.forensics.lag import GroupLag

COLUMNS: Final = ("partition", "committed", "end", "behind", "hidden", "uncommitted", "owner")
CAN_GO: Final = ("owner", "uncommitted", "committed", "end", "hidden")


@connected
def lag_command(
    connection: Connection,
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The name of a group.")],
    max_read: Annotated[
        int,
        typer.Option(
            metavar="BYTES",
            help="How much to read of each partition for an exact count; 0 reads nothing.",
            min=0,
        ),
    ] = 16 << 20,
    as_json: AsJson = False,
) -> None:
    """Show a group's lag in records, without markers and aborted records.

    `behind` is what a read_committed consumer can read now; `hidden` is beyond the last stable
    offset, in open transactions or behind them; `uncommitted` is the lag of a read_uncommitted
    consumer. Partitions without a committed offset count from their log start. Counts are exact
    if they need at most --max-read bytes, and estimates (~) otherwise.

    Example: fencepost lag refunds-service
    """
    from fencepost.client.routes import CoordinatorKey, CoordinatorKind
    from fencepost.forensics.lag import look_at_lag

    with connection.open() as cluster:
        found = look_at_lag(cluster, group, max_read)
        if found.view is None and not found.partitions:
            raise unknown_group(cluster, group)
        coordinator = cluster.find_coordinator(CoordinatorKey(CoordinatorKind.GROUP, group))
    head = _head(group, found, coordinator)
    shown = output(as_json)
    if as_json:
        rows = [each.row() for each in found.partitions]
        shown.details(head | {"total": found.total(), "partitions": rows})
        return
    shown.details(head)
    rows = [_narrow(each.row()) for each in found.partitions]
    if rows:
        rows.append(_narrow(found.total()) | {"partition": "total"})
    empty = "The group has committed no offsets and owns no partitions."
    shown.table(rows, COLUMNS, empty, CAN_GO)
    for sentence in _notes(found):
        shown.note(sentence)


def _head(group: str, found: GroupLag, coordinator: int) -> dict[str, Any]:
    view = found.view
    return {
        "group": group,
        "kind": view and view.kind,
        "state": view and view.state,
        "members": len(view.members) if view else 0,
        "coordinator": coordinator,
    }


def _narrow(row: dict[str, Any]) -> dict[str, Any]:
    """Returns a row for people: short names, so that it fits a terminal; JSON has all fields."""
    owner = row.get("client_id")
    return {
        "partition": f"{row.get('topic')}:{row.get('partition')}",
        "committed": row.get("committed_offset"),
        "end": row.get("high_watermark"),
        "behind": row["behind_records"],
        "hidden": row["hidden_records"],
        "uncommitted": row["read_uncommitted_records"],
        "owner": owner and f"{owner}@{str(row.get('host')).lstrip('/')}",
    }


def _notes(found: GroupLag) -> Iterator[str]:
    from fencepost.forensics.figures import Certainty

    total = found.total()
    if total["read_uncommitted_records"].certainty is Certainty.ESTIMATED:
        yield "~ marks an estimate; a larger --max-read makes it exact."
    if total["hidden_records"].value:
        yield "Open transactions hide records; `fencepost pins` shows who holds them open."
    if any(each.committed is None for each in found.partitions):
        yield "Partitions without a committed offset count from their log start."
