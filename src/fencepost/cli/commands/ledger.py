"""`fencepost ledger`: the last committed batch of each query of the Spark sink.

Uses only Kafka's protocol, so it works on Apache Kafka too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from fencepost.base.administrators import LEDGER
from fencepost.base.failures import FencepostError
from fencepost.cli.confirmation import Yes, confirm
from fencepost.cli.connection import AsJson, Connection, connected
from fencepost.cli.layout import App
from fencepost.cli.output import output

if TYPE_CHECKING:
    from fencepost.spark.ledger.admin import IdDescription, LedgerRecord
    from fencepost.spark.ledger.entry import LedgerEntry

app = App(
    help="The ledger of the Spark sink: the last committed batch of each query.",
    no_args_is_help=True,
)

DEFAULT_TOPIC = "fencepost-ledger"

Topic = Annotated[
    str, typer.Option("--topic", metavar="TOPIC", help="The topic that holds the ledger.")
]
Id = Annotated[str, typer.Argument(metavar="ID", help="The transactional id of a sink.")]
Force = Annotated[bool, typer.Option("--force", help="Abort an open transaction of the id.")]


@app.command("create")
@connected
def create_command(
    connection: Connection,
    topic: Topic = DEFAULT_TOPIC,
    partitions: Annotated[
        int,
        typer.Option(
            "--partitions", "-p", metavar="N", help="How many partitions.", min=1, max=1_000
        ),
    ] = 16,
    replication_factor: Annotated[
        int,
        typer.Option(metavar="N", help="How many replicas; -1: the cluster's default."),
    ] = -1,
    as_json: AsJson = False,
) -> None:
    """Create the topic that holds the ledger.

    Example: fencepost ledger create --partitions 16
    """
    from fencepost.spark.ledger.topic import SEGMENT_BYTES, check_settings, create_topic

    with connection.open() as cluster:
        existed = cluster.find_topic(topic) is not None
        if existed:
            check_settings(cluster, topic)
        else:
            create_topic(
                cluster,
                topic,
                partitions=partitions,
                replication_factor=replication_factor,
                exist_ok=True,
            )
        count = len(cluster.metadata([topic]).topics[topic].partitions)
    row = {
        "topic": topic,
        "created": not existed,
        "partitions": count,
        "cleanup_policy": "compact",
    }
    if not existed:
        row["segment_bytes"] = SEGMENT_BYTES
    output(as_json).details(row)


@app.command("list", short_help="List ids with their query and last batch.")
@connected
def list_command(
    connection: Connection,
    topic: Topic = DEFAULT_TOPIC,
    as_json: AsJson = False,
) -> None:
    """List transactional ids with their query, their last batch and its time.

    Example: fencepost ledger list --json
    """
    from fencepost.spark.ledger.admin import list_records

    with connection.open() as cluster:
        rows = [_summary(record) for record in list_records(cluster, topic)]
    columns = list(rows[0]) if rows else []
    empty = f"Topic {topic} holds no record."
    output(as_json).table(rows, columns, empty, ["place", "is_settled", "written_ms", "query_id"])


@app.command("show", short_help="Show one id and how to continue it.")
@connected
def show_command(
    connection: Connection,
    transactional_id: Id,
    topic: Topic = DEFAULT_TOPIC,
    as_json: AsJson = False,
) -> None:
    """Show the record of one id, and the startingOffsets with which a new query continues.

    Example: fencepost ledger show refunds
    """
    described = _describe_id(connection, transactional_id, topic)
    _require_record(described, transactional_id, topic)
    _show(transactional_id, described, as_json=as_json)


@app.command("adopt", short_help="Set the query and last batch of an id.")
@connected
def adopt_command(
    connection: Connection,
    transactional_id: Id,
    query_id: Annotated[
        str,
        typer.Option(metavar="ID", help="The query that may write; the refusal names its id."),
    ],
    last_batch: Annotated[
        int,
        typer.Option(metavar="N", help="Its last committed batch; -1: none.", min=-1),
    ],
    topic: Topic = DEFAULT_TOPIC,
    yes: Yes = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Let a query use the id: record which of its batches is the last committed one.

    Example: fencepost ledger adopt refunds --query-id 4f1c... --last-batch 41
    """
    from fencepost.spark.ledger.admin import adopt

    before = _describe_id(connection, transactional_id, topic)
    confirm(
        yes,
        f"This will let query {query_id} continue {transactional_id!r} with batch "
        f"{last_batch + 1}, and fence any producer that uses the id; {_current(before)}.",
    )
    with connection.named(LEDGER).open() as cluster:
        adopt(cluster, transactional_id, query_id, last_batch, topic, force=force)
    after = _describe_id(connection, transactional_id, topic)
    _show(transactional_id, after, as_json=as_json)


