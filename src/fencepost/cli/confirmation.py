"""Asks before a command changes something that cannot be undone."""

from __future__ import annotations

import shutil
import sys
import textwrap
from typing import Annotated

import typer

from fencepost.base.failures import FencepostError

Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]


def confirm(yes: bool, sentence: str) -> None:
    """Shows what will happen and asks; FencepostError if the answer is no."""
    if yes:
        return
    width = shutil.get_terminal_size().columns if sys.stderr.isatty() else 1_000
    for line in sentence.splitlines():
        typer.echo(textwrap.fill(line, width, break_on_hyphens=False), err=True)
    if not typer.confirm("Continue?", err=True):
        raise FencepostError("Nothing was changed.")
