"""`fencepost topic consume`: prints records.

Without --follow it reads up to where the log ended when it began: up to the last stable offset with
read_committed, so an open transaction never holds it up, but is reported. With --group it starts at
the group's offsets and commits what it has printed. It does not join the group (that would take
partitions away from running consumers), so the group must have no members.
"""

from __future__ import annotations

import io
import json
import sys
import time
from contextlib import contextmanager, suppress
from enum import Enum
from typing import TYPE_CHECKING, Annotated, BinaryIO, Final

import typer

from fencepost.base.failures import FencepostError
from fencepost.base.ids import TopicPartition
from fencepost.cli.connection import Connection, connected
from fencepost.cli.main import complain
from fencepost.cli.naming import require_topic
from fencepost.cli.units import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fencepost.client.blocking import Cluster
    from fencepost.client.topic_reader import TopicReader
    from fencepost.client.topics import PartitionOffsets
    from fencepost.records.opened import Record

_POLL_MS: Final = 500
_COMMIT_SECONDS: Final = 1.0
_STUCK_SECONDS: Final = 2.0
"""How long the last stable offset may stand still before a line says so."""


class Isolation(Enum):
    """Kafka's isolation levels."""

    READ_COMMITTED = "read_committed"
    READ_UNCOMMITTED = "read_uncommitted"


@connected
def consume_command(
    connection: Connection,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The name of a topic.")],
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="WHERE",
            help="beginning, end, an offset, -N for the last N offsets, or a time "
            "(2026-11-17T09:30:00Z).  [default: beginning; end with --follow]",
        ),
    ] = None,
    partition: Annotated[
        list[int],
        typer.Option(
            "--partition", "-p", metavar="P", help="Only this partition; repeatable.", min=0
        ),
    ] = [],  # noqa: B006 - typer copies it
    most: Annotated[
        int | None, typer.Option("--max", metavar="N", help="Stop after N records.", min=0)
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for new records until Ctrl-C.")
    ] = False,
    isolation: Annotated[
        Isolation,
        typer.Option(
            metavar="LEVEL",
            help="read_committed, or read_uncommitted: records of open and aborted transactions, "
            "too.",
        ),
    ] = Isolation.READ_COMMITTED,
    group: Annotated[
        str | None,
        typer.Option(metavar="GROUP", help="Start at a group's offsets; commit what is printed."),
    ] = None,
    fields: Annotated[
        str,
        typer.Option(
            metavar="NAME,...",
            help="The fields of a line: partition, offset, timestamp, key, headers, value.",
        ),
    ] = "value",
    raw: Annotated[
        bool, typer.Option("--raw", help="Print keys and values byte by byte, without escapes.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="A JSON object per line, with all fields.")
    ] = False,
) -> None:
    r"""Print records, one per line; ends at the end of the log.

    Bytes that are not text are escaped (\xff), in JSON base64 (value_base64). The null of a
    tombstone is \N.

    Example: fencepost topic consume refunds --from -10 --fields offset,key,value
    """
    show = _formatter(topic, fields, raw, as_json)
    connection = connection.with_defaults(default_api_timeout_ms="60000" if follow else "10000")
    with _standard_output() as out, connection.open(long_running=True) as cluster:
        wanted = _partitions(cluster, topic, partition)
        reader = _reader(cluster, wanted, start, follow, isolation.value, group)
        printing = _Printing(cluster, reader, show, out, group, most)
        try:
            printing.run()
        except KeyboardInterrupt:
            out.flush()
            if group is not None:
                _commit_at_last(connection, printing)
            raise


def _commit_at_last(connection: Connection, printing: _Printing) -> None:
    """Commits after Ctrl-C, over another connection: this one may be amid a request."""
    try:
        with connection.open(long_running=True) as other:
            printing.commit(other)
    except FencepostError as problem:
        complain(f"the last printed records were not committed: {problem}")


@contextmanager
def _standard_output() -> Iterator[BinaryIO]:
    """Yields standard output with a buffer.

    Without one, as with `python -u`, a write to a pipe may take a part of a record, and Ctrl-C may
    come between a record and the note that it was printed.
    """
    stream = sys.stdout.buffer
    if not isinstance(stream, io.RawIOBase):
        yield stream
        return
    buffered = io.BufferedWriter(stream)
    try:
        yield buffered
    finally:
        # Otherwise it would close standard output when it is collected.
        buffered.detach()


def _formatter(
    topic: str, fields: str, raw: bool, as_json: bool
) -> Callable[[TopicPartition, Record], bytes]:
    from fencepost.cli import record_lines

    names = tuple(name.strip() for name in fields.split(","))
    for name in names:
        if name not in record_lines.FIELDS:
            raise FencepostError(
                f"--fields has {name!r}: give some of {', '.join(record_lines.FIELDS)}."
            )
    if as_json:
        return lambda place, record: json.dumps(
            record_lines.as_json(topic, place.partition, record)
        ).encode()
    form = record_lines.as_raw if raw else record_lines.as_text
    return lambda place, record: form(names, place.partition, record)


