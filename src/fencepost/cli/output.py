"""The output of commands: a table for people or JSON for programs, behind one interface.

Commands never print.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from rich.console import Console

Row = Mapping[str, Any]


class Output(Protocol):
    """Prints the results of a command."""

    def table(self, rows: Sequence[Row], columns: Sequence[str], empty: str) -> None:
        """Prints rows, or `empty` if there are none."""
        ...

    def details(self, row: Row) -> None:
        """Prints all fields of one row."""
        ...


class Text:
    """Output for people."""

    def table(self, rows: Sequence[Row], columns: Sequence[str], empty: str) -> None:
        from rich.table import Table

        console = _console()
        if not rows:
            console.print(empty)
            return
        shown = Table(box=None, header_style="bold", pad_edge=False)
        for column in columns:
            shown.add_column(column.replace("_", " "), no_wrap=True)
        for row in rows:
            shown.add_row(*[_word(row.get(column)) for column in columns])
        console.print(shown)

    def details(self, row: Row) -> None:
        from rich.table import Table

        shown = Table(box=None, show_header=False, pad_edge=False)
        shown.add_column(style="bold", no_wrap=True)
        shown.add_column(overflow="fold")
        for name, value in row.items():
            shown.add_row(name.replace("_", " "), _word(value))
        _console().print(shown)


class Json:
    """Output for programs: one JSON document."""

    def table(self, rows: Sequence[Row], columns: Sequence[str], empty: str) -> None:
        print(json.dumps([dict(row) for row in rows], indent=2))

    def details(self, row: Row) -> None:
        print(json.dumps(dict(row), indent=2))


def output(as_json: bool) -> Output:
    """Returns JSON or text output."""
    return Json() if as_json else Text()


def _console() -> Console:
    """Returns a console as wide as the terminal, or as the text in a file or pipe."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 1_000)


def _word(value: Any) -> str:
    from rich.markup import escape

    if value is None:
        return "-"
    if isinstance(value, (list, tuple)):
        return escape(", ".join(str(item) for item in value)) or "-"
    return escape(str(value))
