"""`fencepost ledger`: what the Spark sink knows of its queries.

Speaks the wire only, so it works on Apache Kafka too.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fencepost.base.failures import FencepostError
from fencepost.cli.cluster import AsJson, ClientConfig, Servers, connect
from fencepost.cli.duration import for_people, moment_for_people
from fencepost.cli.output import output

if TYPE_CHECKING:
    from fencepost.spark.sink.ledger.admin import Holdings, LedgerRecord
    from fencepost.spark.sink.ledger.ledger import LedgerEntry

app = typer.Typer(
    help="The ledger of the Spark sink: which batch of which query is in the topics.",
    no_args_is_help=True,
)

HOME = "127.0.0.1:9092"
DEFAULT_TOPIC = "fencepost-ledger"

Topic = Annotated[
    str, typer.Option("--topic", metavar="TOPIC", help="The topic that holds the ledger.")
]
Id = Annotated[str, typer.Argument(help="The transactional id of a sink.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
Force = Annotated[
    bool, typer.Option("--force", help="Abort the transaction of the id that is open.")
]


@app.command("create")
def create_command(
    servers: Servers = HOME,
    topic: Topic = DEFAULT_TOPIC,
    partitions: Annotated[
        int, typer.Option(metavar="N", help="How many partitions.", min=1, max=1_000)
    ] = 16,
    replication_factor: Annotated[
        int,
        typer.Option(metavar="N", help="How many replicas; -1: as many as the cluster's default."),
    ] = -1,
    client_config: ClientConfig = [],  # noqa: B006 - typer copies it
    as_json: AsJson = False,
) -> None:
    """Create the topic that holds the ledger."""
    from fencepost.spark.sink.ledger.topic import SEGMENT_BYTES, check_settings, create_topic

    with connect(servers, client_config) as cluster:
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


@app.command("list")
def list_command(
    servers: Servers = HOME,
    topic: Topic = DEFAULT_TOPIC,
    client_config: ClientConfig = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """List transactional ids with their query, last batch and when it was written."""
    from fencepost.spark.sink.ledger.admin import list_records

    with connect(servers, client_config) as cluster:
        rows = [_summary(record) for record in list_records(cluster, topic)]
    shown = rows if as_json else [_readable(row) for row in rows]
    columns = list(shown[0]) if shown else []
    output(as_json).table(shown, columns, f"Topic {topic} holds no record.")


@app.command("show")
def show_command(
    transactional_id: Id,
    servers: Servers = HOME,
    topic: Topic = DEFAULT_TOPIC,
    client_config: ClientConfig = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Show all that is known of one id, and how a new query would continue it."""
    holdings = _look_up(servers, client_config, transactional_id, topic)
    _require_something(holdings, transactional_id, topic)
    _show(transactional_id, holdings, as_json=as_json)


@app.command("adopt")
def adopt_command(
    transactional_id: Id,
    query_id: Annotated[
        str,
        typer.Option(metavar="ID", help="The query that may write (its refusal names its id)."),
    ],
    last_batch: Annotated[
        int,
        typer.Option(metavar="N", help="The last batch of it in the topics; -1: none.", min=-1),
    ],
    servers: Servers = HOME,
    topic: Topic = DEFAULT_TOPIC,
    yes: Yes = False,
    force: Force = False,
    client_config: ClientConfig = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Let a query in: say which batch of it is the last one in the topics."""
    from fencepost.spark.sink.ledger.admin import adopt

    before = _look_up(servers, client_config, transactional_id, topic)
    _confirm(
        yes,
        f"{_now_says(before)} From now on {transactional_id!r} belongs to query {query_id}, "
        "which goes on with batch "
        f"{last_batch + 1}. Whoever writes with the id now is fenced.",
    )
    with connect(servers, client_config) as cluster:
        adopt(cluster, transactional_id, query_id, last_batch, topic, force=force)
    after = _look_up(servers, client_config, transactional_id, topic)
    _show(transactional_id, after, as_json=as_json)


@app.command("forget")
def forget_command(
    transactional_id: Id,
    servers: Servers = HOME,
    topic: Topic = DEFAULT_TOPIC,
    durations: Annotated[
        bool,
        typer.Option("--durations", help="Only how long its transactions were open."),
    ] = False,
    yes: Yes = False,
    force: Force = False,
    client_config: ClientConfig = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Delete the record of an id, or the durations in it."""
    from fencepost.spark.sink.ledger.admin import forget, forget_durations

    before = _look_up(servers, client_config, transactional_id, topic)
    _require_something(before, transactional_id, topic)
    what = "how long its transactions were open" if durations else "everything"
    _confirm(
        yes,
        f"{_now_says(before)} The ledger forgets {what} of {transactional_id!r}. Whoever writes "
        "with the id now is fenced.",
    )
    with connect(servers, client_config) as cluster:
        if durations:
            forget_durations(cluster, transactional_id, topic, force=force)
        else:
            forget(cluster, transactional_id, topic, force=force)
    output(as_json).details({"transactional_id": transactional_id, "forgotten": what})


def _look_up(servers: str, client_config: list[str], transactional_id: str, topic: str) -> Holdings:
    from fencepost.spark.sink.ledger.admin import look_up

    with connect(servers, client_config) as cluster:
        return look_up(cluster, transactional_id, topic)


def _show(transactional_id: str, holdings: Holdings, *, as_json: bool) -> None:
    row = _description(transactional_id, holdings)
    output(as_json).details(row if as_json else _readable(row))


def _require_something(holdings: Holdings, transactional_id: str, topic: str) -> None:
    if not holdings.records and holdings.former is None:
        raise FencepostError(
            f"Topic {topic!r} has no record of {transactional_id!r}: `fencepost ledger list` "
            "shows those that it has."
        )


def _confirm(yes: bool, sentence: str) -> None:
    if yes:
        return
    typer.echo(sentence, err=True)
    if not typer.confirm("Go on?", err=True):
        raise FencepostError("Nothing was changed.")


def _now_says(holdings: Holdings) -> str:
    entry = holdings.entry
    if entry is not None:
        return (
            f"The ledger says: batch {entry.batch_id} of query {entry.query_id} is in the topics."
        )
    if holdings.records:
        return "The ledger has a record that this version cannot read."
    return "The ledger has no record of the id."


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


def _description(transactional_id: str, holdings: Holdings) -> dict[str, Any]:
    """Everything, for programs."""
    row: dict[str, Any] = {"transactional_id": transactional_id, "state": holdings.state}
    record = holdings.newest
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
    if holdings.entry is not None:
        row |= _entry_fields(holdings.entry)
    if holdings.former is not None:
        row["old_places"] = [str(place) for place in holdings.former.places]
        row["old_entry"] = "moved" if holdings.former.entry is None else "in use"
    return row


def _entry_fields(entry: LedgerEntry) -> dict[str, Any]:
    from fencepost.spark.sink.ledger.ledger import starting_offsets

    row: dict[str, Any] = {
        "query_id": entry.query_id,
        "last_batch": entry.batch_id,
        "fingerprint": entry.fingerprint or None,
        "longest_open_ms": entry.longest_ms,
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


def _readable(row: dict[str, Any]) -> dict[str, Any]:
    """The same for people."""
    shown: dict[str, Any] = {}
    for name, value in row.items():
        if name == "written_ms":
            shown["written"] = None if value is None else moment_for_people(value)
        elif name == "longest_open_ms":
            shown["longest open"] = for_people(value)
        elif isinstance(value, bool):
            shown[name] = "yes" if value else "no"
        elif isinstance(value, dict):
            shown[name] = json.dumps(value)
        else:
            shown[name] = value
    return shown