@app.command("forget")
@connected
def forget_command(
    connection: Connection,
    transactional_id: Id,
    topic: Topic = DEFAULT_TOPIC,
    yes: Yes = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Delete the record of an id.

    Example: fencepost ledger forget refunds
    """
    from fencepost.spark.ledger.admin import forget

    before = _describe_id(connection, transactional_id, topic)
    _require_record(before, transactional_id, topic)
    confirm(
        yes,
        f"This will delete the record of {transactional_id!r} from the ledger, and fence any "
        f"producer that uses the id; {_current(before)}.",
    )
    with connection.named(LEDGER).open() as cluster:
        forget(cluster, transactional_id, topic, force=force)
    output(as_json).details({"transactional_id": transactional_id, "forgotten": "the record"})


def _describe_id(connection: Connection, transactional_id: str, topic: str) -> IdDescription:
    from fencepost.spark.ledger.admin import describe_id

    with connection.open() as cluster:
        return describe_id(cluster, transactional_id, topic)


def _show(transactional_id: str, described: IdDescription, *, as_json: bool) -> None:
    row = _description(transactional_id, described)
    output(as_json).details(row)


def _require_record(described: IdDescription, transactional_id: str, topic: str) -> None:
    if not described.records:
        raise FencepostError(
            f"Topic {topic!r} has no record of {transactional_id!r}: `fencepost ledger list` lists "
            "its records."
        )


def _current(described: IdDescription) -> str:
    entry = described.entry
    if entry is not None:
        return f"its last committed batch is {entry.batch_id} of query {entry.query_id}"
    if described.records:
        return "it has a record that this version cannot read"
    return "it has no record so far"


def _summary(record: LedgerRecord) -> dict[str, Any]:
    entry = record.entry
    return {
        "transactional_id": record.transactional_id,
        "query_id": entry.query_id if entry else None,
        "last_batch": entry.batch_id if entry else None,
        "written_ms": record.found.timestamp_ms,
        "is_settled": record.is_settled,
        "place": str(record.found.place),
        "problem": record.problem or None,
    }


def _description(transactional_id: str, described: IdDescription) -> dict[str, Any]:
    """All fields, for JSON."""
    row: dict[str, Any] = {"transactional_id": transactional_id, "state": described.state}
    record = described.newest
    if record is not None:
        row |= {
            "place": str(record.found.place),
            "offset": record.found.offset,
            "written_ms": record.found.timestamp_ms,
            "is_settled": record.is_settled,
        }
        if record.entry is None and record.found.value is not None:
            row |= {
                "problem": record.problem,
                "value": record.found.value.decode("utf-8", "replace"),
            }
    if described.entry is not None:
        row |= _entry_fields(described.entry)
    return row


def _entry_fields(entry: LedgerEntry) -> dict[str, Any]:
    from fencepost.spark.ledger.entry import starting_offsets

    row: dict[str, Any] = {
        "query_id": entry.query_id,
        "last_batch": entry.batch_id,
        "fingerprint": entry.fingerprint or None,
        "is_stateful": entry.is_stateful,
        "run_id": entry.run_id or None,
        "parts": entry.parts,
        "is_short": entry.is_short,
        "lost_batch": entry.lost,
        "starting_offsets": starting_offsets(entry) if entry.sources else None,
        "topic_ids": dict(entry.topic_ids) or None,
        "sources_committed": entry.sources_committed,
        "take_over": entry.query_id,
    }
    return row
