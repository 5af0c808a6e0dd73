"""`fencepost txn find-hanging`: transactions that no coordinator will end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from fencepost.base.failures import FencepostError
from fencepost.cli.connection import AsJson, Connection, connected
from fencepost.cli.findings import Check, OneTopic, conclude
from fencepost.cli.limits import duration_option
from fencepost.cli.naming import require_topic
from fencepost.cli.output import COMMAND_INDENT, output
from fencepost.cli.units import for_people

if TYPE_CHECKING:
    from fencepost.forensics.hanging import Finding, Hanging

COLUMNS: Final = (
    "partition",
    "start_offset",
    "producer_id",
    "epoch",
    "last_write_ms",
    "verdict",
)
CAN_GO: Final = ("epoch", "last_write_ms", "producer_id", "start_offset")


@connected
def find_hanging_command(
    connection: Connection,
    topic: OneTopic = None,
    broker: Annotated[
        int | None,
        typer.Option(
            metavar="ID", help="Only partitions that this broker leads.", min=0, show_default=False
        ),
    ] = None,
    max_timeout: Annotated[
        int | None,
        duration_option("The longest timeout of a transaction; by default, brokers are asked."),
    ] = None,
    check: Check = False,
    as_json: AsJson = False,
) -> None:
    """Find transactions that are open on a partition, but that no coordinator has.

    No timeout ends them. One is called hanging if its last write is older than the longest timeout
    and 5 minutes more; `suspect` if it is younger; `cannot tell` if its id may be hidden from this
    user, or a broker did not answer. Internal topics are included.

    Example: fencepost txn find-hanging --check
    """
    from fencepost.forensics.hanging import find_hanging

    if topic is not None and broker is not None:
        raise FencepostError("Name a topic or --broker, not both.")
    with connection.look() as cluster:
        if topic is not None:
            require_topic(cluster, topic)
        found = find_hanging(cluster, topic, broker, max_timeout)
    shown = output(as_json)
    if as_json:
        shown.table([_row(each, connection.arguments) for each in found.found], [], "")
    else:
        rows = [_short_row(each) for each in found.found]
        shown.table(rows, COLUMNS, _nothing(found), CAN_GO)
        for each in found.found:
            shown.note(f"\n{each.holder.partition}: {each.why}.")
            if each.command is not None:
                shown.note(f"{COMMAND_INDENT}{_command(each, connection.arguments)}")
        if found.unreadable:
            shown.note(f"\n{found.unreadable} lagging partitions did not show their producers.")
    conclude(found.missing, found=bool(found.found), check=check)


def _nothing(found: Hanging) -> str:
    return f"No transaction hangs (limit: last write {for_people(found.limit_ms)} ago)."


def _short_row(finding: Finding) -> dict[str, Any]:
    holder = finding.holder
    return {
        "partition": str(holder.partition),
        "start_offset": holder.start_offset,
        "producer_id": holder.producer.producer_id,
        "epoch": holder.producer.producer_epoch,
        "last_write_ms": finding.last_write_age_ms,
        "verdict": finding.verdict.value,
    }


def _command(finding: Finding, arguments: tuple[str, ...]) -> str | None:
    return finding.command.text(arguments) if finding.command is not None else None


def _row(finding: Finding, arguments: tuple[str, ...]) -> dict[str, Any]:
    """All fields for JSON."""
    holder = finding.holder
    transaction, view = holder.transaction, holder.view
    return {
        "topic": holder.partition.topic,
        "partition": holder.partition.partition,
        "verdict": finding.verdict.value,
        "why": finding.why,
        "producer_id": holder.producer.producer_id,
        "producer_epoch": holder.producer.producer_epoch,
        "coordinator_epoch": holder.producer.coordinator_epoch,
        "start_offset": holder.start_offset,
        "last_written_at_ms": holder.producer.last_timestamp_ms,
        "last_write_age_ms": finding.last_write_age_ms,
        "transactional_id": transaction.transactional_id if transaction else None,
        "coordinator": transaction.coordinator if transaction else None,
        "state": view.state if view else None,
        "command": _command(finding, arguments),
    }
