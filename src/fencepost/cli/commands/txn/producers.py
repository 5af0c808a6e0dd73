"""`fencepost txn producers`: the producers of a topic's partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from fencepost.base.ids import TopicPartition
from fencepost.cli.connection import AsJson, Connection, connected
from fencepost.cli.findings import conclude
from fencepost.cli.naming import require_partition, require_topic
from fencepost.cli.output import output
from fencepost.cli.partitions import topic_or_partition

if TYPE_CHECKING:
    from fencepost.forensics.listing import Producer

COLUMNS: Final = (
    "partition",
    "producer",
    "epoch",
    "sequence",
    "last_write_ms",
    "open_from",
    "pins",
    "id",
)
CAN_GO: Final = ("sequence", "epoch", "last_write_ms", "open_from", "pins")


@connected
def producers_command(
    connection: Connection,
    place: Annotated[
        str, typer.Argument(metavar="TOPIC[-P]", help="A topic, or one of its partitions.")
    ],
    as_json: AsJson = False,
) -> None:
    """List the producers of partitions: sequence, open transaction, transactional id.

    Example: fencepost txn producers orders-0
    """
    from fencepost.forensics.listing import list_producers

    with connection.look() as cluster:
        topic, index = topic_or_partition(cluster, place)
        if index is None:
            require_topic(cluster, topic)
        else:
            require_partition(cluster, TopicPartition(topic, index))
        found = list_producers(cluster, topic, index)
    shown = output(as_json)
    to_row = _row if as_json else _short_row
    rows = [to_row(each, found.taken_at_ms) for each in found.found]
    shown.table(rows, COLUMNS, "No producer is known there.", CAN_GO)
    for unread, reason in sorted(found.unread.items()):
        shown.note(f"{unread} could not be read: {reason}.")
    conclude(found.missing)


def _row(producer: Producer, at_ms: int) -> dict[str, Any]:
    """All fields for JSON."""
    from fencepost.forensics.holders import last_write_age

    state, transaction = producer.state, producer.transaction
    return {
        "topic": producer.partition.topic,
        "partition": producer.partition.partition,
        "producer_id": state.producer_id,
        "producer_epoch": state.producer_epoch,
        "last_sequence": _known(state.last_sequence),
        "last_written_at_ms": _known(state.last_timestamp_ms),
        "last_write_age_ms": last_write_age(state, at_ms),
        "coordinator_epoch": _known(state.coordinator_epoch),
        "start_offset": _known(state.current_txn_start_offset),
        "pins": producer.pins,
        "transactional_id": transaction.transactional_id if transaction else None,
        "state": getattr(transaction.view, "state", None) if transaction else None,
        "coordinator": transaction.coordinator if transaction else None,
    }


def _short_row(producer: Producer, at_ms: int) -> dict[str, Any]:
    row = _row(producer, at_ms)
    return {
        **row,
        "partition": str(producer.partition),
        "producer": row["producer_id"],
        "epoch": row["producer_epoch"],
        "sequence": row["last_sequence"],
        "last_write_ms": row["last_write_age_ms"],
        "open_from": row["start_offset"],
        "id": row["transactional_id"],
    }


def _known(value: int) -> int | None:
    return value if value >= 0 else None
