"""`fencepost group reset`: moves the committed offsets of a group that has no members."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from fencepost.base.failures import FencepostError
from fencepost.base.ids import TopicPartition
from fencepost.base.options import suggest
from fencepost.cli.commands.group.listing import require_no_members
from fencepost.cli.confirmation import Yes, confirm
from fencepost.cli.connection import AsJson, Connection, connected
from fencepost.cli.naming import require_topic
from fencepost.cli.output import output
from fencepost.cli.partitions import parse_partition, topic_or_partition
from fencepost.cli.positions import (
    Position,
    chosen_partitions,
    offsets_at,
    parse_position,
    parse_time,
)
from fencepost.cli.units import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fencepost.client.blocking import Cluster
    from fencepost.client.groups import CommittedOffset
    from fencepost.client.topics import PartitionOffsets


class Target(NamedTuple):
    """Where to move the offsets; one field is set."""

    earliest: bool = False
    latest: bool = False
    offset: int | None = None
    time_ms: int | None = None
    shift: int | None = None


@connected
def reset_command(
    connection: Connection,
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The name of a group.")],
    topic: Annotated[
        list[str],
        typer.Option(
            metavar="TOPIC[:P,...]", help="A topic, or some of its partitions; repeatable."
        ),
    ] = [],  # noqa: B006 - typer copies it
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="All topics with committed offsets.")
    ] = False,
    to: Annotated[
        str | None,
        typer.Option(metavar="WHERE", help="Move to earliest, latest, an offset, or a time."),
    ] = None,
    to_earliest: Annotated[
        bool, typer.Option("--to-earliest", help="Move to the log start.")
    ] = False,
    to_latest: Annotated[
        bool, typer.Option("--to-latest", help="Move to the end of the log.")
    ] = False,
    to_offset: Annotated[
        int | None, typer.Option(metavar="N", help="Move to this offset.", min=0)
    ] = None,
    to_datetime: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Move to the first record that is not older (ISO 8601, UTC)."
        ),
    ] = None,
    shift_by: Annotated[
        int | None, typer.Option(metavar="N", help="Move by N, back if N is negative.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show old and new offsets, and change nothing.")
    ] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Move a group's committed offsets: shows old and new offsets, and asks.

    Offsets outside of the log move to its nearest end. As in Kafka, a group with members is
    refused: its consumers would overwrite the offsets.

    Example: fencepost group reset refunds-service --topic refunds:0,1 --shift-by -100
    """
    target = _target(to, to_earliest, to_latest, to_offset, to_datetime, shift_by)
    if bool(topic) == all_topics:
        raise FencepostError("Say which offsets: --topic TOPIC[:P,...], or --all-topics.")
    with connection.open(long_running=True) as cluster:
        near = _check_group(cluster, group)
        committed = cluster.offset_fetch(group, require_stable=True)
        places = _places(cluster, topic, committed)
        rows = _plan(cluster, places, committed, target)
        moved = sum(row["old_offset"] != row["new_offset"] for row in rows)
        if moved and not dry_run:
            confirm(yes, _sentence(group, moved, near), map(_in_words, rows))
            _commit(cluster, group, rows)
    shown = output(as_json)
    if yes or dry_run or as_json:
        columns = ["topic", "partition", "old_offset", "new_offset", "moved_by"]
        shown.table(rows, columns, "The group has committed no offsets: name topics with --topic.")
    done = "Nothing was changed (--dry-run)." if dry_run else f"Moved {counted(moved, 'offset')}."
    shown.note(done)


def _target(
    to: str | None,
    to_earliest: bool,
    to_latest: bool,
    to_offset: int | None,
    to_datetime: str | None,
    shift_by: int | None,
) -> Target:
    texts = (to, to_offset, to_datetime, shift_by)
    if sum([to_earliest, to_latest, *(each is not None for each in texts)]) != 1:
        raise FencepostError(
            "Say where to: --to earliest, --to latest, --to OFFSET, --to TIME, or --shift-by N. "
            "--to-earliest, --to-latest, --to-offset N and --to-datetime TIME mean the same."
        )
    if to is not None:
        return _target_of(parse_position(to))
    time_ms = None if to_datetime is None else parse_time(to_datetime)
    return Target(to_earliest, to_latest, to_offset, time_ms, shift_by)


