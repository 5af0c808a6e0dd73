"""The output of commands: a table for people or JSON for programs, behind one interface.

Commands never print. They pass the same rows to both; the names of the fields carry their units,
which text formats and JSON leaves as they are:

    ..._ms        a duration in milliseconds; for the names in `_MOMENTS`, since 1970-01-01 UTC
    ..._bytes     a size

A value may be a `Figure` (forensics/figures.py): `~` marks an estimate, and JSON has its source.
"""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fencepost.cli.columns import GAP, choose, longest_word, most_of, shrink
from fencepost.cli.units import for_people, moment_for_people, size_for_people
from fencepost.forensics.figures import Certainty, Figure

if TYPE_CHECKING:
    from rich.console import Console

Row = Mapping[str, Any]

COMMAND_INDENT: Final = " " * 4
"""Before a command in a note."""


class Column(NamedTuple):
    """A column of `Text.listing`."""

    width: int = 8
    title: str = ""
    """If empty, it comes from the name of the field."""
    is_optional: bool = False
    """Whether a narrow terminal goes without it."""


_MOMENTS: Final = frozenset({"start_ms", "last_update_ms", "written_ms"})
"""Names of moments from before the rule that the name of a moment ends with `_at_ms`."""


Cells = Mapping[str, Sequence[str]]
"""Columns of a table, each with its title and then its values."""

_WIDE: Final = 1_000
"""Columns of a file or pipe."""

_MANY_ROWS: Final = 1_000
"""Rich takes half a millisecond per row; a longer table is written without it."""


class Text:
    """Output for people."""

    def table(
        self,
        rows: Sequence[Row],
        columns: Sequence[str],
        empty: str,
        can_go: Sequence[str] | None = None,
    ) -> None:
        """Prints rows, or `empty` if there are none.

        A narrow terminal goes without the columns of `can_go`, in that order; by default without
        those on the right, down to two. If that is not enough, long words are broken.
        """
        if not rows:
            self.note(empty)
            return
        cells = {
            name: [_title(name), *(in_words(name, row.get(name)) for row in rows)]
            for name in columns
        }
        room = _room()
        if room is None:
            _print_plainly(cells)
            return
        is_plain = len(rows) > _MANY_ROWS
        least = {name: _least(name, column, room, is_plain) for name, column in cells.items()}
        kept = choose(least, room, columns[:1:-1] if can_go is None else can_go)
        if is_plain:
            _print_plainly({name: cells[name] for name in kept})
        else:
            _print_wrapped({name: cells[name] for name in kept}, least, room)
        if missing := [_title(name) for name in columns if name not in kept]:
            self.note(f"(Too narrow for: {', '.join(missing)}. --json has everything.)")

    def details(self, row: Row) -> None:
        """Prints all fields of one row."""
        from rich.markup import escape
        from rich.table import Table

        shown = Table(box=None, show_header=False, pad_edge=False)
        shown.add_column(style="bold", no_wrap=True)
        shown.add_column(overflow="fold")
        for name, value in row.items():
            shown.add_row(_title(name), escape(in_words(name, value)))
        _console(_room()).print(shown)

    def stream(self, rows: Iterable[Row], columns: Sequence[str]) -> None:
        """Prints rows as they come: tab-separated lines, or one JSON document per line."""
        for row in rows:
            print("\t".join(in_words(column, row.get(column)) for column in columns), flush=True)

    def listing(self, rows: Iterable[Row], columns: Mapping[str, Column]) -> None:
        """Prints rows as they come, under a header: columns of these widths, or JSON lines."""
        columns = _fitting(columns)
        titles = [column.title or _title(name) for name, column in columns.items()]
        widths = [
            max(len(title), each.width)
            for title, each in zip(titles, columns.values(), strict=True)
        ]
        header = "  ".join(map(str.ljust, titles, widths))
        print(f"\x1b[1m{header}\x1b[0m" if sys.stdout.isatty() else header.rstrip())
        for row in rows:
            # A longer value moves what follows it in its row.
            cells = [in_words(name, row.get(name)) for name in columns]
            print("  ".join(map(str.ljust, cells, widths)).rstrip())

    def note(self, sentence: str) -> None:
        """Prints sentences for people; programs get them as fields of the rows.

        Lines keep their indentation when they are wrapped. A line that is indented by
        COMMAND_INDENT is a command to copy, and is not wrapped.
        """
        width = _room() or _WIDE
        for line in sentence.splitlines() or [""]:
            print(line if line.startswith(COMMAND_INDENT) else _wrapped(line, width))


