"""`fencepost txn timeline`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fencepost.base.failures import FencepostError
from fencepost.cli.connection import AsJson, Connection, connected
from fencepost.cli.limits import DEFAULT_MAX_READ, MaxRead, parse_size
from fencepost.cli.naming import unknown_id
from fencepost.cli.output import output
from fencepost.cli.units import for_people, moment_for_people

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fencepost.forensics.history.markers import SeenMarker
    from fencepost.forensics.history.timeline import Step, Timeline


@connected
def timeline_command(
    connection: Connection,
    transactional_id: Annotated[str, typer.Argument(help="The transactional id.", metavar="ID")],
    last: Annotated[
        int, typer.Option(min=1, metavar="N", help="Show the last N states of the id.")
    ] = 50,
    markers: Annotated[
        bool, typer.Option(help="Look for the markers in the partitions.", show_default=True)
    ] = True,
    svg: Annotated[
        Path | None, typer.Option("--svg", metavar="FILE", help="Draw the timeline to a file.")
    ] = None,
    max_read: MaxRead = DEFAULT_MAX_READ,
    as_json: AsJson = False,
) -> None:
    """Show the states of a transactional id over time, with epochs, durations and markers.

    Example: fencepost txn timeline refunds-0 --svg refunds-0.svg
    """
    from dataclasses import replace

    from fencepost.cli.progress import ProgressLine
    from fencepost.forensics.history.facts import look_at_id, look_at_partitions
    from fencepost.forensics.history.timeline import build_timeline, timeline_row
    from fencepost.forensics.logs.partition_reading import Budget

    budget, progress = Budget(parse_size(max_read)), ProgressLine()
    with connection.open(long_running=True) as cluster:
        facts = look_at_id(cluster, transactional_id, budget, progress)
        progress.clear()
        if facts.is_empty:
            raise unknown_id(cluster, facts)
        if facts.history is None or not facts.history.changes:
            raise FencepostError(_nothing(transactional_id, facts.problems))
        history = facts.history
        hidden = max(0, len(history.changes) - last)
        recent = replace(history, changes=history.changes[-last:])
        if markers:
            look_at_partitions(cluster, facts, recent.changes, budget, progress)
    progress.clear()
    timeline = build_timeline(recent, facts.partitions)
    timeline.problems[:0] = facts.problems
    lost = None if hidden else timeline.lost
    if svg is not None:
        _write(svg, timeline)
    shown = output(as_json)
    if as_json:
        shown.details(timeline_row(timeline) | {"hidden_steps": hidden, "lost": lost})
        return
    for line in text_lines(timeline, hidden, lost):
        shown.note(line)


def _nothing(transactional_id: str, problems: list[str]) -> str:
    """The id is known to its coordinator, and its records could not be read."""
    reasons = "".join(f" {each}" for each in problems)
    return f"No record of the transactional id {transactional_id!r} was read.{reasons}"


def _write(path: Path, timeline: Timeline) -> None:
    from fencepost.forensics.history.timeline_picture import draw

    try:
        path.write_text(draw(timeline, moment_for_people, for_people), "utf-8")
    except OSError as problem:
        raise FencepostError(f"{path} cannot be written: {problem.strerror}.") from problem


def text_lines(timeline: Timeline, hidden: int, lost: str | None) -> Iterator[str]:
    """The timeline from top to bottom, a line per state and one per duration."""
    from fencepost.forensics.logs.record_rows import printable

    history = timeline.history
    yield f"{printable(history.transactional_id.encode())}, from {history.partition}"
    if hidden:
        yield f"({hidden:,} earlier states are not shown: --last)"
    if lost:
        yield lost
    day = ""
    for step in timeline.steps:
        moment = moment_for_people(step.change.at_ms)
        if moment[:10] != day:
            day = moment[:10]
            yield f"\n{day} UTC, the coordinator's clock"
        elif step.since_previous_ms is not None:
            yield f"              │  {for_people(max(0, step.since_previous_ms))}"
        yield from _step_lines(step, moment[11:23])
    for marker in timeline.strays:
        yield f"No record explains this marker: {_marker_words(marker, None)}."
    for problem in timeline.problems:
        yield f"\n{problem}"


def _step_lines(step: Step, clock: str) -> Iterator[str]:
    change, metadata = step.change, step.change.metadata
    words = []
    if metadata is not None:
        words.append(f"producer {metadata.producer_id}, epoch {metadata.producer_epoch}")
        if change.state == "Empty":
            words.append(f"timeout {for_people(metadata.timeout_ms)}")
        if step.added:
            words.append(", ".join(step.added))
    elif change.is_tombstone:
        words.append("the id has expired")
    yield f"{clock}  ● {change.state:<15} {'; '.join(words)}  @{change.offset}"
    for note in step.notes:
        yield f"              │  ! {note}"
    for marker in step.markers:
        yield f"              │  {_marker_words(marker, change.at_ms)}"
    for name in step.missing:
        yield f"              │  ! {name}: no marker was found"


def _marker_words(marker: SeenMarker, prepared_at_ms: int | None) -> str:
    end = marker.end
    outcome = "COMMIT" if end.commit else "ABORT"
    words = f"{marker.partition}: {outcome} marker @{end.offset}"
    if prepared_at_ms is not None:
        words += f" after {for_people(max(0, end.at_ms - prepared_at_ms))}"
    if marker.first_offset is None:
        return words + (", nothing was written there" if marker.has_start else "")
    return words + f", began @{'' if marker.has_start else '<='}{marker.first_offset}"
