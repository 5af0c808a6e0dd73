"""How the help of a command looks: an argument or a value is one word, such as FILE or N.

Typer would add the type in Python (`FILE <list[Path]>`). `App` is a `typer.Typer` whose commands
have this layout; the page of `fencepost serve`, which parses its options itself, looks the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand

Function = TypeVar("Function", bound=Callable[..., Any])


class Command(TyperCommand):
    """A command whose help names arguments by their metavar alone."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Returns what follows the name: options, then arguments as TOPIC, [FILE] or FILE..."""
        pieces = [self.options_metavar or ""]
        for each in _arguments(self, ctx):
            piece = word_of(each)
            piece = piece if each.required else f"[{piece}]"
            pieces.append(f"{piece}..." if each.nargs != 1 else piece)
        return pieces

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Writes the sections with arguments and options."""
        arguments = _arguments(self, ctx)
        records = {each: each.get_help_record(ctx) for each in self.get_params(ctx)}
        shown = {each: record for each, record in records.items() if record is not None}
        sections = {
            "Arguments": [(word_of(each), shown[each][1]) for each in arguments if each in shown],
            "Options": [record for each, record in shown.items() if each not in arguments],
        }
        for title, rows in sections.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def _arguments(command: TyperCommand, ctx: Any) -> list[Any]:
    return [each for each in command.get_params(ctx) if each.param_type_name == "argument"]


def word_of(parameter: Any) -> str:
    """The word that stands for the value of an argument."""
    return str(parameter.metavar or parameter.name.upper())


class App(typer.Typer):
    """A `typer.Typer` whose commands have this layout."""

    def command(self, name: str | None = None, **more: Any) -> Callable[[Function], Function]:
        """As typer's, which takes the class of each command as an argument."""
        return super().command(name, **{"cls": Command, **more})
