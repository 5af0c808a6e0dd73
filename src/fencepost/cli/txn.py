"""`fencepost txn`: lists and describes transactions.

It uses the Kafka protocol only, so it works with Apache Kafka too.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fencepost.base.failures import FencepostError
from fencepost.base.ids import TRANSACTION_STATE_TOPIC, TopicPartition, coordinator_partition
from fencepost.cli.connection import AsJson, ClientConfig, Servers, connect
from fencepost.cli.duration import for_people, moment_for_people
from fencepost.cli.output import output

if TYPE_CHECKING:
    from fencepost.client.admin import TransactionView
    from fencepost.client.blocking import Cluster
    from fencepost.records.transaction_log import TransactionMetadata

app = typer.Typer(
    help="List and describe transactions, on fencepost or Apache Kafka.", no_args_is_help=True
)

LARGEST = 2**63 - 1
IDLE_STATES = frozenset({"Empty", "CompleteCommit", "CompleteAbort"})


@app.command("list")
def list_command(
    servers: Servers = "127.0.0.1:9092",
    state: Annotated[
        list[str],
        typer.Option(metavar="STATE", help="Only this state, by Kafka's name (Ongoing ...)."),
    ] = [],  # noqa: B006 - typer copies it
    producer_id: Annotated[
        list[int],
        typer.Option(metavar="ID", help="Only this producer id.", min=0, max=LARGEST),
    ] = [],  # noqa: B006
    older_than_ms: Annotated[
        int,
        typer.Option(
            metavar="MS",
            help="Only transactions that have been open for longer.",
            min=-1,
            max=LARGEST,
            show_default=False,
        ),
    ] = -1,
    pattern: Annotated[
        str | None,
        typer.Option(metavar="REGEX", help="Only ids that match this whole regular expression."),
    ] = None,
    client_config: ClientConfig = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """List transactional ids with their state, age and producer."""
    states = [kafkas_name(each) for each in state]
    with connect(servers, client_config) as cluster:
        listed = cluster.list_transactions(
            states=states, producer_ids=producer_id, longer_than_ms=older_than_ms, pattern=pattern
        )
        views = cluster.describe_transactions([each.transactional_id for each in listed])
    now_ms = time.time_ns() // 1_000_000
    rows = []
    for each in sorted(listed, key=lambda one: one.transactional_id):
        view = views.get(each.transactional_id)
        age_ms = age_of(view, now_ms)
        if older_than_ms >= 0 and age_ms is None:
            # The broker counts from the last transaction, or from 1970 if there was none.
            continue
        rows.append(
            {
                "transactional_id": each.transactional_id,
                "state": each.state,
                "age_ms": age_ms,
                "producer_id": each.producer_id,
                "producer_epoch": view.producer_epoch if view else None,
                "partitions": len(view.partitions) if view else None,
                "coordinator": each.coordinator,
            }
        )
    shown = rows if as_json else [readable(row) for row in rows]
    columns = list(shown[0]) if shown else []
    output(as_json).table(shown, columns, "No transactional id matches.")


@app.command("describe", short_help="Describe one transactional id.")
def describe_command(
    transactional_id: Annotated[str, typer.Argument(help="The transactional id.")],
    servers: Servers = "127.0.0.1:9092",
    client_config: ClientConfig = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Describe one id, from its coordinator and from __transaction_state."""
    with connect(servers, client_config) as cluster:
        view = cluster.describe_transactions([transactional_id]).get(transactional_id)
        logged, place, offset = find_record(cluster, transactional_id)
    if view is None and logged is None:
        raise FencepostError(
            f"No coordinator knows the transactional id {transactional_id!r}: it was never used "
            "here, or it has expired (transactional.id.expiration.ms)."
        )
    row = description(transactional_id, view, logged, place, offset)
    output(as_json).details(row if as_json else readable(row))


def kafkas_name(state: str) -> str:
    """Returns a state by Kafka's spelling; FencepostError if there is none.

    A broker returns an empty list for an unknown state.
    """
    from fencepost.records.transaction_log import STATE_NAMES

    for name in STATE_NAMES:
        if name.lower() == state.lower():
            return name
    raise FencepostError(f"There is no state {state!r}: use one of {', '.join(STATE_NAMES)}.")


def find_record(
    cluster: Cluster, transactional_id: str
) -> tuple[TransactionMetadata | None, TopicPartition | None, int]:
    """Returns an id's newest record in __transaction_state, its partition and offset."""
    from fencepost.records.transaction_log import decode_value, encode_key

    topic = cluster.metadata([TRANSACTION_STATE_TOPIC]).topics.get(TRANSACTION_STATE_TOPIC)
    count = len(topic.partitions) if topic is not None else 0
    if not count:
        return None, None, -1
    place = TopicPartition(TRANSACTION_STATE_TOPIC, coordinator_partition(transactional_id, count))
    key = encode_key(transactional_id)
    found, offset = None, -1
    for record in cluster.records(place, isolation="read_uncommitted"):
        if record.key == key:
            found = None if record.value is None else decode_value(record.value)
            offset = record.offset
    return found, place, offset


def age_of(view: TransactionView | None, now_ms: int) -> int | None:
    """Returns how long the id's transaction has been open; None if none is."""
    if view is None or view.state in IDLE_STATES or view.start_ms < 0:
        return None
    return max(0, now_ms - view.start_ms)


def description(
    transactional_id: str,
    view: TransactionView | None,
    logged: TransactionMetadata | None,
    place: TopicPartition | None,
    offset: int,
) -> dict[str, Any]:
    """Returns all fields for JSON: names end with their unit, times are milliseconds since 1970."""
    now_ms = time.time_ns() // 1_000_000
    age_ms = age_of(view, now_ms)
    row: dict[str, Any] = {"transactional_id": transactional_id}
    if view is not None:
        row |= {
            "state": view.state,
            "producer_id": view.producer_id,
            "producer_epoch": view.producer_epoch,
            "timeout_ms": view.timeout_ms,
            "start_ms": view.start_ms if view.start_ms >= 0 else None,
            "age_ms": age_ms,
            "partitions": [str(partition) for partition in view.partitions],
        }
        if age_ms is not None:
            row["times_out_in_ms"] = view.timeout_ms - age_ms
    row["log_partition"] = str(place) if place else None
    row["log_offset"] = offset if offset >= 0 else None
    if logged is not None:
        row |= {
            "last_producer_id": _known(logged.previous_producer_id),
            "next_producer_id": _known(logged.next_producer_id),
            "last_producer_epoch": _known(logged.last_producer_epoch),
            "last_update_ms": logged.last_update_ms,
            "client_transaction_version": logged.client_transaction_version,
        }
    return row


def readable(row: dict[str, Any]) -> dict[str, Any]:
    """Returns the same fields with formatted times."""
    shown: dict[str, Any] = {}
    for name, value in row.items():
        if value is None:
            shown[name.removesuffix("_ms")] = None
        elif name in ("start_ms", "last_update_ms"):
            shown[name.removesuffix("_ms")] = moment_for_people(value)
        elif name in ("age_ms", "times_out_in_ms", "timeout_ms"):
            shown[name.removesuffix("_ms")] = for_people(max(0, value))
        else:
            shown[name] = value
    return shown


def _known(value: int) -> int | None:
    return value if value >= 0 else None
