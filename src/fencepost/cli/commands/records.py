"""`fencepost records`: each record of a topic or partition with its transaction and fate."""

from __future__ import annotations

from itertools import chain, islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fencepost.base.failures import FencepostError
from fencepost.base.ids import TopicPartition
from fencepost.cli.connection import AsJson, Connection, connected
from fencepost.cli.limits import parse_size
from fencepost.cli.naming import require_topic
from fencepost.cli.output import Column, output
from fencepost.cli.partitions import topic_or_partition
from fencepost.cli.positions import Position, chosen_partitions, parse_position, resolve
from fencepost.cli.units import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fencepost.cli.progress import ProgressLine
    from fencepost.client.blocking import Cluster
    from fencepost.client.topics import PartitionOffsets
    from fencepost.forensics.logs.partition_reading import Budget, Range

COLUMNS = {
    "offset": Column(8),
    "at_ms": Column(27, "time", is_optional=True),
    "fate": Column(17),
    "transaction": Column(11),
    "producer_id": Column(8, "producer", is_optional=True),
    "producer_epoch": Column(5, "epoch", is_optional=True),
    "sequence": Column(8, is_optional=True),
    "value_bytes": Column(7, "value", is_optional=True),
    "what": Column(3, "key"),
}
EVERYTHING = 1 << 62


@connected
def records(
    connection: Connection,
    place: Annotated[
        str,
        typer.Argument(metavar="TOPIC[-P]", help="A topic, or a partition such as refunds-0."),
    ],
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="WHERE",
            help="An offset, earliest, -N for the last N offsets, or a time (2026-11-17T09:30).",
        ),
    ] = "earliest",
    end: Annotated[
        str, typer.Option("--to", metavar="WHERE", help="Where to stop, exclusive, likewise.")
    ] = "latest",
    most: Annotated[
        int | None, typer.Option("--max", metavar="N", min=1, help="Stop after N records.")
    ] = None,
    values: Annotated[bool, typer.Option("--values", help="Show values, too.")] = False,
    max_read: Annotated[
        str | None,
        typer.Option("--max-read", metavar="SIZE", help="Read at most this much, such as 2GB."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show each record of a topic or partition with its producer, transaction and fate.

    A transaction is named by its first offset; <= says that it may have begun earlier. Internal
    topics are decoded. With --json a line per record.

    Example: fencepost records refunds-0 --from -20
    """
    from fencepost.cli.progress import ProgressLine
    from fencepost.forensics.logs.partition_reading import Budget

    from_position, to_position = parse_position(start), parse_position(end)
    budget = Budget(EVERYTHING if max_read is None else parse_size(max_read))
    progress = ProgressLine()
    shown = output(as_json)
    with connection.open(long_running=True) as cluster:
        ranges, rows = _rows_of_all(
            _partitions(cluster, place),
            lambda name: _rows(cluster, name, from_position, to_position, values, budget, progress),
        )
        columns = COLUMNS if len(ranges) == 1 else {"partition": Column(9), **COLUMNS}
        try:
            chosen = islice(rows, most)
            shown.listing(chosen if as_json else map(in_text, chosen), columns)
        finally:
            progress.clear()
        stopped = next((each for each in ranges if not each.is_whole), None)
        if stopped is not None and budget.is_spent:
            raise FencepostError(
                f"Stopped at offset {stopped.reached} of {stopped.end} of {stopped.partition} "
                f"(--max-read). Go on with `fencepost records {stopped.partition} --from "
                f"{stopped.reached}`{_rest(ranges, stopped)}."
            )


def _rest(ranges: Sequence[Range], stopped: Range) -> str:
    left = len(ranges) - ranges.index(stopped) - 1
    return f", and read the {counted(left, 'partition')} after it" if left else ""


def _partitions(cluster: Cluster, text: str) -> list[TopicPartition]:
    """The partition of this name, or all of a topic."""
    topic, index = topic_or_partition(cluster, text)
    view = require_topic(cluster, topic)
    wanted = [] if index is None else [index]
    found = chosen_partitions([each.index for each in view.partitions], wanted, topic)
    return [TopicPartition(topic, each) for each in found]


def _rows_of_all(
    names: Sequence[TopicPartition],
    read: Callable[[TopicPartition], tuple[Range, Iterator[dict[str, Any]]]],
) -> tuple[list[Range], Iterator[dict[str, Any]]]:
    """Returns what will be read of each partition, and the rows of one after the other."""
    found = [read(name) for name in names]
    return [wanted for wanted, _ in found], chain.from_iterable(rows for _, rows in found)


def in_text(row: dict[str, Any]) -> dict[str, Any]:
    """The row with a sign at a first offset that is only the first one that was read."""
    if row["is_transaction_start_exact"] is False:
        return row | {"transaction": f"<={row['transaction']}"}
    return row


def _rows(
    cluster: Cluster,
    name: TopicPartition,
    start: Position,
    end: Position,
    with_values: bool,
    budget: Budget,
    progress: ProgressLine,
) -> tuple[Range, Iterator[dict[str, Any]]]:
    from fencepost.client.topics import partition_offsets
    from fencepost.forensics.logs.partition_reading import Range
    from fencepost.forensics.logs.partition_records import read_fates
    from fencepost.forensics.logs.record_rows import record_rows

    bounds = cluster.run(partition_offsets(cluster.core, [name]))[name]
    first, last = (_offset(cluster, name, bounds, each) for each in (start, end))
    wanted = Range(name, first, last)
    ends = bounds.log_start_offset, bounds.last_stable_offset, bounds.high_watermark

    def rows() -> Iterator[dict[str, Any]]:
        for judged in read_fates(cluster, wanted, *ends, budget, progress):
            progress.clear()
            for row in record_rows(judged, name.topic, start=wanted.start, with_values=with_values):
                if row["offset"] >= wanted.end:
                    break
                yield {"partition": name.partition, **row}

    return wanted, rows()


def _offset(
    cluster: Cluster, name: TopicPartition, bounds: PartitionOffsets, position: Position
) -> int:
    """The offset of a position, between the ends of the log."""
    found = resolve(cluster, {name: bounds}, position, "read_uncommitted")[name]
    return max(bounds.log_start_offset, min(bounds.high_watermark, found))
