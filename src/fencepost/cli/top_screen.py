"""The screen of `fencepost top`: a frame as text that fits the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rich.console import Group
from rich.text import Text

from fencepost.cli.columns import GAP, choose, shrink
from fencepost.cli.output import in_words
from fencepost.cli.units import connection_in_words, moment_for_people
from fencepost.forensics.client_connection import connection_fields

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import RenderableType

    from fencepost.forensics.pins import Pin
    from fencepost.forensics.top import Frame, OpenTransaction

FIXED_LINES: Final = 11
"""Lines besides the rows of the two tables and the notes."""
FEWEST_ROWS: Final = 3

_STATES: Final = {
    "Ongoing": "ongoing",
    "PrepareCommit": "preparing commit",
    "PrepareAbort": "preparing abort",
    "CompleteCommit": "committed",
    "CompleteAbort": "aborted",
    "Empty": "empty",
}
_OPEN_COLUMNS: Final = (
    "transactional_id",
    "state",
    "age_ms",
    "left_ms",
    "partitions",
    "connection",
    "client",
)
_PIN_COLUMNS: Final = ("partition", "hidden", "for_ms", "kind", "held_by", "ends_within_ms")

_NAMES: Final = frozenset({"transactional_id", "client", "partition", "held_by"})
SHORTEST_NAME: Final = 8


def screen(frame: Frame, title: str, width: int, height: int | None) -> RenderableType:
    """A frame that fits a terminal; without a height it has all rows."""
    parts: list[RenderableType] = [
        Text(f"{title}  {moment_for_people(frame.taken_at_ms)}", style="bold", no_wrap=True),
        Text(),
        *_summary(frame),
        Text(),
    ]
    open_rows, pin_rows = _share(frame, height)
    parts += _section(
        f"open transactions: {frame.open_count}",
        [_shown_row(each, frame.taken_at_ms) for each in frame.open[:open_rows]],
        _OPEN_COLUMNS,
        frame.open_count - min(open_rows, len(frame.open)),
        width,
    )
    parts.append(Text())
    parts += _section(
        f"pinned partitions: {len(frame.pinned)} of {frame.partitions}",
        [pin_row(pin) for pin in frame.pinned[:pin_rows]],
        _PIN_COLUMNS,
        len(frame.pinned) - min(pin_rows, len(frame.pinned)),
        width,
    )
    parts += map(_note, frame.notes)
    return Group(*parts)


def _note(sentence: str) -> Text:
    return Text(f"! {sentence}", style="yellow", no_wrap=True, overflow="ellipsis")


def _summary(frame: Frame) -> list[Text]:
    named = {_STATES.get(state, state): count for state, count in frame.states.items()}
    order = [*_STATES.values(), *(name for name in named if name not in _STATES.values())]
    states = [f"{named[name]} {name}" for name in order if named.get(name)]
    figures = {
        "committed": frame.committed_per_second,
        "aborted": frame.aborted_per_second,
    }
    rates = ", ".join(f"{in_words(name, value)} {name}" for name, value in figures.items())
    latencies = {
        "half": frame.commit_p50_ms,
        "99 %": frame.commit_p99_ms,
        "all": frame.commit_max_ms,
    }
    times = ", ".join(
        f"{name} within {in_words('x_ms', value)}"
        for name, value in latencies.items()
        if value.value is not None
    )
    return [
        _line("ids", ", ".join(states) or "none"),
        _line("per second", rates),
        _line("commits", times or "none completed"),
    ]


def _line(name: str, text: str) -> Text:
    line = Text(f"{name:<12}", style="bold", no_wrap=True, overflow="ellipsis")
    return line.append(text, style="not bold")


def _share(frame: Frame, height: int | None) -> tuple[int, int]:
    """How many rows each table gets; what one does not need is the other's."""
    if height is None:
        return len(frame.open), len(frame.pinned)
    room = max(2 * FEWEST_ROWS, height - FIXED_LINES - len(frame.notes))
    half = room // 2
    open_rows = min(len(frame.open), max(half, room - len(frame.pinned)))
    return open_rows, min(len(frame.pinned), room - open_rows)


def _section(
    title: str, rows: Sequence[Mapping[str, Any]], columns: Sequence[str], left_out: int, width: int
) -> list[RenderableType]:
    more = f" (the oldest {len(rows)})" if left_out > 0 else ""
    heading = Text(title + more, style="bold")
    if not rows:
        return [heading]
    cells = {name: [_title(name), *(in_words(name, row[name]) for row in rows)] for name in columns}
    titles, *lines = _lines(cells, width)
    return [
        heading,
        Text(titles, style="dim", no_wrap=True),
        *(Text(line, no_wrap=True) for line in lines),
    ]


def _title(name: str) -> str:
    return name.removesuffix("_ms").replace("_", " ")


def _lines(cells: Mapping[str, Sequence[str]], width: int) -> list[str]:
    """The titles and the rows. Names are shortened; if that is not enough, columns are left out."""
    widest = {name: max(map(len, column)) for name, column in cells.items()}
    least = {
        name: min(most, SHORTEST_NAME) if name in _NAMES else most for name, most in widest.items()
    }
    kept = choose(least, width, list(cells)[:0:-1])
    widths = shrink([widest[each] for each in kept], [least[each] for each in kept], width)
    rows = zip(*(cells[each] for each in kept), strict=True)
    return [_joined(row, widths) for row in rows]


def _joined(cells: Sequence[str], widths: Sequence[int]) -> str:
    return (
        (" " * GAP)
        .join(
            cell.ljust(room) if len(cell) <= room else f"{cell[: room - 1]}…"
            for cell, room in zip(cells, widths, strict=True)
        )
        .rstrip()
    )


# -- rows, also for JSON --------------------------------------------------------------------------


def open_row(each: OpenTransaction) -> dict[str, Any]:
    """One open transaction."""
    fields = connection_fields(each.view)
    return {
        "transactional_id": each.transactional_id,
        "state": each.state,
        "age_ms": each.age_ms,
        "left_ms": each.left_ms,
        "partitions": each.partitions,
        "coordinator": each.coordinator,
        "producer_id": each.producer_id,
        "producer_epoch": each.producer_epoch,
        "client": each.client,
        "client_connection": fields["client_connection"],
        "client_gone_at_ms": fields["client_gone_at_ms"],
    }


def _shown_row(each: OpenTransaction, at_ms: int) -> dict[str, Any]:
    return open_row(each) | {"connection": connection_in_words(each.view, at_ms)}


def pin_row(pin: Pin) -> dict[str, Any]:
    """One pinned partition."""
    return {
        "partition": str(pin.partition),
        "hidden": pin.hidden_offsets,
        "for_ms": pin.pinned_for_ms,
        "kind": pin.kind,
        "held_by": pin.held_by,
        "ends_within_ms": pin.ends_in_at_most_ms,
    }


def frame_row(frame: Frame) -> dict[str, Any]:
    """All of a frame for JSON."""
    return {
        "taken_at_ms": frame.taken_at_ms,
        "over_ms": frame.over_ms,
        "states": dict(frame.states),
        "committed_per_second": frame.committed_per_second,
        "aborted_per_second": frame.aborted_per_second,
        "commit_p50_ms": frame.commit_p50_ms,
        "commit_p99_ms": frame.commit_p99_ms,
        "commit_max_ms": frame.commit_max_ms,
        "open_count": frame.open_count,
        "open": [open_row(each) for each in frame.open],
        "pinned_count": len(frame.pinned),
        "partitions": frame.partitions,
        "pinned": [pin_row(pin) for pin in frame.pinned],
        "notes": list(frame.notes),
    }
