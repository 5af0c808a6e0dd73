"""The texts of `Progress`: a table for terminals, a line for files, HTML for notebooks."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from fencepost.spark.progress.board import QueryState, QueryStatus

if TYPE_CHECKING:
    from rich.console import Group, JustifyMethod

HEADINGS: Final = (
    "query",
    "state",
    "batch",
    "rows/s",
    "behind",
    "records",
    "batch ms",
    "commit ms",
    "retries",
    "drained",
)

_ORDER: Final = {
    QueryState.FAILED: 0,
    QueryState.RUNNING: 1,
    QueryState.IDLE: 1,
    QueryState.STOPPED: 2,
}
"""Where there is no room for all queries, those that failed are shown first."""

_STYLES: Final = {QueryState.FAILED: "bold red", QueryState.STOPPED: "dim"}

_ERROR_CHARACTERS: Final = 400


def cells_of(status: QueryStatus) -> tuple[str, ...]:
    """One query, in the order of `HEADINGS`; a dash where something is not known."""
    about = "" if status.records_behind in (None, status.offsets_behind) else "~"
    name = status.name if status.runs == 1 else f"{status.name} (run {status.runs})"
    rate = None if status.rows_per_second is None else round(status.rows_per_second)
    return (
        name,
        str(status.state),
        _number(status.batch_id),
        _number(rate),
        _number(status.offsets_behind),
        about + _number(status.records_behind),
        _number(status.batch_ms),
        _number(status.commit_ms),
        _number(status.retries),
        _number(status.drained),
    )


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def line_of(status: QueryStatus) -> str:
    """One query in one line, with what is known."""
    name, state, batch, rate, offsets, records, batch_ms, commit_ms, retries, drained = cells_of(
        status
    )
    words = {
        f"batch {batch}": batch,
        f"{rate} rows/s": rate,
        f"{offsets} offsets behind ({records} records)": offsets,
        f"batch {batch_ms} ms": batch_ms,
        f"commit {commit_ms} ms": commit_ms,
        f"retries {retries}": retries if status.retries else "-",
        f"drained {drained}": drained if status.drained else "-",
    }
    known = [word for word, value in words.items() if value != "-"]
    line = f"{name}: {', '.join([state, *known])}"
    return line if status.error is None else f"{line}: {_short(status.error)}"


def table_of(queries: Sequence[QueryStatus], most: int | None = None) -> Group:
    """The queries as a table with one line each, at most `most` lines with the heading."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    shown, left_out = choose(queries, most)
    rows = [cells_of(status) for status in shown]
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for heading, column in zip(HEADINGS, zip(HEADINGS, *rows, strict=True), strict=True):
        # In a narrow terminal names are shortened, and numbers are not.
        width = None if heading == HEADINGS[0] else max(map(len, column))
        side: JustifyMethod = "left" if heading in HEADINGS[:2] else "right"
        table.add_column(heading, justify=side, min_width=width, no_wrap=True, overflow="ellipsis")
    for status, row in zip(shown, rows, strict=True):
        # Text, because a name may look like rich's markup.
        table.add_row(*map(Text, row), style=_STYLES.get(status.state, ""))
    errors = [
        Text(f"{status.name}: {_short(status.error)}", style="red")
        for status in shown
        if status.error is not None
    ]
    rest = [Text(f"and {left_out} more", style="dim")] if left_out else []
    return Group(table, *errors, *rest)


def choose(queries: Sequence[QueryStatus], most: int | None) -> tuple[list[QueryStatus], int]:
    """The queries that fit into so many lines, in their order, and the number of the others."""
    needed = 1 + sum(map(_lines_of, queries))
    if most is None or needed <= most:
        return list(queries), 0
    room = most - 2  # without the heading, and the line that says how many there are more
    kept: set[str] = set()
    for each in sorted(queries, key=lambda each: _ORDER[each.state]):
        room -= _lines_of(each)
        if room < 0:
            break
        kept.add(each.query_id)
    return [each for each in queries if each.query_id in kept], len(queries) - len(kept)


def _lines_of(status: QueryStatus) -> int:
    return 1 if status.error is None else 2


def html_of(queries: Sequence[QueryStatus]) -> str:
    """The queries as an HTML table."""
    head = "".join(f"<th>{html.escape(heading)}</th>" for heading in HEADINGS)
    rows = "".join(_html_row(status) for status in queries)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _html_row(status: QueryStatus) -> str:
    cells = "".join(f"<td>{html.escape(cell)}</td>" for cell in cells_of(status))
    row = f"<tr>{cells}</tr>"
    if status.error is None:
        return row
    error = html.escape(_short(status.error))
    return f'{row}<tr><td colspan="{len(HEADINGS)}" style="text-align:left">{error}</td></tr>'


def _short(text: str) -> str:
    first = " ".join(text.split())
    return first if len(first) <= _ERROR_CHARACTERS else first[:_ERROR_CHARACTERS] + "..."