def _partitions(cluster: Cluster, topic: str, wanted: list[int]) -> list[TopicPartition]:
    from fencepost.cli.positions import chosen_partitions

    view = require_topic(cluster, topic)
    indexes = chosen_partitions([p.index for p in view.partitions], wanted, topic)
    return [TopicPartition(topic, index) for index in indexes]


def _reader(
    cluster: Cluster,
    partitions: list[TopicPartition],
    start: str | None,
    follow: bool,
    isolation: str,
    group: str | None,
) -> TopicReader:
    from fencepost.cli.positions import parse_position, require_in_range, resolve
    from fencepost.client.topic_reader import TopicReader
    from fencepost.client.topics import partition_offsets

    default = "end" if follow and group is None else "beginning"
    position = parse_position(start or default)
    offsets = cluster.run(partition_offsets(cluster.core, partitions))
    positions = resolve(cluster, offsets, position, isolation)
    require_in_range(positions, offsets)
    if group is not None:
        _require_no_members(cluster, group)
        if start is None:
            positions |= _committed(cluster, group, offsets)
    ends = None if follow else {each: found.end(isolation) for each, found in offsets.items()}
    reader = TopicReader(cluster, positions, ends, isolation)
    reader.note_ends(offsets)
    return reader


def _require_no_members(cluster: Cluster, group: str) -> None:
    from fencepost.client.group_admin import describe_group

    found = cluster.run(describe_group(cluster.core, group))
    if found is not None and found.members:
        raise FencepostError(
            f"Group {group!r} has {counted(len(found.members), 'member')}, and members commit its "
            "offsets. Stop them, or leave out --group and use --from. Nothing was read."
        )


def _committed(
    cluster: Cluster, group: str, offsets: dict[TopicPartition, PartitionOffsets]
) -> dict[TopicPartition, int]:
    """Returns the group's offsets; one before the log start moves to it, with a note."""
    positions = {}
    for place, committed in cluster.offset_fetch(group, list(offsets)).items():
        first, last = offsets[place].log_start_offset, offsets[place].high_watermark
        if committed.offset < first:
            complain(
                f"records {committed.offset} to {first - 1} of {place} "
                "were deleted before the group read them"
            )
        positions[place] = min(max(committed.offset, first), last)
    return positions


class _Printing:
    """Prints, commits, and says why nothing comes."""

    def __init__(
        self,
        cluster: Cluster,
        reader: TopicReader,
        show: Callable[[TopicPartition, Record], bytes],
        out: BinaryIO,
        group: str | None,
        most: int | None,
    ) -> None:
        self._cluster = cluster
        self._reader = reader
        self._show = show
        self._out = out
        self._group = group
        self._left = most
        self._committed = dict(reader.positions)
        self._committed_at = time.monotonic()
        self._still_since: float | None = None
        self._reported: dict[TopicPartition, int] = {}

    def run(self) -> None:
        """Prints until the end, Ctrl-C, or as many records as wanted."""
        from fencepost.client.failures import RetriesExhausted

        try:
            while not self._reader.is_done and self._left != 0:
                self._print_round()
                if time.monotonic() - self._committed_at >= _COMMIT_SECONDS:
                    self.commit(self._cluster)
                self._report_stuck(_STUCK_SECONDS)
        except RetriesExhausted:
            # The broker is gone, so nothing can be committed; what was committed before stays.
            raise
        except FencepostError:
            with suppress(FencepostError):
                self.commit(self._cluster)
            raise
        self.commit(self._cluster)
        if self._left != 0:
            self._report_stuck(0.0)

    def _print_round(self) -> None:
        came = False
        for place, record in self._reader.poll(_POLL_MS):
            self._out.write(self._show(place, record) + b"\n")
            self._reader.positions[place] = record.offset + 1
            came = True
            if self._left is not None:
                self._left -= 1
                if self._left == 0:
                    break
        self._out.flush()
        if came:
            self._still_since = None
        elif self._still_since is None:
            self._still_since = time.monotonic()

    def commit(self, cluster: Cluster) -> None:
        """Commits what was printed. If the reader of a pipe has gone, it fails before that."""
        from fencepost.client.groups import CommittedOffset

        self._out.flush()
        if self._group is None:
            return
        changed = {
            place: CommittedOffset(offset)
            for place, offset in self._reader.positions.items()
            if self._committed[place] != offset
        }
        if changed:
            cluster.offset_commit(self._group, changed)
        self._committed = dict(self._reader.positions)
        self._committed_at = time.monotonic()

    def _report_stuck(self, after_seconds: float) -> None:
        since = self._still_since
        if after_seconds and (since is None or time.monotonic() - since < after_seconds):
            return
        for place, count in self._reader.hidden().items():
            stable = self._reader.seen[place].last_stable_offset
            if self._reported.get(place) == stable:
                continue
            self._reported[place] = stable
            verb = "waiting: " if after_seconds else ""
            complain(
                f"{verb}an open transaction hides ~{counted(count, 'record')} of {place.topic}:"
                f"{place.partition}, from offset {stable} on; see `fencepost pins {place.topic}`"
            )