def _target_of(position: Position) -> Target:
    """The target that --to names; a negative offset would count from the end, unlike --shift-by."""
    if position.offset is not None and position.offset < 0:
        raise FencepostError(
            f"--to {position.offset} is no offset; to go back by {-position.offset}: "
            f"--shift-by {position.offset}."
        )
    return Target(
        position.word == "beginning", position.word == "end", position.offset, position.time_ms
    )


def _check_group(cluster: Cluster, group: str) -> str | None:
    """Refuses a group with members. Returns similar names if the group does not exist yet."""
    from fencepost.client.group_admin import describe_group, list_groups

    view = cluster.run(describe_group(cluster.core, group))
    if view is not None:
        require_no_members(view, "they would overwrite the offsets")
        return None
    known = [each.group for each in cluster.run(list_groups(cluster.core))]
    return suggest(group, known) or "."


def _sentence(group: str, moved: int, near: str | None) -> str:
    offsets = counted(moved, "committed offset")
    if near is None:
        return f"This will move {offsets} of group {group!r}."
    return f"This will create group {group!r} with {offsets}; there is none of this name{near}"


def _places(
    cluster: Cluster, topics: Sequence[str], committed: Mapping[TopicPartition, CommittedOffset]
) -> list[TopicPartition]:
    if not topics:
        return sorted(committed)
    places: set[TopicPartition] = set()
    for text in topics:
        name, wanted = _parse_place(cluster, text)
        view = require_topic(cluster, name)
        found = chosen_partitions([p.index for p in view.partitions], wanted, name)
        places |= {TopicPartition(name, index) for index in found}
    return sorted(places)


def _parse_place(cluster: Cluster, text: str) -> tuple[str, list[int]]:
    """Reads TOPIC, TOPIC:P,P or TOPIC-P; no partitions means all of them."""
    name, colon, indexes = text.partition(":")
    if colon:
        return name, [parse_partition(f"{name}:{each}").partition for each in indexes.split(",")]
    name, index = topic_or_partition(cluster, text)
    return name, [] if index is None else [index]


def _plan(
    cluster: Cluster,
    places: list[TopicPartition],
    committed: Mapping[TopicPartition, CommittedOffset],
    target: Target,
) -> list[dict[str, Any]]:
    from fencepost.client.topics import partition_offsets

    offsets = cluster.run(partition_offsets(cluster.core, places))
    at = {} if target.time_ms is None else offsets_at(cluster, offsets, target.time_ms)
    rows = []
    for place in places:
        old = committed[place].offset if place in committed else None
        new = new_offset(target, offsets[place], old, at.get(place))
        rows.append(
            {
                "topic": place.topic,
                "partition": place.partition,
                "old_offset": old,
                "new_offset": new,
                "moved_by": None if old is None else new - old,
            }
        )
    return rows


def new_offset(
    target: Target, offsets: PartitionOffsets, old: int | None, at_time: int | None
) -> int:
    """Returns the new offset of a partition, within its log.

    If nothing is committed, a shift counts from the log start.
    """
    first, last = offsets.log_start_offset, offsets.high_watermark
    if target.earliest:
        return first
    if target.latest:
        return last
    if target.shift is not None:
        wanted = (first if old is None else old) + target.shift
    elif target.offset is not None:
        wanted = target.offset
    else:
        assert at_time is not None
        wanted = at_time
    return min(max(wanted, first), last)


def _in_words(row: Mapping[str, Any]) -> str:
    old = "no offset" if row["old_offset"] is None else row["old_offset"]
    return f"{row['topic']}-{row['partition']}  {old} -> {row['new_offset']}"


def _commit(cluster: Cluster, group: str, rows: Sequence[Mapping[str, Any]]) -> None:
    from fencepost.client.groups import CommittedOffset

    changed = {
        TopicPartition(row["topic"], row["partition"]): CommittedOffset(row["new_offset"])
        for row in rows
        if row["old_offset"] != row["new_offset"]
    }
    if changed:
        cluster.offset_commit(group, changed)
