"""`fencepost completion`: scripts that complete commands and options in a shell.

The script calls `fencepost` again with the words of the line in environment variables
(`_FENCEPOST_COMPLETE`, `COMP_WORDS`), and typer prints what may follow. `serve` parses its options
itself, so its command asks that parser.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand

VARIABLE: Final = "_FENCEPOST_COMPLETE"
"""Set by the scripts when they ask what may follow."""


class Shell(Enum):
    """The shells with a script."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion_command(
    shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="Your shell: bash, zsh or fish.")],
) -> None:
    """Print a script that completes commands and options.

    To install it, load it when the shell starts: for bash with the example below, for zsh by the
    same line in ~/.zshrc after compinit, for fish with `fencepost completion fish >
    ~/.config/fish/completions/fencepost.fish`.

    Example: echo 'eval "$(fencepost completion bash)"' >> ~/.bashrc
    """
    from typer._completion_shared import get_completion_script

    typer.echo(
        get_completion_script(prog_name="fencepost", complete_var=VARIABLE, shell=shell.value)
    )


def prepare() -> None:
    """Makes typer answer the questions of the scripts."""
    from typer._completion_classes import completion_init

    completion_init()


class ServeCommand(TyperCommand):
    """The command `serve`, for completion: its options are those of its own parser."""

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Returns options, or the choices of the option before."""
        from typer._click.shell_completion import CompletionItem

        from fencepost.cli.commands.serve import parser

        last = ctx.args[-1] if ctx.args else ""
        words: list[tuple[str, str | None]] = []
        for action in parser().listed:
            if last in action.option_strings and action.nargs != 0:
                words = [(str(choice), None) for choice in action.choices or ()]
                break
            words += [(option, action.help) for option in action.option_strings]
        return [
            CompletionItem(word, help=text) for word, text in words if word.startswith(incomplete)
        ]