class Json:
    """Output for programs: one JSON document, or one per line for `stream`."""

    def table(
        self,
        rows: Sequence[Row],
        columns: Sequence[str],
        empty: str,
        can_go: Sequence[str] | None = None,
    ) -> None:
        print(json.dumps([dict(row) for row in rows], indent=2, default=_as_json))

    def details(self, row: Row) -> None:
        print(json.dumps(dict(row), indent=2, default=_as_json))

    def stream(self, rows: Iterable[Row], columns: Sequence[str]) -> None:
        for row in rows:
            print(json.dumps(dict(row), default=_as_json), flush=True)

    def listing(self, rows: Iterable[Row], columns: Mapping[str, Column]) -> None:
        self.stream(rows, tuple(columns))

    def note(self, sentence: str) -> None:
        pass


Output = Text | Json
"""Prints the results of a command. `Text` describes the methods."""


def output(as_json: bool) -> Output:
    """Returns JSON or text output."""
    return Json() if as_json else Text()


def in_words(name: str, value: Any) -> str:
    """Formats the value of a field for people, by the unit in its name."""
    if isinstance(value, Figure):
        if value.certainty is Certainty.UNKNOWN:
            return "unknown"
        mark = "~" if value.certainty is Certainty.ESTIMATED else ""
        return mark + in_words(name, value.value)
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(str(item) for item in value) or "-"
    if isinstance(value, dict):
        return json.dumps(value, default=_as_json)
    return _with_unit(name, value)


def _with_unit(name: str, value: Any) -> str:
    if name in _MOMENTS or name == "at_ms" or name.endswith("_at_ms"):
        return moment_for_people(value)
    if name.endswith("_ms"):
        return for_people(max(0, value))
    if name.endswith("_bytes"):
        return size_for_people(value)
    return str(value)


def _fitting(columns: Mapping[str, Column]) -> Mapping[str, Column]:
    """The columns that a terminal has room for; all of them in a file or pipe."""
    room = _room()
    if room is None:
        return columns
    needed = {
        name: max(column.width, len(column.title or _title(name)))
        for name, column in columns.items()
    }
    optional = [name for name, column in columns.items() if column.is_optional]
    return {name: columns[name] for name in choose(needed, room, optional[::-1])}


def _title(name: str) -> str:
    for unit in ("_at_ms", "_ms", "_bytes"):
        name = name.removesuffix(unit)
    return name.replace("_", " ")


def _wrapped(line: str, width: int) -> str:
    indent = " " * (len(line) - len(line.lstrip()))
    return textwrap.fill(
        line.strip(),
        width,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _as_json(value: Any) -> Any:
    if isinstance(value, Figure):
        return value.as_json()
    raise TypeError(f"{value!r} has no form in JSON")


def _least(name: str, cells: Sequence[str], room: int, is_plain: bool) -> int:
    """Returns the least width of a column that breaks neither words nor numbers with units."""
    if is_plain or name.endswith(("_ms", "_bytes")):
        return min(max(map(len, cells)), most_of(room))
    return longest_word(cells, room)


def _print_plainly(cells: Cells) -> None:
    """Prints a table for a file, or a long one: aligned, as wide as it is, without colour."""
    widths = [max(map(len, column)) for column in cells.values()]
    for line in zip(*cells.values(), strict=True):
        padded = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        print((" " * GAP).join(padded).rstrip())


def _print_wrapped(cells: Cells, least: Mapping[str, int], room: int) -> None:
    """Prints a table on a terminal, where long values are broken over lines, between words."""
    from rich.cells import cell_len
    from rich.markup import escape
    from rich.table import Table

    widest = [max(map(cell_len, column)) for column in cells.values()]
    shown = Table(box=None, header_style="bold", pad_edge=False)
    widths = shrink(widest, [least[name] for name in cells], room)
    # What is left if even that is too wide: words are broken, the names in the first column last.
    widths = shrink(widths, [widths[0], *[1] * (len(widths) - 1)], room)
    widths = shrink(widths, [1] * len(widths), room)
    for (title, *_), width in zip(cells.values(), widths, strict=True):
        shown.add_column(title, width=width, overflow="fold")
    for row in zip(*(column[1:] for column in cells.values()), strict=True):
        shown.add_row(*map(escape, row))
    _console(room).print(shown)


def _room() -> int | None:
    """Returns the width of the terminal; None for a file or pipe, which has room for everything."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _console(room: int | None) -> Console:
    from rich.console import Console

    return Console(width=room or _WIDE, highlight=False)
