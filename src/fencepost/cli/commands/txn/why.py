"""`fencepost txn why`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from fencepost.cli.connection import AsJson, Connection, connected
from fencepost.cli.limits import DEFAULT_MAX_READ, MaxRead, parse_size
from fencepost.cli.naming import unknown_id
from fencepost.cli.output import Column, output
from fencepost.cli.partitions import parse_partition, refuse_topic
from fencepost.cli.units import moment_for_people

COLUMNS = {
    "decided_at": Column(23, "time (UTC)"),
    "state": Column(13),
    "producer": Column(10),
    "where": Column(20, "offset"),
}


@connected
def why_command(
    connection: Connection,
    transactional_id: Annotated[str, typer.Argument(help="The transactional id.", metavar="ID")],
    producer_id: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="The producer that complained.")
    ] = None,
    epoch: Annotated[
        int | None, typer.Option(min=0, max=32767, metavar="N", help="Its epoch.")
    ] = None,
    partition: Annotated[
        list[str],
        typer.Option(
            "--partition",
            "-p",
            metavar="TOPIC-P",
            help="A partition that it wrote to; needed if you may not read __transaction_state.",
        ),
    ] = [],  # noqa: B006 - typer copies it
    max_read: MaxRead = DEFAULT_MAX_READ,
    as_json: AsJson = False,
) -> None:
    """Why was this producer fenced, or its transaction aborted?

    Without a producer, explains the last one that lost the id.

    Example: fencepost txn why refunds-0 --producer-id 4711 --epoch 3
    """
    from fencepost.cli.progress import ProgressLine
    from fencepost.forensics.history.explaining import explain
    from fencepost.forensics.history.facts import changes_around, look_at_id, look_at_partitions
    from fencepost.forensics.logs.partition_reading import Budget
    from fencepost.forensics.logs.record_rows import printable

    if (producer_id is None) != (epoch is None):
        raise typer.BadParameter("--producer-id and --epoch belong together")
    identity = None if producer_id is None or epoch is None else (producer_id, epoch)
    named = [parse_partition(each) for each in partition]
    budget, progress = Budget(parse_size(max_read)), ProgressLine()
    with connection.open(long_running=True) as cluster:
        for each in partition:
            refuse_topic(cluster, each)
        facts = look_at_id(cluster, transactional_id, budget, progress)
        known = facts.history.changes if facts.history is not None else ()
        changes = changes_around(known, identity)
        look_at_partitions(
            *(cluster, facts, changes, budget, progress),
            named=named,
            producer_id=producer_id,
            thorough=True,
        )
        progress.clear()
        if facts.is_empty:
            raise unknown_id(cluster, facts)
    explained = explain(facts, identity)
    row = explained.row()
    shown = output(as_json)
    if as_json:
        shown.details(row)
        return
    shown.details(
        {
            "transactional_id": printable(row["transactional_id"].encode()),
            "producer": _producer(row["producer_id"], row["producer_epoch"]),
            "verdict": f"{row['certainty']}: {row['cause']}",
            "because": row["because"],
            "client_probably_said": row["client_probably_said"],
            "would_prove_more": row["would_prove_more"],
        }
    )
    shown.note("\nEvidence")
    shown.listing(map(_in_text, row["evidence"]), COLUMNS)
    for note in row["notes"]:
        shown.note(f"\n{note}")


def _in_text(evidence: dict[str, Any]) -> dict[str, str]:
    """A line of evidence that fits into 80 columns."""
    at_ms, offset = evidence["decided_at_ms"], evidence["offset"]
    place = f"{offset} of {evidence['source']}" if offset is not None else evidence["source"]
    return {
        "decided_at": "unknown" if at_ms is None else moment_for_people(at_ms)[:23],
        "state": evidence["state"],
        "producer": _producer(evidence["producer_id"], evidence["producer_epoch"]),
        "where": place,
    }


def _producer(producer_id: int | None, epoch: int | None) -> str:
    return "-" if producer_id is None else f"{producer_id}, epoch {epoch}"
