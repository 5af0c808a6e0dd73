"""How the help of a command looks: an argument or a value is one word, such as FILE or N.

Typer would add the type in Python (`FILE <list[Path]>`). `App` is a `typer.Typer` whose commands
have this layout; the page of `fencepost serve`, which parses its options itself, looks the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

Function = TypeVar("Function", bound=Callable[..., Any])


class Command(TyperCommand):
    """A command whose help names arguments by their metavar alone."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Returns what follows the name: options, then arguments as TOPIC, [FILE] or FILE..."""
        pieces = [self.options_metavar or ""]
        for each in self.get_params(ctx):
            if each.param_type_name != "argument":
                continue
            piece = word_of(each)
            piece = piece if each.required else f"[{piece}]"
            pieces.append(f"{piece}..." if each.nargs != 1 else piece)
        return pieces

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Writes the sections with arguments and options."""
        for title, rows in help_rows(self, ctx).items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def help_rows(command: Any, ctx: Any) -> dict[str, list[tuple[str, str]]]:
    """The arguments and options of a command, each with its help."""
    rows: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
    for each in command.get_params(ctx):
        record = each.get_help_record(ctx)
        if record is None:
            continue
        names, words = record
        if each.param_type_name == "argument":
            rows["Arguments"].append((word_of(each), _range_in_words(words)))
        else:
            rows["Options"].append((names, _range_in_words(words)))
    return rows


def _range_in_words(help_text: str) -> str:
    """Typer writes x>=1 and 1<=x<=9."""
    within = re.sub(r"(-?\d+)<=x<=(-?\d+)", r"\1 to \2", help_text)
    return re.sub(r"\bx>=(-?\d+)", r"at least \1", within)


def word_of(parameter: Any) -> str:
    """The word that stands for the value of an argument."""
    return str(parameter.metavar or parameter.name.upper())


ALIASES: Final = ("describe", "show", "status")
"""Names for one thing: a group of commands that has one of them answers to all."""


class Group(TyperGroup):
    """A group of commands in which `describe`, `show` and `status` are one if only one exists."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Reads the arguments, in which --bootstrap-server is accepted as in Kafka's tools."""
        ours = [re.sub(r"^--bootstrap-server(?==|$)", "--bootstrap-servers", each) for each in args]
        return super().parse_args(ctx, ours)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Returns the command of this name."""
        found = super().get_command(ctx, cmd_name)
        if found is None and cmd_name in ALIASES:
            meant = [name for name in ALIASES if name in self.commands]
            found = super().get_command(ctx, meant[0]) if len(meant) == 1 else None
        return found


class App(typer.Typer):
    """A `typer.Typer` whose commands have this layout."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"cls": Group, **options})

    def command(self, name: str | None = None, **more: Any) -> Callable[[Function], Function]:
        """As typer's, which takes the class of each command as an argument."""
        return super().command(name, **{"cls": Command, **more})
