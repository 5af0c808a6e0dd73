"""The reference of the commands, from the commands themselves: what `--help` shows, as a page.

Options are lists, not tables: a phone shows them without scrolling sideways. What all commands that
talk to a cluster share is written once (docs/command-line.md).
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from typing import Any, Final

import typer

from fencepost.cli.app import app
from fencepost.cli.connection import connection_options
from fencepost.cli.layout import App, help_rows

ALIASES: Final = {"produce": "topic", "consume": "topic"}
"""Commands that are described on the page of another one."""
WITHOUT_PAGE: Final = ("bench",)
"""`bench` passes its options on to the benchmarks of a checkout."""

Row = tuple[str, str]

CONNECTION: Final = "[options of a connection](../../command-line.md#options-of-a-connection)"
_EXTRA: Final = re.compile(
    r"(.*?) +\[(default|env var|required|at least|-?\d+ to)(.*)\]", re.DOTALL
)


def names() -> list[str]:
    """The commands that have a page, in the order of the help."""
    return [name for name in _commands() if name not in {*ALIASES, *WITHOUT_PAGE}]


def command_part(name: str) -> Iterator[str]:
    """The usage, arguments and options of a command or of all commands of a group."""
    if name == "serve":
        yield from _serve()
        return
    command = _commands()[name]
    path = f"fencepost {name}"
    if not hasattr(command, "commands"):
        yield from _section(path, command)
    else:
        yield from _group(path, command)


def _group(path: str, group: Any) -> Iterator[str]:
    """The commands of a group, and of the groups in it."""
    if group.invoke_without_command:
        yield from [f"### {path}", "", *_section(path, group)]
    for child, each in group.commands.items():
        if hasattr(each, "commands"):
            yield from _group(f"{path} {child}", each)
        else:
            yield from [f"### {path} {child}", "", *_section(f"{path} {child}", each)]


def connection_part() -> Iterator[str]:
    """The options that all commands share which talk to a cluster."""
    yield from _items(_shared_options())


def _shared_options() -> list[Row]:
    alone = App(add_completion=False)
    alone.command()(connection_options)
    return _rows(typer.main.get_command(alone))["Options"]


def _commands() -> dict[str, Any]:
    group: Any = typer.main.get_command(app)
    return dict(group.commands)


def _rows(command: Any) -> dict[str, list[Row]]:
    rows = help_rows(command, command.context_class(command))
    return {
        title: [row for row in found if "--help" not in row[0]] for title, found in rows.items()
    }


def _section(path: str, command: Any) -> Iterator[str]:
    rows, shared = _rows(command), _shared_options()
    pieces = command.collect_usage_pieces(command.context_class(command))
    # A group that is a command itself is described without its commands, which follow.
    usage = "[OPTIONS]" if hasattr(command, "commands") else " ".join(pieces)
    yield from _code(f"{path} {usage}")
    text, example = _help(command.help)
    yield from text
    yield from _items(rows["Arguments"], is_required_shown=False)
    yield from _items([row for row in rows["Options"] if row not in shared])
    if set(shared) <= set(rows["Options"]):
        yield f"- and the {CONNECTION}"
    if example:
        yield ""
        yield from _code(example)


def _serve() -> Iterator[str]:
    from fencepost.cli.commands.serve import DESCRIPTION, parser

    text, _, examples = DESCRIPTION.partition("\n\n  fencepost serve\n")
    yield from _code("fencepost serve [OPTIONS]")
    for paragraph in textwrap.dedent(text).strip().split("\n\n"):
        yield from (_prose(" ".join(paragraph.split())), "")
    rows = []
    for each in parser().listed:
        value = f" {each.metavar}" if each.metavar else ""
        rows.append((", ".join(each.option_strings) + value, each.help or ""))
    yield from _items([row for row in rows if "--help" not in row[0]])
    yield ""
    yield from _code("fencepost serve", *textwrap.dedent(examples).strip().splitlines())


def _help(text: str | None) -> tuple[list[str], str]:
    """The paragraphs of a help text, and its example."""
    lines: list[str] = []
    example = ""
    for paragraph in (text or "").strip().split("\n\n"):
        words = " ".join(paragraph.split())
        if words.startswith("Example: "):
            example = words.removeprefix("Example: ")
        else:
            lines += [_prose(words), ""]
    return lines, example


def _items(rows: list[Row], *, is_required_shown: bool = True) -> Iterator[str]:
    for names_of_option, words in rows:
        found = _EXTRA.fullmatch(words)
        meaning = found[1] if found else words
        notes = _notes(f"{found[2]}{found[3]}", is_required_shown) if found else ""
        yield f"- `{names_of_option}`: {_prose(meaning.strip())}{notes}"


def _notes(extra: str, is_required_shown: bool) -> str:
    """What help shows in brackets: default, environment variable, range."""
    notes = []
    for each in re.findall(r"default: \([^)]*\)|[^;]+", extra):
        kind, _, value = each.strip().partition(": ")
        if value.startswith("("):
            notes.append(f"default: {_prose(value.strip('()'))}")
        elif kind == "default":
            notes.append(f"default `{value}`")
        elif kind == "env var":
            notes.append(f"environment variable `{value}`")
        elif is_required_shown or kind != "required":
            notes.append(_prose(each.strip()))
    return f" ({'; '.join(notes)})" if notes else ""


def _code(*lines: str) -> Iterator[str]:
    yield from ("```", *lines, "```", "")


def _prose(text: str) -> str:
    """Text in which nothing but code in backticks has a meaning in Markdown."""
    parts = text.split("`")
    for at in range(0, len(parts), 2):
        parts[at] = re.sub(r"([\\*_\[\]])", r"\\\1", parts[at]).replace("<", "&lt;")
    return "`".join(parts)
